//! Hands out ready tasks under one lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::rules::{self, gate};
use tidegate_core::tables::{Lane, Position, ReadyRow, Tables};
use tidegate_core::{Attempt, Claim, LaneId, LimitId, Millis, Result, TaskId};

use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, before_claim, follow};
use super::load::{Moment, Wanted, gather, kinds_named, known, moment, slots_of};
use super::rows::{self, Known};
use super::session::Tx;
use super::{Inner, transact};

const VERSION_SHARED: &str = include_str!("queries/version_shared.sql");
const LANES_SERVED: &str = include_str!("queries/lanes_served.sql");
const SEE_WORKER: &str = include_str!("queries/see_worker.sql");
const LOCK_READY: &str = include_str!("queries/lock_ready.sql");
const PAYLOADS: &str = include_str!("queries/payloads.sql");

/// Rounds in which a claim may send back what a younger limit applies to.
const ROUNDS_MAX: u32 = 100;

pub(super) async fn claim(store: &Inner, claim: Claim) -> Result<Vec<Attempt>> {
    claim.check()?;
    let lanes = transact!(store, tx => see(store, &tx, &claim));
    before_claim(store, &lanes).await?;
    if claim.tasks_max == 0 || lanes.is_empty() {
        return Ok(Vec::new());
    }
    for _ in 0..ROUNDS_MAX {
        let taken = transact!(store, tx => take(store, &tx, &claim, &lanes));
        follow(store, taken.left).await?;
        if let Some(attempts) = taken.attempts {
            return Ok(attempts);
        }
    }
    Ok(Vec::new())
}

/// Notes that the worker lives and what it serves, in a transaction of its own.
async fn see(store: &Inner, tx: &Tx<'_>, claim: &Claim) -> Result<Vec<Lane>, Fault> {
    let now = moment(store, tx).await?.now;
    let queues: Vec<&str> = claim.queues.iter().map(|queue| &**queue).collect();
    let kinds: Vec<&str> = claim.kinds.iter().map(|kind| &**kind).collect();
    let lanes = tx.query(LANES_SERVED, &[&queues, &kinds]).await?;
    let lane = |row: &tokio_postgres::Row| Lane {
        id: LaneId(row.get("id")),
        queue: row.get::<_, &str>("queue").into(),
        kind: row.get::<_, &str>("kind").into(),
    };
    let lanes: Vec<Lane> = lanes.iter().map(lane).collect();
    let ids: Vec<i64> = lanes.iter().map(|lane| lane.id.0).collect();
    tx.execute(SEE_WORKER, &[&&*claim.worker.0, &(now + claim.lease_ms), &ids]).await?;
    Ok(lanes)
}

struct Taken {
    /// None where rows were sent back to the gate instead.
    attempts: Option<Vec<Attempt>>,
    left: Vec<LimitId>,
}

async fn take(store: &Inner, tx: &Tx<'_>, claim: &Claim, lanes: &[Lane]) -> Result<Taken, Fault> {
    tx.query(VERSION_SHARED, &[]).await?;
    let moment = moment(store, tx).await?;
    let kinds: BTreeSet<&str> = lanes.iter().map(|lane| &*lane.kind).collect();
    let kinds = kinds_named(tx, &kinds.into_iter().collect::<Vec<_>>()).await?;
    let closed: BTreeSet<&str> = kinds
        .iter()
        .filter(|kind| kind.window.is_some_and(|window| !window.is_open(moment.now)))
        .map(|kind| &*kind.name)
        .collect();
    let open = lanes.iter().filter(|lane| !closed.contains(&*lane.kind));
    let open: Vec<i64> = open.map(|lane| lane.id.0).collect();
    let wanted = i64::from(claim.tasks_max);
    // As many more as others may be taking at this moment.
    let candidates = 2 * wanted + 64;
    let rows = tx.query(LOCK_READY, &[&open, &candidates, &wanted]).await?;
    let rows: Vec<ReadyRow> = rows.iter().map(rows::ready).collect();
    if rows.is_empty() {
        return Ok(Taken { attempts: Some(Vec::new()), left: Vec::new() });
    }
    let tasks: Vec<TaskId> = rows.iter().map(|row| row.task).collect();
    let known = known(tx, &tasks).await?;
    let since: BTreeMap<TaskId, i64> =
        known.iter().filter_map(|known| Some((known.task.tags.task, known.since?))).collect();
    let is_stale = |row: &&ReadyRow| since.get(&row.task).is_some_and(|since| *since > row.stamp);
    let stale: Vec<ReadyRow> = rows.iter().filter(is_stale).copied().collect();
    if !stale.is_empty() {
        let left = send_back(store, tx, moment, stale).await?;
        return Ok(Taken { attempts: None, left });
    }
    start(store, tx, moment, claim, Ready { lanes, kinds, rows, known }).await
}

/// Sends tasks back to the gate that a younger limit applies to.
async fn send_back(
    store: &Inner,
    tx: &Tx<'_>,
    moment: Moment,
    rows: Vec<ReadyRow>,
) -> Result<Vec<LimitId>, Fault> {
    let tasks = rows.iter().map(|row| row.task).collect();
    let wanted = Wanted { tasks, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    rows.iter().for_each(|row| draft.stand(row.task, Position::Ready(*row)));
    draft.seal();
    for row in rows {
        draft.take_ready(row)?;
        let Some(tags) = draft.tags(row.task)? else {
            continue;
        };
        if row.gated {
            gate::release(&mut draft, &tags, false, tags.job.is_some())?;
        }
        if let gate::Verdict::Unlocked(_) = gate::arrive(&mut draft, &tags)? {
            return Err(Fault::Again);
        }
    }
    let mut budget = BUDGET;
    gate::settle(&mut draft, &mut budget)?;
    flush(tx, &draft).await?;
    Ok(draft.dirty())
}

/// Ready tasks a claim has locked, and what is known of them.
struct Ready<'a> {
    lanes: &'a [Lane],
    kinds: Vec<tidegate_core::Kind>,
    rows: Vec<ReadyRow>,
    known: Vec<Known>,
}

async fn start(
    store: &Inner,
    tx: &Tx<'_>,
    moment: Moment,
    claim: &Claim,
    ready: Ready<'_>,
) -> Result<Taken, Fault> {
    // A claimed task leaves its job's window, so the job's limit is needed; the others are not.
    let jobs = ready.known.iter().filter_map(|known| {
        let job = known.needs.iter().find(|(name, _)| name.starts_with("job:"));
        job.map(|(_, id)| *id)
    });
    let jobs: BTreeSet<LimitId> = jobs.collect();
    let budget = BUDGET + ready.rows.len() as u32;
    let wanted = Wanted { limits: jobs.into_iter().collect(), budget, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    let ids: Vec<i64> = ready.rows.iter().map(|row| row.task.0).collect();
    let mut names: BTreeMap<LimitId, Arc<str>> = BTreeMap::new();
    for row in slots_of(tx, &ids).await? {
        let limit = LimitId(row.get("limit_id"));
        names.insert(limit, row.get::<_, &str>("name").into());
        draft.add_held(TaskId(row.get("task")), limit, rows::number(&row, "number"));
    }
    ready.kinds.into_iter().for_each(|kind| draft.add_kind(kind));
    for lane in ready.lanes {
        draft.state.lanes.insert((lane.queue.clone(), lane.kind.clone()), lane.id);
    }
    for known in ready.known {
        for (name, id) in known.needs {
            draft.add_name(name, id);
        }
        draft.add_task(known.task);
    }
    ready.rows.iter().for_each(|row| draft.stand(row.task, Position::Ready(*row)));
    draft.seal();
    // Their stamps were judged above, and no limit can begin before the commit.
    let version = moment.limits_version;
    for row in ready.rows.into_iter().filter(|row| row.stamp != version) {
        draft.take_ready(row)?;
        draft.put_ready(ReadyRow { stamp: version, ..row })?;
    }
    let mut attempts = rules::claim(&mut draft, claim)?;
    let given = flush(tx, &draft).await?;
    let ids: Vec<i64> = attempts.iter().map(|attempt| attempt.task.0).collect();
    let mut payloads: BTreeMap<i64, Vec<u8>> =
        tx.query(PAYLOADS, &[&ids]).await?.iter().map(|row| (row.get(0), row.get(1))).collect();
    for attempt in &mut attempts {
        attempt.payload = payloads.remove(&attempt.task.0).unwrap_or_default();
        attempt.token = given.token.unwrap_or(attempt.token);
        for slot in &mut attempt.slots {
            slot.name = names.get(&slot.limit).unwrap_or(&slot.name).clone();
        }
    }
    Ok(Taken { attempts: Some(attempts), left: draft.dirty() })
}

/// For a heartbeat: the worker lives.
pub(super) async fn see_worker(
    tx: &Tx<'_>,
    worker: &str,
    alive_until: Millis,
) -> Result<(), Fault> {
    let none: [i64; 0] = [];
    tx.execute(SEE_WORKER, &[&worker, &alive_until, &&none[..]]).await?;
    Ok(())
}
