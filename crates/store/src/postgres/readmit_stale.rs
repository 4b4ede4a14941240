//! Sends back to the gate what a younger limit applies to.
//!
//! A limit holds from its first moment: no claim takes a task that was made ready before it. Such tasks
//! have to come to the gate once more. Whoever meets them sends some of them back, many at a time; and
//! where there are a great many, it does so for a part of the time only, so that others go on.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_core::rules::admission;
use tidegate_core::tables::{Position, ReadyRow, Tables};
use tidegate_core::{LaneId, Result};
use tokio_postgres::Row;

use super::admission::{ADMISSION_BUDGET, run_follow_ups_bounded};
use super::claim::lock_limits_version_shared;
use super::claim_cursors::{LaneStarts, lane_key};
use super::claim_probe::open_lanes;
use super::error::TxError;
use super::rows;
use super::sized_sql::SizedSql;
use super::transaction::Tx;
use super::working_set::FollowUp;
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{PostgresInner, in_transaction};

const LOCK_STALE_READY_TASKS: &str = include_str!("queries/lock_stale_ready_tasks.sql");
static LOCK_STALE_READY_IN_LANES: SizedSql =
    SizedSql::new(include_str!("queries/lock_stale_ready_in_lanes.sql"));

/// Tasks that go back in one transaction where there are many, about.
const BULK_TASKS: usize = 1000;

/// While there are more, the pauses between steps are so many times as long as they take.
const PAUSE_FACTOR: u32 = 4;

/// Tasks that a claim has met.
#[derive(Debug)]
pub(super) struct StaleTasks {
    pub(super) tasks: Vec<i64>,
    pub(super) lanes: Vec<i64>,
    /// All lanes that are open.
    pub(super) open_lanes: Vec<LaneId>,
}

impl StaleTasks {
    pub(super) fn from_row(row: &Row) -> Self {
        let list = |column| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
        Self { tasks: list("stale"), lanes: list("stale_lanes"), open_lanes: open_lanes(row) }
    }
}

/// Of so many claims in a pause one looks at the lanes that were closed.
const CLAIMS_PER_CLOSED_LANE_SCAN: u32 = 8;

/// When this process may send back the next of many.
#[derive(Debug, Default)]
pub(super) struct ReadmitThrottle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    next_step_at: Option<Instant>,
    /// Lanes where nothing else was met in this pause, and how many claims have left them out.
    closed_lanes: BTreeSet<i64>,
    claims_since_scan: u32,
}

impl ReadmitThrottle {
    pub(super) fn is_bulk(&self) -> bool {
        self.lock_state().next_step_at.is_some()
    }

    pub(super) fn may_step(&self) -> bool {
        self.lock_state().next_step_at.is_none_or(|next| now() >= next)
    }

    /// In these lanes nothing is met but what has to go back.
    pub(super) fn close_lanes(&self, lanes: &[i64]) {
        let mut state = self.lock_state();
        if state.next_step_at.is_some() {
            state.closed_lanes.extend(lanes);
        }
    }

    /// The lanes that a claim leaves out.
    pub(super) fn closed_lanes(&self) -> Vec<i64> {
        let mut state = self.lock_state();
        if state.closed_lanes.is_empty() || state.next_step_at.is_none_or(|next| now() >= next) {
            state.closed_lanes.clear();
            return Vec::new();
        }
        state.claims_since_scan = (state.claims_since_scan + 1) % CLAIMS_PER_CLOSED_LANE_SCAN;
        if state.claims_since_scan == 0 {
            Vec::new()
        } else {
            state.closed_lanes.iter().copied().collect()
        }
    }

    /// Sends these back, or the first of their lanes from these floors.
    pub(super) async fn run_step(
        &self,
        store: &PostgresInner,
        stale: &StaleTasks,
        lanes_from: Option<&LaneStarts>,
    ) -> Result<()> {
        let began = now();
        let (tasks, follow_up) =
            in_transaction!(store, tx => readmit(store, &tx, stale, lanes_from));
        if lanes_from.is_some() {
            let ended = now();
            let next = (tasks >= BULK_TASKS / 2).then(|| ended + (ended - began) * PAUSE_FACTOR);
            *self.lock_state() = ThrottleState { next_step_at: next, ..ThrottleState::default() };
            // Whoever looked meanwhile found them locked.
            store.notifier.notify_others();
        }
        run_follow_ups_bounded(store, follow_up).await;
        Ok(())
    }

    fn lock_state(&self) -> MutexGuard<'_, ThrottleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::disallowed_methods, reason = "a pace; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// Locks those who go back.
async fn lock_stale(
    tx: &Tx<'_>,
    stale: &StaleTasks,
    lanes_from: Option<&LaneStarts>,
) -> Result<Vec<ReadyRow>, TxError> {
    let rows = match lanes_from {
        None => tx.query(LOCK_STALE_READY_TASKS, &[&stale.tasks]).await?,
        Some(from) => {
            let LaneStarts { lanes, ranks, tags, tasks } = from.for_lanes(&stale.lanes);
            let (sql, _) =
                LOCK_STALE_READY_IN_LANES.for_size(BULK_TASKS.div_ceil(lanes.len().max(1)));
            tx.query(sql, &[&lanes, &ranks, &tags, &tasks]).await?
        }
    };
    let mut rows: Vec<ReadyRow> = rows.iter().map(rows::ready_row).collect();
    rows.sort_by_key(lane_key);
    Ok(rows)
}

async fn readmit(
    store: &PostgresInner,
    tx: &Tx<'_>,
    stale: &StaleTasks,
    lanes_from: Option<&LaneStarts>,
) -> Result<(usize, FollowUp), TxError> {
    let ((), start, rows) = tokio::try_join!(biased;
        lock_limits_version_shared(store, tx),
        read_tx_start(store, tx),
        lock_stale(tx, stale, lanes_from),
    )?;
    let tasks = rows.iter().map(|row| row.task).collect();
    let wanted =
        LoadRequest { tasks, admission_budget: ADMISSION_BUDGET, ..LoadRequest::default() };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    rows.iter().for_each(|row| working_set.set_position(row.task, Position::Ready(*row)));
    working_set.finish_loading();
    for row in &rows {
        working_set.remove_ready(*row)?;
        let Some(tags) = working_set.task_info(row.task)? else {
            continue;
        };
        if row.holds_slots {
            admission::release_task_slots(&mut working_set, &tags, false, tags.job.is_some())?;
        }
        if let admission::Admission::LimitNotLocked(_) =
            admission::admit_new(&mut working_set, &tags)?
        {
            return Err(TxError::Retry);
        }
    }
    let mut budget = ADMISSION_BUDGET;
    admission::admit_from_dirty_limits(&mut working_set, &mut budget)?;
    write_changes(tx, &working_set).await?;
    Ok((rows.len(), working_set.follow_up()))
}
