//! Decides when every attempt ended, also where its process could not say so any more.

use super::Outcome;
use super::collect::{Attempt, History, ProcessHistory};

/// The time in which an attempt counts as running: from its enter to before `end_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttemptEnd {
    pub(super) end_ns: u64,
    pub(super) ending: EndSource,
}

/// How the end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndSource {
    /// The process wrote it.
    Written,
    /// The process was killed while the handler ran.
    Killed,
    /// The process was paused and had lost the task when it went on.
    Paused,
    /// Nothing is known but the last sign of life of its process.
    Open,
}

/// The end of every attempt, in the order of the attempts.
pub(super) fn attempt_ends(history: &History) -> Vec<AttemptEnd> {
    history
        .attempts
        .iter()
        .map(|attempt| attempt_end(attempt, &history.processes[attempt.process]))
        .collect()
}

fn attempt_end(attempt: &Attempt, life: &ProcessHistory) -> AttemptEnd {
    let (end_ns, ending) = if let Some(stop_ns) = lost_to_pause(attempt, life) {
        (stop_ns, EndSource::Paused)
    } else if let Some(leave_ns) = attempt.leave_ns {
        (leave_ns, EndSource::Written)
    } else if let Some(kill_ns) = life.kill_ns {
        (kill_ns, EndSource::Killed)
    } else {
        // It still ran at that record, so it counts for that instant too.
        (life.last_ns + 1, EndSource::Open)
    };
    // An attempt of no length would be held by nobody at no time and escape every check.
    AttemptEnd { end_ns: end_ns.max(attempt.enter_ns + 1), ending }
}

/// No engine can keep a paused handler from being there: its lease runs out and the slot goes to
/// another. So an attempt that was paused and then lost counts up to the pause. One that was paused
/// and still accepted had its lease all the time, and counts in full.
fn lost_to_pause(attempt: &Attempt, life: &ProcessHistory) -> Option<u64> {
    if !matches!(attempt.outcome, None | Some(Outcome::Lost)) {
        return None;
    }
    let during = |stop_ns: &&u64| {
        **stop_ns >= attempt.enter_ns && attempt.leave_ns.is_none_or(|end| **stop_ns < end)
    };
    life.stops_ns.iter().find(during).copied()
}
