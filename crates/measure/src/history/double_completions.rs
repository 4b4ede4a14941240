//! Checks that no task was completed twice.

use super::Outcome;
use super::collect::History;
use super::violation::{Violation, Violations};

/// Checks all tasks and gives how many were completed.
pub(super) fn check(history: &History, violations: &mut Violations) -> u64 {
    let completed =
        history.attempts.iter().filter(|attempt| attempt.outcome == Some(Outcome::Completed));
    let mut tasks: Vec<i64> = completed.map(|attempt| attempt.task).collect();
    tasks.sort_unstable();
    let mut count = 0;
    for same in tasks.chunk_by(|one, next| one == next) {
        count += 1;
        if same.len() > 1 {
            violations.add(Violation::CompletedTwice { task: same[0], times: same.len() as u64 });
        }
    }
    count
}
