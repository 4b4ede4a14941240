//! Heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::{Pace, Tables};
use tidegate_core::{Extend, Extended, Result, TaskId, Token, WorkerReport, rules};

use super::draft::Draft;
use super::error::{Fault, quietly};
use super::load::moment;
use super::pack::unpack_in;
use super::rows;
use super::session::{Params, Tx};
use super::{Inner, transact};
use crate::memory::State;

const PUT_REPORT: &str = include_str!("queries/put_report.sql");
const FORGET_WORKER: &str = include_str!("queries/forget_worker.sql");
const LOCK_LEASES_TO_RENEW: &str = include_str!("queries/lock_leases_to_renew.sql");
const RENEW_LEASES: &str = include_str!("queries/renew_leases.sql");
const CANCEL_REQUESTS: &str = include_str!("queries/cancel_requests.sql");
const FENCED: &str = include_str!("queries/fenced.sql");
const PUT_PACES: &str = include_str!("queries/put_paces.sql");
const PUT_PROGRESS: &str = include_str!("queries/put_progress.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

pub(super) async fn extend(store: &Inner, extend: Extend) -> Result<Extended> {
    // Refusals come before any write: the rules are asked over empty tables.
    rules::extend(&mut State::default(), &extend)?;
    let peers = transact!(beating store, tx => alive(store, &tx, &extend));
    let mut extended = Extended::default();
    if !extend.tokens.is_empty() {
        // Renewal commits by itself: it does not wait for the row of every attempt that reports.
        extended = transact!(beating store, tx => renew(store, &tx, &extend));
    }
    extended.peers = peers;
    if !extend.progress.is_empty() || !extend.ran.is_empty() {
        // The lease is renewed: a report that is lost must not look like a lease that is.
        quietly(tell(store, &extend).await)?;
    }
    Ok(extended)
}

async fn tell(store: &Inner, extend: &Extend) -> Result<()> {
    if !extend.progress.is_empty() {
        let reports = || extend.progress.iter();
        let tokens: BTreeSet<i64> = reports().map(|(_, token, _)| token.0).collect();
        let tokens: Vec<i64> = tokens.into_iter().collect();
        let tasks: Vec<i64> = reports().map(|(task, _, _)| task.0).collect();
        // An attempt with rows of its own cannot hand its slot on.
        store.holding.forget(reports().map(|(task, token, _)| (*token, *task)));
        transact!(beating store, tx => unpack_in(&tx, Some(&tokens), Some(&tasks)));
        transact!(beating store, tx => progress(&tx, extend));
    }
    if !extend.ran.is_empty() {
        transact!(beating store, tx => paces(store, &tx, extend));
    }
    Ok(())
}

async fn paces(store: &Inner, tx: &Tx<'_>, extend: &Extend) -> Result<(), Fault> {
    // A group that is named twice is added up: one statement writes a row once.
    let mut paces: BTreeMap<&str, Pace> = BTreeMap::new();
    for ran in &extend.ran {
        let pace = paces.entry(&ran.group).or_default();
        pace.tasks += i64::from(ran.tasks);
        pace.total_ms = pace.total_ms.saturating_add(ran.total_ms.max(0));
    }
    let now = moment(store, tx).await?.now;
    let groups: Vec<&str> = paces.keys().copied().collect();
    let tasks: Vec<i64> = paces.values().map(|pace| pace.tasks).collect();
    let totals: Vec<i64> = paces.values().map(|pace| pace.total_ms).collect();
    tx.execute(PUT_PACES, &[&groups, &tasks, &totals, &now]).await?;
    Ok(())
}

/// Notes the worker and what it says, and counts the others that have room.
async fn alive(store: &Inner, tx: &Tx<'_>, extend: &Extend) -> Result<u32, Fault> {
    let worker = &*extend.worker.0;
    if extend.leaves() {
        tx.execute(FORGET_WORKER, &[&worker]).await?;
        return Ok(0);
    }
    let now = moment(store, tx).await?.now;
    let report = extend.report.as_ref().map(WorkerReport::write);
    let until = now + extend.lease_ms;
    let peers = tx.one(PUT_REPORT, &[&worker, &until, &report, &now]).await?;
    Ok(u32::try_from(peers.get::<_, i64>(0)).unwrap_or(u32::MAX))
}

async fn renew(store: &Inner, tx: &Tx<'_>, extend: &Extend) -> Result<Extended, Fault> {
    let tokens: Vec<i64> = extend.tokens.iter().map(|token| token.0).collect();
    let leases = tx.query(LOCK_LEASES_TO_RENEW, &[&tokens]).await?;
    let moment = moment(store, tx).await?;
    let mut draft = Draft::new(moment.now, moment.virtual_time, moment.limits_version, 0);
    leases.iter().for_each(|row| draft.add_lease(rows::lease(row)));
    let of_tokens: Params<'_> = &[&tokens];
    let (asked, fenced) = tokio::try_join!(biased;
        tx.query(CANCEL_REQUESTS, of_tokens),
        tx.query(FENCED, of_tokens),
    )?;
    for row in asked {
        let (task, token, running) = rows::running(&row);
        draft.run(task, token, running);
    }
    for row in fenced {
        draft.fence(TaskId(row.get("task")), Token(row.get("token")))?;
    }
    let extend = Extend { progress: Vec::new(), ran: Vec::new(), ..extend.clone() };
    let extended = rules::extend(&mut draft, &extend)?;
    let renewed = extend.tokens.iter().filter(|token| !extended.lost.contains(token));
    let renewed: Vec<i64> = renewed.map(|token| token.0).collect();
    tx.execute(RENEW_LEASES, &[&renewed, &(moment.now + extend.lease_ms)]).await?;
    Ok(extended)
}

async fn progress(tx: &Tx<'_>, extend: &Extend) -> Result<(), Fault> {
    // A later report of the same attempt replaces an earlier one.
    let reports: BTreeMap<_, _> =
        extend.progress.iter().map(|(task, token, report)| ((task.0, token.0), report)).collect();
    let tasks: Vec<i64> = reports.keys().map(|(task, _)| *task).collect();
    let tokens: Vec<i64> = reports.keys().map(|(_, token)| *token).collect();
    let percents: Vec<i32> = reports.values().map(|report| i32::from(report.percent)).collect();
    let messages: Vec<&[u8]> = reports.values().map(|report| report.message.as_bytes()).collect();
    tx.query(LOCK_RUNNING, &[&tasks]).await?;
    tx.execute(PUT_PROGRESS, &[&tasks, &tokens, &percents, &messages]).await?;
    Ok(())
}
