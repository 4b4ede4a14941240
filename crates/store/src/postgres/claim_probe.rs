//! What a worker sees before it takes anything.

use std::sync::Arc;

use tidegate_core::{Claim, LaneId, LimitId, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::PostgresInner;
use super::error::TxError;
use super::transaction::{Tx, with_autocommit};
use super::working_set_load::TxStart;

const PROBE: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/claim_probe_result.sql")
);
const PROBE_IDLE: &str =
    concat!(include_str!("queries/claim_probe.sql"), include_str!("queries/claim_probe_idle.sql"));
const PROBE_ADMISSION: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/claim_probe_admission.sql")
);

/// What a claim sees before it takes anything.
#[derive(Debug)]
pub(super) struct ClaimProbe {
    pub(super) start: TxStart,
    /// Lanes the worker serves that are open.
    pub(super) open_lanes: Vec<LaneId>,
    /// When the next task is due.
    next_due: Option<Millis>,
    pub(super) is_worker_recorded: bool,
    pub(super) has_admission_work: bool,
    /// The last task that anybody has begun to submit, if nothing waits at the gate.
    pub(super) last_submitted_task: Option<i64>,
}

impl ClaimProbe {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            start: TxStart::from_row(row),
            open_lanes: open_lanes(row),
            next_due: row.get("next_due"),
            is_worker_recorded: row.get("is_noted"),
            has_admission_work: row.get("has_gate_work"),
            last_submitted_task: last_submitted_task(row),
        }
    }

    /// Whether tasks wait for admission, also those that other claims still pass because they became due a
    /// moment ago.
    pub(super) fn needs_admission(&self) -> bool {
        self.has_admission_work || self.has_due()
    }

    /// Whether a task is due, or a limit is due to be looked at.
    pub(super) fn has_due(&self) -> bool {
        self.next_due.is_some_and(|due| due <= self.start.now)
    }

    /// How long until the next task is due.
    pub(super) fn due_in(&self) -> Option<Millis> {
        self.next_due.map(|due| due.saturating_sub(self.start.now))
    }
}

/// The last task that anybody has begun to submit, if nothing waits at the gate.
pub(super) fn last_submitted_task(row: &Row) -> Option<i64> {
    (!row.get::<_, bool>("has_gate_work")).then(|| row.get("last_task"))
}

/// The lanes that were looked at.
pub(super) fn open_lanes(row: &Row) -> Vec<LaneId> {
    row.get::<_, Vec<i64>>("open").into_iter().map(LaneId).collect()
}

/// What waits at the gate.
#[derive(Debug)]
pub(super) struct PendingAdmission {
    pub(super) has_inbox_tasks: bool,
    pub(super) dirty_limits: Vec<LimitId>,
    pub(super) unserved_tasks: Vec<TaskId>,
}

impl PendingAdmission {
    fn from_row(row: &Row) -> Self {
        let list = |column: &str| row.get::<_, Vec<i64>>(column).into_iter();
        Self {
            has_inbox_tasks: row.get("arrivals"),
            dirty_limits: list("dirty").map(LimitId).collect(),
            unserved_tasks: list("no_worker").map(TaskId).collect(),
        }
    }
}

/// A look for no worker in particular, in one round trip.
pub(super) async fn probe_with_admission(
    store: &PostgresInner,
    tx: &Tx<'_>,
) -> Result<(ClaimProbe, PendingAdmission), TxError> {
    tokio::try_join!(biased; probe(store, tx, None), read_pending_admission_in_tx(store, tx, None))
}

/// What waits at the gate before a claim.
pub(super) async fn read_pending_admission(
    store: &PostgresInner,
    claim: &Claim,
) -> Result<PendingAdmission> {
    Ok(with_autocommit!(store, tx => read_pending_admission_in_tx(store, &tx, Some(claim))))
}

/// Reads what waits for admission, for a worker or for no particular one.
pub(super) async fn read_pending_admission_in_tx(
    store: &PostgresInner,
    tx: &Tx<'_>,
    claim: Option<&Claim>,
) -> Result<PendingAdmission, TxError> {
    Ok(PendingAdmission::from_row(&run_probe(store, tx, PROBE_ADMISSION, claim).await?))
}

/// Looks for a worker, or for nobody in particular.
pub(super) async fn probe(
    store: &PostgresInner,
    tx: &Tx<'_>,
    claim: Option<&Claim>,
) -> Result<ClaimProbe, TxError> {
    Ok(ClaimProbe::from_row(&run_probe(store, tx, PROBE, claim).await?))
}

/// The same, and whether anything is ready.
pub(super) async fn probe_idle(
    store: &PostgresInner,
    tx: &Tx<'_>,
    claim: &Claim,
) -> Result<(ClaimProbe, bool), TxError> {
    let row = run_probe(store, tx, PROBE_IDLE, Some(claim)).await?;
    Ok((ClaimProbe::from_row(&row), row.get("has_ready")))
}

async fn run_probe(
    store: &PostgresInner,
    tx: &Tx<'_>,
    sql: &'static str,
    claim: Option<&Claim>,
) -> Result<Row, TxError> {
    let (queues, kinds) = queue_and_kind_names(claim);
    let worker = claim.map_or("", |claim| &*claim.worker.0);
    let lease_ms = claim.map_or(0, |claim| claim.lease_ms);
    let now = store.options.now_override();
    let arrived_from = 0_i64;
    tx.query_one(sql, &[&queues, &kinds, &worker, &lease_ms, &now, &arrived_from]).await
}

pub(super) fn queue_and_kind_names(claim: Option<&Claim>) -> (Vec<&str>, Vec<&str>) {
    fn as_strs(names: &[Arc<str>]) -> Vec<&str> {
        names.iter().map(|name| &**name).collect()
    }
    claim.map_or_else(Default::default, |claim| (as_strs(&claim.queues), as_strs(&claim.kinds)))
}
