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

use super::PostgresInner;
use super::claim_cursors::first_of_each_lane;
use super::claim_probe::{
    ClaimProbe, PendingAdmission, probe_with_admission, read_pending_admission_in_tx,
};
use super::error::{TxError, log_optional_step};
use super::transaction::{Params, Tx, in_pipelined_transaction};

pub(super) const LOCK_DUE_FAST: &str = include_str!("queries/lock_due_fast.sql");
const ADMIT_DUE_FAST: &str = include_str!("queries/admit_due_fast.sql");

/// When the next task is due, as far as this process knows. A hint: every claim reads the due times on the
/// server.
#[derive(Debug, Default)]
pub(super) struct NextDueHint(Mutex<Option<Instant>>);

#[expect(clippy::disallowed_methods, reason = "a hint; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl NextDueHint {
    /// Replaces the hint with the columns `now` and `next_due` of a row.
    pub(super) fn update_from_row(&self, row: &Row) {
        let read_at: Option<Millis> = row.get("now");
        let due_at: Option<Millis> = row.get("next_due");
        let due_in = read_at.zip(due_at).map(|(read_at, due_at)| due_at.saturating_sub(read_at));
        *self.lock_hint() = due_in.map(instant_in);
    }

    /// Notes that this process has scheduled a task, which is due in `due_in`.
    pub(super) fn note_scheduled(&self, due_in: Millis) {
        let mut hint = self.lock_hint();
        let due_at = instant_in(due_in);
        *hint = Some(hint.map_or(due_at, |known| known.min(due_at)));
    }

    /// Returns whether a task has been due for at least `min_overdue`, and clears the hint, so that only one of
    /// several concurrent calls admits it.
    fn take_if_overdue(&self, min_overdue: Duration) -> bool {
        let mut hint = self.lock_hint();
        let is_due = hint.is_some_and(|due_at| due_at + min_overdue <= now());
        if is_due {
            *hint = None;
        }
        is_due
    }

    fn lock_hint(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn instant_in(due_in: Millis) -> Instant {
    now() + Duration::from_millis(due_in.max(0).unsigned_abs())
}

/// Tasks that this process has made ready before a claim of its own. When it is dropped, other workers are
/// notified of those that the claim did not take.
pub(super) struct NewlyReady<'a> {
    store: &'a PostgresInner,
    tasks: BTreeSet<TaskId>,
}

impl<'a> NewlyReady<'a> {
    pub(super) fn empty(store: &'a PostgresInner) -> Self {
        Self { store, tasks: BTreeSet::new() }
    }

    /// Removes tasks that were claimed.
    pub(super) fn remove_claimed(&mut self, attempts: &[Attempt]) {
        if !self.tasks.is_empty() {
            self.tasks.retain(|task| attempts.iter().all(|attempt| attempt.task != *task));
        }
    }

    /// Admits due tasks and adds those that became ready. Returns whether any task was admitted. `slots` is
    /// the maximum number of slots that the caller gives back next.
    pub(super) async fn admit_due(&mut self, slots_max: usize) -> Result<bool> {
        let mut admitted = admit_due(self.store, slots_max).await?;
        self.tasks.append(&mut admitted.newly_ready.tasks);
        Ok(admitted.ready + admitted.parked > 0)
    }

    /// Admits due tasks before a claim and adds those that became ready. If no task was admitted, returns what
    /// still waits for admission, for the worker of the claim.
    pub(super) async fn admit_due_before_claim(
        &mut self,
        claim: &Claim,
    ) -> Result<Option<PendingAdmission>> {
        let (mut admitted, pending) = admit_due_before_claim(self.store, claim).await?;
        self.tasks.append(&mut admitted.newly_ready.tasks);
        Ok((admitted.ready + admitted.parked == 0).then_some(pending))
    }

    /// Admits due tasks for a verb that can do without it, and adds those that became ready. Returns whether any
    /// task was admitted. An error is only logged: the verb finds the same tasks later, or the same error.
    /// `slots` is the maximum number of slots that the caller gives back next.
    pub(super) async fn try_admit_due(&mut self, slots_max: usize) -> bool {
        self.admit_due(slots_max).await.unwrap_or_else(|error| {
            log_optional_step("admission of due tasks", &error);
            false
        })
    }
}

impl Drop for NewlyReady<'_> {
    fn drop(&mut self) {
        if !self.tasks.is_empty() {
            self.store.notifier.notify_others();
        }
    }
}

/// The outcome of one transaction.
pub(super) struct DueAdmission<'a> {
    newly_ready: NewlyReady<'a>,
    /// Tasks that became ready.
    pub(super) ready: u32,
    /// Tasks that joined a wait queue.
    pub(super) parked: u32,
}

/// Admits due tasks before a claim, if a task has been due for half of the grace as far as this process knows.
/// An error is only logged. `slots` is the maximum number of slots that the caller gives back next.
pub(super) async fn admit_expected_due(store: &PostgresInner, slots_max: usize) -> NewlyReady<'_> {
    let mut new = NewlyReady::empty(store);
    // Half of the grace: the admission usually ends before claims of other processes are refused because
    // of this task.
    if store.next_due.take_if_overdue(store.options.due_grace / 2) {
        new.try_admit_due(slots_max).await;
    }
    new
}

/// Admits every due task (at most 1,000; rows locked by other transactions are skipped), or none. `slots` is the
/// maximum number of slots that the caller gives back next. If a due task could get one of them, the transaction
/// admits nothing and the caller takes the general path.
pub(super) async fn admit_due(store: &PostgresInner, slots_max: usize) -> Result<DueAdmission<'_>> {
    let row =
        in_pipelined_transaction!(store, tx => admit_and_commit(store, &tx, slots_max as i64));
    Ok(DueAdmission::from_row(store, &row))
}

/// Admits every due task, or none, and reads in the same round trip what still waits for admission, for no
/// particular worker. The caller gives no slots back.
pub(super) async fn admit_due_and_probe(
    store: &PostgresInner,
) -> Result<(DueAdmission<'_>, ClaimProbe, PendingAdmission)> {
    let (row, view, at_gate) =
        in_pipelined_transaction!(store, tx => admit_probe_and_commit(store, &tx));
    Ok((DueAdmission::from_row(store, &row), view, at_gate))
}

/// Admits every due task, or none, and reads in the same round trip what still waits for admission, for the
/// worker of the claim. The caller gives no slots back.
async fn admit_due_before_claim<'a>(
    store: &'a PostgresInner,
    claim: &Claim,
) -> Result<(DueAdmission<'a>, PendingAdmission)> {
    let (row, at_gate) =
        in_pipelined_transaction!(store, tx => admit_read_pending_and_commit(store, &tx, claim));
    Ok((DueAdmission::from_row(store, &row), at_gate))
}

impl<'a> DueAdmission<'a> {
    fn from_row(store: &'a PostgresInner, row: &Row) -> Self {
        // Without a time the transaction has read no tasks.
        if row.get::<_, Option<Millis>>("now").is_some() {
            store.next_due.update_from_row(row);
        }
        let ready = ready_rows(row);
        store.claim_cursors.move_back(&first_of_each_lane(ready.iter()));
        let tasks: BTreeSet<TaskId> = ready.iter().map(|row| row.task).collect();
        Self {
            ready: tasks.len() as u32,
            newly_ready: NewlyReady { store, tasks },
            parked: row.get::<_, i64>("parked") as u32,
        }
    }
}

async fn admit_and_commit(store: &PostgresInner, tx: &Tx<'_>, slots: i64) -> Result<Row, TxError> {
    let (row, ()) = tokio::try_join!(biased; admit_due_in_tx(store, tx, slots), tx.commit())?;
    Ok(row)
}

async fn admit_probe_and_commit(
    store: &PostgresInner,
    tx: &Tx<'_>,
) -> Result<(Row, ClaimProbe, PendingAdmission), TxError> {
    let (row, (view, at_gate), ()) = tokio::try_join!(biased; admit_due_in_tx(store, tx, 0), probe_with_admission(store, tx), tx.commit())?;
    Ok((row, view, at_gate))
}

async fn admit_read_pending_and_commit(
    store: &PostgresInner,
    tx: &Tx<'_>,
    claim: &Claim,
) -> Result<(Row, PendingAdmission), TxError> {
    let (row, at_gate, ()) = tokio::try_join!(biased;
        admit_due_in_tx(store, tx, 0),
        read_pending_admission_in_tx(store, tx, Some(claim)),
        tx.commit(),
    )?;
    Ok((row, at_gate))
}

async fn admit_due_in_tx(store: &PostgresInner, tx: &Tx<'_>, slots: i64) -> Result<Row, TxError> {
    let now = store.options.now_override();
    let (at, given): (Params<'_>, Params<'_>) = (&[&now], &[&slots]);
    let (_, admitted) = tokio::try_join!(biased;
        tx.query_one(store.options.lock_due_sql(), at),
        tx.query_one(ADMIT_DUE_FAST, given),
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
        limits_version: row.get("limits_version"),
        holds_slots: false,
        ready_at: row.get("now"),
    };
    list("tasks").into_iter().zip(places).map(ready).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_hint_is_taken_once_per_due_time() {
        let next_due = NextDueHint::default();
        assert!(!next_due.take_if_overdue(Duration::ZERO), "nothing is known");
        next_due.note_scheduled(0);
        assert!(!next_due.take_if_overdue(Duration::from_secs(3600)), "not for an hour yet");
        assert!(next_due.take_if_overdue(Duration::ZERO));
        assert!(!next_due.take_if_overdue(Duration::ZERO));
    }

    #[test]
    fn due_hint_keeps_earliest_time() {
        let next_due = NextDueHint::default();
        next_due.note_scheduled(3_600_000);
        assert!(!next_due.take_if_overdue(Duration::ZERO), "in an hour");
        next_due.note_scheduled(0);
        next_due.note_scheduled(3_600_000);
        assert!(next_due.take_if_overdue(Duration::ZERO));
    }
}
