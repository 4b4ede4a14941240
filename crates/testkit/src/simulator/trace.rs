//! What happened, as a number that two runs of one seed must agree on, and as text on request.

use std::fmt::Write as _;

use tidegate_core::Millis;
use tidegate_core::reader::Snapshot;

use super::message::{Reply, Request};
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
        answer: &Reply,
        after: &Snapshot,
    ) {
        let counters = after.counters;
        let rows = (after.tasks.len() << 32) + (after.slots.len() << 16) + after.leases.len();
        let numbers = [
            now,
            process as i64,
            request.verb() as i64,
            counters.last_token,
            counters.last_admission_seq,
            counters.virtual_time,
            rows as i64,
        ];
        for number in numbers {
            self.hash = mix(self.hash ^ number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
        self.note(|| format!("{now} p{process} {request:?}\n    -> {answer:?}"));
    }

    /// Notes something that is not a commit.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            let _ = writeln!(text, "{}", line());
        }
    }

    /// Writes down where everybody stands.
    pub(super) fn state(&mut self, snapshot: &Snapshot) {
        self.note(|| format!("at {}: {:?}", snapshot.now, snapshot.counters));
        for limit in &snapshot.limits {
            self.note(|| format!("{limit:?}"));
        }
        for task in &snapshot.tasks {
            let slots = snapshot.slots.iter().filter(|slot| slot.task == task.id);
            let slots: Vec<_> = slots.map(|slot| (slot.limit, slot.number)).collect();
            self.note(|| format!("{task:?} holds {slots:?}"));
        }
    }

    pub(super) fn finish(self) -> (u64, String) {
        (self.hash, self.text.unwrap_or_default())
    }
}
