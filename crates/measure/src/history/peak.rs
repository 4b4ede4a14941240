//! How many handlers ran at once.

use super::attempt_end::attempt_ends;
use super::collect::History;
use super::{Record, StartRecord};

/// The most handlers that ran at once, of those that are meant. For histories that are small enough
/// to be kept; the limits of large ones are swept by [`verify`](super::verify).
pub fn peak_concurrency(records: &[Record], is_meant: impl Fn(&StartRecord) -> bool) -> usize {
    let mut history = History::default();
    for record in records {
        if !matches!(record, Record::Enter(enter) if !is_meant(enter)) {
            history.add_record(record.clone());
        }
    }
    history.finish();
    let ends = attempt_ends(&history);
    let enters = history.attempts.iter().map(|attempt| (attempt.enter_ns, true));
    // At one instant an attempt ends before another enters.
    let mut changes: Vec<(u64, bool)> =
        ends.iter().map(|settled| (settled.end_ns, false)).chain(enters).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, is_enter) in changes {
        if is_enter {
            now += 1;
            most = most.max(now);
        } else {
            now -= 1;
        }
    }
    most
}
