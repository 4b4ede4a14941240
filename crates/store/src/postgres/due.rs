//! The fast path of admission for due tasks.
//!
//! A task whose retry is due, or whose start time has come, waits for admission. The
//! general path takes several round trips for that. Here one transaction in one round trip admits every
//! due task: tasks without limits become ready, and tasks that need one slot of one limit join its wait
//! queue. Where one of them needs more, nothing is changed, and the general path admits them.
//!
//! A claim that finds enough ready tasks ignores tasks that became due less than `Options::due_grace` ago, so
//! that several due tasks are admitted together. Each process remembers the next due time. One of its claims, or
//! finishes with a claim, sends this transaction after half of the grace.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, LaneId, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::Inner;
use super::error::{Fault, log_optional_step};
use super::floors::first_of_lanes;
use super::look::{AtGate, View, glance, look_at_gate};
use super::session::{Params, Tx, at_once};

pub(super) const DUE_LOCK: &str = include_str!("queries/lock_due_fast.sql");
const DUE_ADMIT: &str = include_str!("queries/admit_due_fast.sql");

/// When the next task is due, as far as this process knows. A hint: every claim reads the due times on the
/// server.
#[derive(Debug, Default)]
pub(super) struct NextDue(Mutex<Option<Instant>>);

#[expect(clippy::disallowed_methods, reason = "a hint; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl NextDue {
    /// Replaces the hint with the columns `now` and `next_due` of a row.
    pub(super) fn update_from(&self, row: &Row) {
        let read_at: Option<Millis> = row.get("now");
        let due_at: Option<Millis> = row.get("next_due");
        let due_in = read_at.zip(due_at).map(|(read_at, due_at)| due_at.saturating_sub(read_at));
        *self.hint() = due_in.map(instant_in);
    }

    /// Notes that this process has scheduled a task, which is due in `due_in`.
    pub(super) fn note_scheduled(&self, due_in: Millis) {
        let mut hint = self.hint();
        let due_at = instant_in(due_in);
        *hint = Some(hint.map_or(due_at, |known| known.min(due_at)));
    }

    /// Returns whether a task has been due for at least `min_overdue`, and clears the hint, so that only one of
    /// several concurrent calls admits it.
    fn take(&self, min_overdue: Duration) -> bool {
        let mut hint = self.hint();
        let is_due = hint.is_some_and(|due_at| due_at + min_overdue <= now());
        if is_due {
            *hint = None;
        }
        is_due
    }

    fn hint(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn instant_in(due_in: Millis) -> Instant {
    now() + Duration::from_millis(due_in.max(0).unsigned_abs())
}

/// Tasks that this process has made ready before a claim of its own. When it is dropped, other workers are
/// notified of those that the claim did not take.
pub(super) struct NewlyReady<'a> {
    store: &'a Inner,
    tasks: BTreeSet<TaskId>,
}

impl<'a> NewlyReady<'a> {
    pub(super) fn none(store: &'a Inner) -> Self {
        Self { store, tasks: BTreeSet::new() }
    }

    /// Removes tasks that were claimed.
    pub(super) fn claimed(&mut self, attempts: &[Attempt]) {
        if !self.tasks.is_empty() {
            self.tasks.retain(|task| attempts.iter().all(|attempt| attempt.task != *task));
        }
    }

    /// Admits due tasks and adds those that became ready. Returns whether any task was admitted. `slots` is
    /// the maximum number of slots that the caller gives back next.
    pub(super) async fn admit_due(&mut self, slots: usize) -> Result<bool> {
        let mut admitted = admit_due(self.store, slots).await?;
        self.tasks.append(&mut admitted.new.tasks);
        Ok(admitted.ready + admitted.parked > 0)
    }

    /// Admits due tasks before a claim and adds those that became ready. If no task was admitted, returns what
    /// still waits for admission, for the worker of the claim.
    pub(super) async fn admit_due_before(&mut self, claim: &Claim) -> Result<Option<AtGate>> {
        let (mut admitted, at_gate) = admit_due_before(self.store, claim).await?;
        self.tasks.append(&mut admitted.new.tasks);
        Ok((admitted.ready + admitted.parked == 0).then_some(at_gate))
    }

    /// Admits due tasks for a verb that can do without it, and adds those that became ready. Returns whether any
    /// task was admitted. An error is only logged: the verb finds the same tasks later, or the same error.
    /// `slots` is the maximum number of slots that the caller gives back next.
    pub(super) async fn try_admit_due(&mut self, slots: usize) -> bool {
        self.admit_due(slots).await.unwrap_or_else(|error| {
            log_optional_step("admission of due tasks", &error);
            false
        })
    }
}

impl Drop for NewlyReady<'_> {
    fn drop(&mut self) {
        if !self.tasks.is_empty() {
            self.store.changed.tell();
        }
    }
}

/// The outcome of one transaction.
pub(super) struct DueAdmitted<'a> {
    new: NewlyReady<'a>,
    /// Tasks that became ready.
    pub(super) ready: u32,
    /// Tasks that joined a wait queue.
    pub(super) parked: u32,
}

/// Admits due tasks before a claim, if a task has been due for half of the grace as far as this process knows.
/// An error is only logged. `slots` is the maximum number of slots that the caller gives back next.
pub(super) async fn admit_expected(store: &Inner, slots: usize) -> NewlyReady<'_> {
    let mut new = NewlyReady::none(store);
    // Half of the grace: the admission usually ends before claims of other processes are refused because
    // of this task.
    if store.next_due.take(store.options.due_grace / 2) {
        new.try_admit_due(slots).await;
    }
    new
}

/// Admits every due task (at most 1,000; rows locked by other transactions are skipped), or none. `slots` is the
/// maximum number of slots that the caller gives back next. If a due task could get one of them, the transaction
/// admits nothing and the caller takes the general path.
pub(super) async fn admit_due(store: &Inner, slots: usize) -> Result<DueAdmitted<'_>> {
    let row = at_once!(store, tx => send(store, &tx, slots as i64));
    Ok(DueAdmitted::of(store, &row))
}

/// Admits every due task, or none, and reads in the same round trip what still waits for admission, for no
/// particular worker. The caller gives no slots back.
pub(super) async fn admit_due_and_glance(store: &Inner) -> Result<(DueAdmitted<'_>, View, AtGate)> {
    let (row, view, at_gate) = at_once!(store, tx => send_and_glance(store, &tx));
    Ok((DueAdmitted::of(store, &row), view, at_gate))
}

/// Admits every due task, or none, and reads in the same round trip what still waits for admission, for the
/// worker of the claim. The caller gives no slots back.
async fn admit_due_before<'a>(
    store: &'a Inner,
    claim: &Claim,
) -> Result<(DueAdmitted<'a>, AtGate)> {
    let (row, at_gate) = at_once!(store, tx => send_before(store, &tx, claim));
    Ok((DueAdmitted::of(store, &row), at_gate))
}

impl<'a> DueAdmitted<'a> {
    fn of(store: &'a Inner, row: &Row) -> Self {
        // Without a time the transaction has read no tasks.
        if row.get::<_, Option<Millis>>("now").is_some() {
            store.next_due.update_from(row);
        }
        let ready = ready_rows(row);
        store.floors.lower(&first_of_lanes(ready.iter()));
        let tasks: BTreeSet<TaskId> = ready.iter().map(|row| row.task).collect();
        Self {
            ready: tasks.len() as u32,
            new: NewlyReady { store, tasks },
            parked: row.get::<_, i64>("parked") as u32,
        }
    }
}

async fn send(store: &Inner, tx: &Tx<'_>, slots: i64) -> Result<Row, Fault> {
    let (row, ()) = tokio::try_join!(biased; admit(store, tx, slots), tx.commit())?;
    Ok(row)
}

async fn send_and_glance(store: &Inner, tx: &Tx<'_>) -> Result<(Row, View, AtGate), Fault> {
    let (row, (view, at_gate), ()) =
        tokio::try_join!(biased; admit(store, tx, 0), glance(store, tx), tx.commit())?;
    Ok((row, view, at_gate))
}

async fn send_before(store: &Inner, tx: &Tx<'_>, claim: &Claim) -> Result<(Row, AtGate), Fault> {
    let (row, at_gate, ()) = tokio::try_join!(biased;
        admit(store, tx, 0),
        look_at_gate(store, tx, Some(claim)),
        tx.commit(),
    )?;
    Ok((row, at_gate))
}

async fn admit(store: &Inner, tx: &Tx<'_>, slots: i64) -> Result<Row, Fault> {
    let now = store.options.now();
    let (at, given): (Params<'_>, Params<'_>) = (&[&now], &[&slots]);
    let (_, admitted) = tokio::try_join!(biased;
        tx.one(store.options.due_lock_text(), at),
        tx.one(DUE_ADMIT, given),
    )?;
    Ok(admitted)
}

/// The tasks that became ready, in the order of their lanes.
fn ready_rows(row: &Row) -> Vec<ReadyRow> {
    let list = |column| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
    let places = list("lanes").into_iter().zip(list("ranks"));
    let ready = |(task, (lane, rank))| ReadyRow {
        task: TaskId(task),
        lane: LaneId(lane),
        rank,
        tag: row.get("virtual_time"),
        stamp: row.get("limits_version"),
        gated: false,
        since: row.get("now"),
    };
    list("tasks").into_iter().zip(places).map(ready).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_hint_is_taken_once() {
        let next_due = NextDue::default();
        assert!(!next_due.take(Duration::ZERO), "nothing is known");
        next_due.note_scheduled(0);
        assert!(!next_due.take(Duration::from_secs(3600)), "not for an hour yet");
        assert!(next_due.take(Duration::ZERO));
        assert!(!next_due.take(Duration::ZERO));
    }

    #[test]
    fn due_hint_keeps_the_earliest_time() {
        let next_due = NextDue::default();
        next_due.note_scheduled(3_600_000);
        assert!(!next_due.take(Duration::ZERO), "in an hour");
        next_due.note_scheduled(0);
        next_due.note_scheduled(3_600_000);
        assert!(next_due.take(Duration::ZERO));
    }
}
