//! What happened, as a number that two runs of one seed must agree on, and as text on request.

use std::fmt::Write as _;

use tidegate_core::Millis;
use tidegate_core::inspect::Snapshot;

use super::message::{Answer, Request};
use super::rng::mix;

/// The trace of a run.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    text: Option<String>,
}

impl Trace {
    pub(super) fn new(is_text: bool) -> Self {
        Self { hash: 0, text: is_text.then(String::new) }
    }

    pub(super) fn commit(
        &mut self,
        now: Millis,
        process: usize,
        request: &Request,
        answer: &Answer,
        after: &Snapshot,
    ) {
        let counters = after.counters;
        let rows = (after.tasks.len() << 32) + (after.slots.len() << 16) + after.leases.len();
        let numbers = [
            now,
            process as i64,
            request.verb() as i64,
            counters.token,
            counters.place,
            counters.virtual_time,
            rows as i64,
        ];
        for number in numbers {
            self.hash = mix(self.hash ^ number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
        self.line(|| format!("{now} p{process} {request:?}\n    -> {answer:?}"));
    }

    /// Notes something that is not a commit.
    pub(super) fn line(&mut self, line: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            let _ = writeln!(text, "{}", line());
        }
    }

    /// Writes down where everybody stands.
    pub(super) fn state(&mut self, snapshot: &Snapshot) {
        self.line(|| format!("at {}: {:?}", snapshot.now, snapshot.counters));
        for limit in &snapshot.limits {
            self.line(|| format!("{limit:?}"));
        }
        for task in &snapshot.tasks {
            let slots = snapshot.slots.iter().filter(|slot| slot.task == task.id);
            let slots: Vec<_> = slots.map(|slot| (slot.limit, slot.number)).collect();
            self.line(|| format!("{task:?} holds {slots:?}"));
        }
    }

    pub(super) fn finish(self) -> (u64, String) {
        (self.hash, self.text.unwrap_or_default())
    }
}
