//! What a worker sees before it takes anything.

use std::sync::Arc;

use tidegate_core::{Claim, LaneId, LimitId, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::Inner;
use super::error::Fault;
use super::load::Moment;
use super::session::{Tx, glimpse};

const LOOK: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/claim_probe_result.sql")
);
const IDLE: &str =
    concat!(include_str!("queries/claim_probe.sql"), include_str!("queries/claim_probe_idle.sql"));
const AT_GATE: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/claim_probe_admission.sql")
);

/// What a claim sees before it takes anything.
#[derive(Debug)]
pub(super) struct View {
    pub(super) moment: Moment,
    /// Lanes the worker serves that are open.
    pub(super) open: Vec<LaneId>,
    /// When the next task is due.
    next_due: Option<Millis>,
    pub(super) is_noted: bool,
    pub(super) has_gate_work: bool,
    /// The last task that anybody has begun to submit, if nothing waits at the gate.
    pub(super) last_task: Option<i64>,
}

impl View {
    pub(super) fn of(row: &Row) -> Self {
        Self {
            moment: Moment::of(row),
            open: open(row),
            next_due: row.get("next_due"),
            is_noted: row.get("is_noted"),
            has_gate_work: row.get("has_gate_work"),
            last_task: last_task(row),
        }
    }

    /// Whether tasks wait for admission, also those that other claims still pass because they became due a
    /// moment ago.
    pub(super) fn needs_admission(&self) -> bool {
        self.has_gate_work || self.has_due()
    }

    /// Whether a task is due, or a limit is due to be looked at.
    pub(super) fn has_due(&self) -> bool {
        self.next_due.is_some_and(|due| due <= self.moment.now)
    }

    /// How long until the next task is due.
    pub(super) fn due_in(&self) -> Option<Millis> {
        self.next_due.map(|due| due.saturating_sub(self.moment.now))
    }
}

/// The last task that anybody has begun to submit, if nothing waits at the gate.
pub(super) fn last_task(row: &Row) -> Option<i64> {
    (!row.get::<_, bool>("has_gate_work")).then(|| row.get("last_task"))
}

/// The lanes that were looked at.
pub(super) fn open(row: &Row) -> Vec<LaneId> {
    row.get::<_, Vec<i64>>("open").into_iter().map(LaneId).collect()
}

/// What waits at the gate.
#[derive(Debug)]
pub(super) struct AtGate {
    pub(super) arrivals: bool,
    pub(super) dirty: Vec<LimitId>,
    pub(super) no_worker: Vec<TaskId>,
}

impl AtGate {
    fn of(row: &Row) -> Self {
        let list = |column: &str| row.get::<_, Vec<i64>>(column).into_iter();
        Self {
            arrivals: row.get("arrivals"),
            dirty: list("dirty").map(LimitId).collect(),
            no_worker: list("no_worker").map(TaskId).collect(),
        }
    }
}

/// A look for no worker in particular, in one round trip.
pub(super) async fn glance(store: &Inner, tx: &Tx<'_>) -> Result<(View, AtGate), Fault> {
    tokio::try_join!(biased; look(store, tx, None), look_at_gate(store, tx, None))
}

/// What waits at the gate before a claim.
pub(super) async fn glance_at_gate(store: &Inner, claim: &Claim) -> Result<AtGate> {
    Ok(glimpse!(store, tx => look_at_gate(store, &tx, Some(claim))))
}

/// Reads what waits for admission, for a worker or for no particular one.
pub(super) async fn look_at_gate(
    store: &Inner,
    tx: &Tx<'_>,
    claim: Option<&Claim>,
) -> Result<AtGate, Fault> {
    Ok(AtGate::of(&seen(store, tx, AT_GATE, claim).await?))
}

/// Looks for a worker, or for nobody in particular.
pub(super) async fn look(store: &Inner, tx: &Tx<'_>, claim: Option<&Claim>) -> Result<View, Fault> {
    Ok(View::of(&seen(store, tx, LOOK, claim).await?))
}

/// The same, and whether anything is ready.
pub(super) async fn look_idly(
    store: &Inner,
    tx: &Tx<'_>,
    claim: &Claim,
) -> Result<(View, bool), Fault> {
    let row = seen(store, tx, IDLE, Some(claim)).await?;
    Ok((View::of(&row), row.get("has_ready")))
}

async fn seen(
    store: &Inner,
    tx: &Tx<'_>,
    sql: &'static str,
    claim: Option<&Claim>,
) -> Result<Row, Fault> {
    let (queues, kinds) = names(claim);
    let worker = claim.map_or("", |claim| &*claim.worker.0);
    let lease_ms = claim.map_or(0, |claim| claim.lease_ms);
    let now = store.options.now();
    let arrived_from = 0_i64;
    tx.one(sql, &[&queues, &kinds, &worker, &lease_ms, &now, &arrived_from]).await
}

pub(super) fn names(claim: Option<&Claim>) -> (Vec<&str>, Vec<&str>) {
    fn plain(names: &[Arc<str>]) -> Vec<&str> {
        names.iter().map(|name| &**name).collect()
    }
    claim.map_or_else(Default::default, |claim| (plain(&claim.queues), plain(&claim.kinds)))
}
