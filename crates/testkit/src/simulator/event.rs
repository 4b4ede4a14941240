//! What is going to happen, in order of time and then of when it was decided.

use tidegate_core::Millis;

use super::message::{Reply, Request};

#[derive(Debug)]
pub(super) enum Event {
    /// A process's loop goes round.
    ProcessStep { process: usize, start: u64 },
    /// A request comes to the store.
    Request { process: usize, start: u64, call: u64, request: Request, reply_lost: bool },
    /// A reply comes to the process.
    Reply { process: usize, start: u64, call: u64, answer: Reply },
    /// Somebody's luck may run out.
    Nemesis,
}

#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) at: (Millis, u64),
    pub(super) event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
