//! Decides when every attempt ended, also where its process could not say so any more.

use super::Outcome;
use super::gather::{Attempt, History, Life};

/// The time in which an attempt counts as running: from its enter to before `end_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) end_ns: u64,
    pub(super) ending: Ending,
}

/// How the end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
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
pub(super) fn settle(history: &History) -> Vec<Settled> {
    history
        .attempts
        .iter()
        .map(|attempt| settle_one(attempt, &history.processes[attempt.process]))
        .collect()
}

fn settle_one(attempt: &Attempt, life: &Life) -> Settled {
    let (end_ns, ending) = if let Some(stop_ns) = lost_to_pause(attempt, life) {
        (stop_ns, Ending::Paused)
    } else if let Some(leave_ns) = attempt.leave_ns {
        (leave_ns, Ending::Written)
    } else if let Some(kill_ns) = life.kill_ns {
        (kill_ns, Ending::Killed)
    } else {
        // It still ran at that record, so it counts for that instant too.
        (life.last_ns + 1, Ending::Open)
    };
    // An attempt of no length would be held by nobody at no time and escape every check.
    Settled { end_ns: end_ns.max(attempt.enter_ns + 1), ending }
}

/// No engine can keep a paused handler from being there: its lease runs out and the slot goes to
/// another. So an attempt that was paused and then lost counts up to the pause. One that was paused
/// and still accepted had its lease all the time, and counts in full.
fn lost_to_pause(attempt: &Attempt, life: &Life) -> Option<u64> {
    if !matches!(attempt.outcome, None | Some(Outcome::Lost)) {
        return None;
    }
    let during = |stop_ns: &&u64| {
        **stop_ns >= attempt.enter_ns && attempt.leave_ns.is_none_or(|end| **stop_ns < end)
    };
    life.stops_ns.iter().find(during).copied()
}
