//! Heartbeats.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::tables::{RunTimeStats, Tables};
use tidegate_core::{
    Heartbeat, HeartbeatReply, Result, TaskId, Token, WorkerId, WorkerReport, rules,
};
use tokio::time::{Instant, timeout_at};

use super::admission::{ADMISSION_BUDGET, run_follow_ups};
use super::call::{self, Call, Verb};
use super::claim::lock_limits_version_shared;
use super::error::{TxError, log_after_commit};
use super::lease_expansion::{expand_leases_in_tx, unpack_some};
use super::rows;
use super::runtime::PendingCall;
use super::transaction::{Params, Tx};
use super::working_set::{FollowUp, WorkingSet};
use super::working_set_load::{LoadRequest, lock_and_load, read_tx_start};
use super::working_set_write::write_changes;
use super::{PostgresInner, in_transaction};
use crate::memory::WorkingState;

const PUT_HEARTBEAT: &str = include_str!("queries/put_heartbeat.sql");
const DELETE_WORKER: &str = include_str!("queries/delete_worker.sql");
const LOCK_LEASES_TO_RENEW: &str = include_str!("queries/lock_leases_to_renew.sql");
const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
const LOCK_RUNNING_OF_LEASES: &str = include_str!("queries/lock_running_of_leases.sql");
const RENEW_LEASES: &str = include_str!("queries/renew_leases.sql");
const CANCEL_REQUESTS: &str = include_str!("queries/cancel_requests.sql");
const FENCED_ATTEMPTS: &str = include_str!("queries/fenced_attempts.sql");
const ADD_RUN_TIMES: &str = include_str!("queries/add_run_times.sql");
const PUT_PROGRESS: &str = include_str!("queries/put_progress.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

/// Deadlines that one release misses in a row before it gives up.
const MISSED_MAX: u32 = 4;

/// Workers of a store whose unlisted leases are being released.
#[derive(Debug, Default)]
pub(super) struct OngoingReleases(Mutex<HashSet<WorkerId>>);

/// A release that is under way; it has ended when this is dropped.
struct ReleaseGuard {
    store: Arc<PostgresInner>,
    worker: WorkerId,
}

impl ReleaseGuard {
    /// Returns none if a release for this worker is under way.
    fn new(store: &Arc<PostgresInner>, worker: &WorkerId) -> Option<Self> {
        let is_first = store.ongoing_releases.lock_workers().insert(worker.clone());
        is_first.then(|| Self { store: store.clone(), worker: worker.clone() })
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        self.store.ongoing_releases.lock_workers().remove(&self.worker);
    }
}

impl OngoingReleases {
    fn lock_workers(&self) -> MutexGuard<'_, HashSet<WorkerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn heartbeat(
    store: &Arc<PostgresInner>,
    extend: Heartbeat,
) -> Result<HeartbeatReply> {
    let answer_at = call::half_of_deadline();
    // Refusals come before any write: the rules are asked over empty tables.
    rules::heartbeat(&mut WorkingState::default(), &extend)?;
    let (peers, unlisted) =
        in_transaction!(heartbeat store, tx => record_worker(store, &tx, &extend));
    let mut extended = HeartbeatReply::default();
    if !extend.tokens.is_empty() {
        // Renewal commits by itself: it does not wait for the row of every attempt that reports.
        extended = in_transaction!(heartbeat store, tx => renew_leases(store, &tx, &extend));
    }
    extended.peers_with_capacity = peers;
    if !unlisted.is_empty() {
        extended.released_attempts = match extend.is_deregistration() {
            // No later heartbeat would release what is left when the process ends.
            true => release_or_log(store, &extend, unlisted).await,
            false => release_in_background(store, &extend, unlisted, answer_at).await,
        };
    }
    if !extend.progress.is_empty() || !extend.run_times.is_empty() {
        // The renewal is committed: a lost progress report must not look like a lost lease.
        if let Err(error) = write_progress_and_run_times(store, &extend).await {
            log_after_commit("progress report of a heartbeat", &error);
        }
    }
    Ok(extended)
}

/// Releases leases in a tokio task, and waits for it no longer than until `answer_at`: the renewal is
/// committed, and an answer that comes too late would look like a heartbeat that failed. Returns how many
/// attempts were released until then. What this task does not release is released after a later heartbeat.
async fn release_in_background(
    store: &Arc<PostgresInner>,
    extend: &Heartbeat,
    tokens: Vec<i64>,
    answer_at: Instant,
) -> u32 {
    let Some(guard) = ReleaseGuard::new(store, &extend.worker) else {
        return 0;
    };
    let call = Call::new(Verb::Heartbeat, &store.options.timeouts);
    let (extend, pending) = (extend.clone(), PendingCall::new(&store.pending_calls));
    let mut release = store.runtime.spawn(call.run_background(async move {
        let _pending = pending;
        release_or_log(&guard.store, &extend, tokens).await
    }));
    match timeout_at(answer_at, &mut release).await {
        Ok(Ok(released)) => released,
        Ok(Err(cause)) => {
            tracing::warn!(%cause, "the release of leases of a heartbeat was cut off");
            0
        }
        Err(_) => {
            tracing::debug!("the release of leases of a heartbeat goes on behind its answer");
            0
        }
    }
}

/// Releases leases. An error is only logged: what comes before is committed.
async fn release_or_log(store: &PostgresInner, extend: &Heartbeat, tokens: Vec<i64>) -> u32 {
    release_unlisted(store, extend, tokens).await.unwrap_or_else(|error| {
        log_after_commit("release of leases of a heartbeat", &error);
        0
    })
}

async fn write_progress_and_run_times(store: &PostgresInner, extend: &Heartbeat) -> Result<()> {
    if !extend.progress.is_empty() {
        let reports = || extend.progress.iter();
        let tokens: BTreeSet<i64> = reports().map(|(_, token, _)| token.0).collect();
        let tokens: Vec<i64> = tokens.into_iter().collect();
        let tasks: Vec<i64> = reports().map(|(task, _, _)| task.0).collect();
        // An attempt with rows of its own cannot hand its slot on.
        store.hand_off_cache.mark_expanded(reports().map(|(task, token, _)| (*token, *task)));
        in_transaction!(heartbeat store, tx => expand_leases_in_tx(&tx, &tokens, Some(&tasks)));
        in_transaction!(heartbeat store, tx => put_progress(&tx, extend));
    }
    if !extend.run_times.is_empty() {
        in_transaction!(heartbeat store, tx => put_run_times(store, &tx, extend));
    }
    Ok(())
}

async fn put_run_times(
    store: &PostgresInner,
    tx: &Tx<'_>,
    extend: &Heartbeat,
) -> Result<(), TxError> {
    // A group that is named twice is added up: one statement writes a row once.
    let mut paces: BTreeMap<&str, RunTimeStats> = BTreeMap::new();
    for ran in &extend.run_times {
        let pace = paces.entry(&ran.group).or_default();
        pace.tasks += i64::from(ran.tasks);
        pace.total_ms = pace.total_ms.saturating_add(ran.total_ms.max(0));
    }
    let now = read_tx_start(store, tx).await?.now;
    let groups: Vec<&str> = paces.keys().copied().collect();
    let tasks: Vec<i64> = paces.values().map(|pace| pace.tasks).collect();
    let totals: Vec<i64> = paces.values().map(|pace| pace.total_ms).collect();
    tx.execute(ADD_RUN_TIMES, &[&groups, &tasks, &totals, &now]).await?;
    Ok(())
}

/// Notes the worker and its report. Returns the number of other workers that have room, and the
/// expired leases of this worker that the heartbeat does not list.
async fn record_worker(
    store: &PostgresInner,
    tx: &Tx<'_>,
    extend: &Heartbeat,
) -> Result<(u32, Vec<i64>), TxError> {
    let worker = &*extend.worker.0;
    let now = read_tx_start(store, tx).await?.now;
    if extend.is_deregistration() {
        let left = tx.query_one(DELETE_WORKER, &[&worker, &now]).await?;
        return Ok((0, left.get("unlisted")));
    }
    let report = extend.report.as_ref().map(WorkerReport::to_json);
    let until = now + extend.lease_ms;
    let listed: Vec<i64> = extend.tokens.iter().map(|token| token.0).collect();
    let seen = tx.query_one(PUT_HEARTBEAT, &[&worker, &until, &report, &now, &listed]).await?;
    let peers = u32::try_from(seen.get::<_, i64>("peers")).unwrap_or(u32::MAX);
    Ok((peers, seen.get("unlisted")))
}

/// Releases expired leases that the heartbeat does not list, as the reaper ends those of dead workers:
/// in transactions of their own, in the lock order of the module. They use a connection of the pool,
/// so that the connection for heartbeats stays free for the renewals of other workers.
///
/// Repeats steps of a bounded number of attempts until nothing is left. A step that misses its deadline is repeated
/// with fewer attempts a few times; after that a later heartbeat goes on.
async fn release_unlisted(
    store: &PostgresInner,
    extend: &Heartbeat,
    tokens: Vec<i64>,
) -> Result<u32> {
    let (mut released, mut missed) = (0, 0);
    loop {
        let attempts_max = store.step_size.attempts_max();
        let step = match release_step(store, extend, &tokens, attempts_max).await {
            Ok(step) => step,
            Err(error) => {
                let is_smaller =
                    call::take_missed_deadline() && store.step_size.reduce(attempts_max);
                missed += 1;
                if !is_smaller || missed == MISSED_MAX {
                    return Err(error);
                }
                continue;
            }
        };
        store.step_size.grow(attempts_max);
        missed = 0;
        released += step.released;
        run_follow_ups(store, step.left).await?;
        if !step.has_more {
            return Ok(released);
        }
    }
}

/// One step of a release.
struct ReleaseStep {
    released: u32,
    left: FollowUp,
    has_more: bool,
}

async fn release_step(
    store: &PostgresInner,
    extend: &Heartbeat,
    tokens: &[i64],
    attempts_max: u32,
) -> Result<ReleaseStep> {
    let has_more = unpack_some(store, tokens, attempts_max).await?;
    let mut step = in_transaction!(store, tx => release_unlisted_in_tx(store, &tx, extend, tokens, attempts_max));
    step.has_more |= has_more;
    Ok(step)
}

async fn release_unlisted_in_tx(
    store: &PostgresInner,
    tx: &Tx<'_>,
    extend: &Heartbeat,
    tokens: &[i64],
    attempts_max: u32,
) -> Result<ReleaseStep, TxError> {
    lock_limits_version_shared(store, tx).await?;
    let start = read_tx_start(store, tx).await?;
    let running = tx.query(LOCK_RUNNING_OF_LEASES, &[&tokens, &i64::from(attempts_max)]).await?;
    let running: Vec<_> = running.iter().map(rows::running_row).collect();
    let has_more = running.len() == attempts_max as usize;
    let wanted = LoadRequest {
        tasks: running.iter().map(|(task, _, _)| *task).collect(),
        admission_budget: ADMISSION_BUDGET + running.len() as u32,
        ..LoadRequest::default()
    };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    // A reaper may have ended some of them meanwhile. An expired lease is never renewed.
    let leases = tx.query(LOCK_LEASES, &[&tokens]).await?;
    leases.iter().for_each(|row| working_set.add_lease(rows::lease_row(row)));
    for (task, token, running) in running {
        working_set.set_running(task, token, running);
    }
    working_set.finish_loading();
    let released = rules::release_unlisted_leases(&mut working_set, extend)?;
    write_changes(tx, &working_set).await?;
    Ok(ReleaseStep { released, left: working_set.follow_up(), has_more })
}

async fn renew_leases(
    store: &PostgresInner,
    tx: &Tx<'_>,
    extend: &Heartbeat,
) -> Result<HeartbeatReply, TxError> {
    let tokens: Vec<i64> = extend.tokens.iter().map(|token| token.0).collect();
    let leases = tx.query(LOCK_LEASES_TO_RENEW, &[&tokens]).await?;
    let moment = read_tx_start(store, tx).await?;
    let mut draft = WorkingSet::new(moment.now, moment.virtual_time, moment.limits_version, 0);
    leases.iter().for_each(|row| draft.add_lease(rows::lease_row(row)));
    let of_tokens: Params<'_> = &[&tokens];
    let (asked, fenced) = tokio::try_join!(biased;
        tx.query(CANCEL_REQUESTS, of_tokens),
        tx.query(FENCED_ATTEMPTS, of_tokens),
    )?;
    for row in asked {
        let (task, token, running) = rows::running_row(&row);
        draft.set_running(task, token, running);
    }
    for row in fenced {
        draft.insert_fenced_attempt(TaskId(row.get("task")), Token(row.get("token")))?;
    }
    let extend = Heartbeat { progress: Vec::new(), run_times: Vec::new(), ..extend.clone() };
    let extended = rules::heartbeat(&mut draft, &extend)?;
    let renewed: Vec<i64> = extended.renewed(&extend.tokens).map(|token| token.0).collect();
    tx.execute(RENEW_LEASES, &[&renewed, &(moment.now + extend.lease_ms)]).await?;
    Ok(extended)
}

async fn put_progress(tx: &Tx<'_>, extend: &Heartbeat) -> Result<(), TxError> {
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
