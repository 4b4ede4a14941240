//! Measures how long the tasks of a killed process waited until they ran again.

use serde::{Deserialize, Serialize};

use super::collect::{Attempt, History};

/// From the kill of a process to the next enter of each task it was running.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Tasks that ran again.
    pub count: u64,
    /// Tasks that did not run again in this history.
    pub never: u64,
    pub p50_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

/// Looks at every attempt that a kill ended.
pub(super) fn measure(history: &History) -> Recovery {
    let mut enters: Vec<(i64, u64)> =
        history.attempts.iter().map(|attempt| (attempt.task, attempt.enter_ns)).collect();
    enters.sort_unstable();
    let mut waits_ns = Vec::new();
    let mut never = 0;
    for (attempt, kill_ns) in killed(history) {
        match next_enter(&enters, attempt) {
            // A process that was paused before it was killed may have been replaced already.
            Some(enter_ns) => waits_ns.push(enter_ns.saturating_sub(kill_ns)),
            None => never += 1,
        }
    }
    waits_ns.sort_unstable();
    Recovery {
        count: waits_ns.len() as u64,
        never,
        p50_ms: waits_ns.get(waits_ns.len() / 2).copied().map(milliseconds),
        max_ms: waits_ns.last().copied().map(milliseconds),
    }
}

fn killed(history: &History) -> impl Iterator<Item = (&Attempt, u64)> {
    history.attempts.iter().filter(|attempt| attempt.leave_ns.is_none()).filter_map(|attempt| {
        let kill_ns = history.processes[attempt.process].kill_ns?;
        Some((attempt, kill_ns))
    })
}

fn next_enter(enters: &[(i64, u64)], attempt: &Attempt) -> Option<u64> {
    let after = enters.partition_point(|enter| *enter <= (attempt.task, attempt.enter_ns));
    enters.get(after).filter(|(task, _)| *task == attempt.task).map(|(_, enter_ns)| *enter_ns)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
