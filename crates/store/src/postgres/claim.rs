//! Hands out ready tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::request_stats::{FallbackReason, RequestPath};
use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, LaneId, LimitId, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::admission::{admit_before_claim, run_follow_ups_bounded};
use super::call::{self, Verb};
use super::claim_cursors::{ClaimScan, LaneKey, LaneStarts, ScanResult};
use super::claim_probe::{
    ClaimProbe, last_submitted_task, open_lanes, probe, probe_idle, queue_and_kind_names,
};
use super::claim_result::{ClaimedLease, TaskRows, read_task_rows};
use super::claim_sql::ClaimKind;
use super::due::{NewlyReady, admit_expected_due};
use super::error::{TxError, log_after_commit};
use super::notifications::IdleAnswer;
use super::readmit_stale::StaleTasks;
use super::transaction::{Params, Tx, in_pipelined_transaction, run_once, with_autocommit};
use super::working_set::FollowUp;
use super::{InjectedBug, PostgresInner, in_transaction};

const LOCK_LIMITS_VERSION_SHARED: &str = include_str!("queries/lock_limits_version_shared.sql");
const PUT_WORKER_AND_LANES: &str = include_str!("queries/put_worker_and_lanes.sql");

/// Steps in which a claim may send back what a younger limit applies to, at most, and how many of them
/// are only about those that it met.
const READMIT_STEPS_MAX: u32 = 100;
const READMIT_SMALL_STEPS_MAX: u32 = 32;

/// Lanes that a claim reads at most; a worker that serves more is given of others each time.
const LANES_MAX: usize = 512;

/// One statement in one round trip, where nothing waits at the gate.
pub(super) async fn claim(store: &PostgresInner, claim: Claim) -> Result<Vec<Attempt>> {
    claim.check()?;
    let claimed = claim_once(store, &claim).await?;
    Ok(claim_remaining(store, claim, claimed).await)
}

/// Takes what else there is, where fewer were found than are wanted and not all was looked at.
pub(super) async fn claim_remaining(
    store: &PostgresInner,
    mut claim: Claim,
    first_claim: CommittedClaim,
) -> Vec<Attempt> {
    let CommittedClaim { mut attempts, is_exhausted: mut is_all_there_is } = first_claim;
    let wanted = claim.tasks_max as usize;
    while !is_all_there_is && attempts.len() < wanted {
        claim.tasks_max = (wanted - attempts.len()) as u32;
        let more = match claim_once(store, &claim).await {
            Ok(more) => more,
            Err(error) => {
                // The attempts so far are committed: the worker has to get them.
                log_after_commit("claim of more tasks", &error);
                break;
            }
        };
        is_all_there_is = more.attempts.is_empty() || more.is_exhausted;
        attempts.extend(more.attempts);
    }
    attempts
}

async fn claim_once(store: &PostgresInner, claim: &Claim) -> Result<CommittedClaim> {
    call::record_path(Verb::Claim, RequestPath::Fast);
    let news = match store.notifier.idle_answer(Some(claim)) {
        IdleAnswer::StillIdle => return Ok(CommittedClaim::default()),
        IdleAnswer::ProbeNeeded(news) if probe_is_idle(store, claim, news).await? => {
            return Ok(CommittedClaim::default());
        }
        IdleAnswer::ProbeNeeded(news) | IdleAnswer::ClaimNeeded(news) => news,
    };
    let mut new = admit_expected_due(store, 0).await;
    let claimed = claim_ready(store, claim, news, &mut new).await?;
    new.remove_claimed(&claimed.attempts);
    Ok(claimed)
}

/// Takes ready tasks, and where there are none, those that admission makes ready.
async fn claim_ready(
    store: &PostgresInner,
    claim: &Claim,
    change_count: u64,
    newly_ready: &mut NewlyReady<'_>,
) -> Result<CommittedClaim> {
    let mut request = ClaimRequest::new(store, claim);
    let mut taken = claim_ready_once(store, &mut request).await?;
    let mut at_gate = None;
    if let ClaimStep::Empty(view, _) = &taken
        && view.has_due()
    {
        at_gate = newly_ready.admit_due_before_claim(claim).await?;
        if at_gate.is_none() {
            request.scan = store.claim_cursors.start_scan();
            taken = claim_ready_once(store, &mut request).await?;
        }
    }
    let ClaimStep::Empty(view, took) = taken else {
        return claim_until_settled(store, request, taken).await;
    };
    let is_complete = request.closed_lanes.is_empty() && request.scan.is_complete(&view.open_lanes);
    let has_looked = view.is_worker_recorded && !view.needs_admission();
    if has_looked {
        let (open, last_task) =
            (request.without_closed_lanes(view.open_lanes.clone()), view.last_submitted_task);
        request.scan.record_result(ScanResult {
            open_lanes: open,
            server_time: took,
            is_exhausted: true,
            last_submitted_task: last_task,
            ..ScanResult::default()
        });
    }
    if !request.closed_lanes.is_empty() {
        // There may be more than the worker is told of.
        store.notifier.notify_local();
    }
    let is_thorough = !request.scan.rescan_from_start(&view.open_lanes);
    if !view.is_worker_recorded {
        call::record_fallback(Verb::Claim, FallbackReason::WorkerNotRecorded);
        in_transaction!(store, tx => record_worker_and_lanes(&tx, claim, &view));
    }
    if view.needs_admission() {
        call::record_fallback(Verb::Claim, FallbackReason::AdmissionPending);
        admit_before_claim(store, claim, at_gate).await?;
        // What has come through the gate may be anywhere.
        request.scan = store.claim_cursors.start_scan();
    } else if view.is_worker_recorded && is_thorough {
        if is_complete {
            store.notifier.record_idle(Some(claim), change_count, view.due_in());
        }
        return Ok(CommittedClaim::default());
    }
    claim_until_settled(store, request, ClaimStep::Retry).await
}

/// Takes ready tasks, if nothing waits for admission.
async fn claim_ready_once(
    store: &PostgresInner,
    request: &mut ClaimRequest<'_>,
) -> Result<ClaimStep> {
    let mut taken = in_pipelined_transaction!(store, tx => claim_and_commit(store, &tx, request));
    if let ClaimStep::MoreLanes(open) = &taken {
        call::record_fallback(Verb::Claim, FallbackReason::ManyQueues);
        request.widen_lanes(open);
        taken = in_pipelined_transaction!(store, tx => claim_and_commit(store, &tx, request));
    }
    if matches!(taken, ClaimStep::Empty(..)) && std::mem::take(&mut request.scan.inbox_from) > 0 {
        // The claim reports an empty result only after it has examined every submitted task.
        taken = in_pipelined_transaction!(store, tx => claim_and_commit(store, &tx, request));
    }
    Ok(taken)
}

/// A look of a worker that had nothing to do: whether that is still so.
async fn probe_is_idle(store: &PostgresInner, claim: &Claim, change_count: u64) -> Result<bool> {
    let (view, has_ready) = with_autocommit!(store, tx => probe_idle(store, &tx, claim));
    if has_ready || view.needs_admission() {
        return Ok(false);
    }
    if !view.is_worker_recorded {
        in_transaction!(store, tx => record_worker_and_lanes(&tx, claim, &view));
    }
    store.notifier.record_idle(Some(claim), change_count, view.due_in());
    Ok(true)
}

/// Claims until there is nothing in the way.
async fn claim_until_settled(
    store: &PostgresInner,
    mut pick: ClaimRequest<'_>,
    mut step: ClaimStep,
) -> Result<CommittedClaim> {
    pick.ignores_pending_admission = true;
    let mut steps = 0;
    loop {
        match step {
            ClaimStep::Claimed(batch) => {
                if !pick.scan.expects_fast_only {
                    call::record_fallback(Verb::Claim, FallbackReason::TasksHoldSlots);
                }
                let (claimed, windows) = pick.accept_batch(batch);
                run_follow_ups_bounded(
                    store,
                    FollowUp { job_windows: windows, ..FollowUp::default() },
                )
                .await;
                return Ok(claimed);
            }
            ClaimStep::Empty(view, took) => {
                let ClaimProbe { open_lanes: open, last_submitted_task: last_task, .. } = view;
                let read = pick.without_closed_lanes(open.clone());
                pick.scan.record_result(ScanResult {
                    open_lanes: read,
                    server_time: took,
                    is_exhausted: true,
                    last_submitted_task: last_task,
                    ..ScanResult::default()
                });
                if !pick.scan.rescan_from_start(&open) {
                    if !pick.closed_lanes.is_empty() {
                        // There may be more than the worker is told of.
                        store.notifier.notify_local();
                    }
                    return Ok(CommittedClaim::default());
                }
            }
            ClaimStep::MoreLanes(open) => pick.widen_lanes(&open),
            ClaimStep::NotFastEligible => {
                store.claim_cursors.expect_general_claims();
                pick.scan.expects_fast_only = false;
            }
            ClaimStep::Retry => {}
            ClaimStep::Stale(stale) => {
                call::record_fallback(Verb::Claim, FallbackReason::NewLimit);
                store.claim_cursors.expect_general_claims();
                steps += 1;
                if steps <= READMIT_STEPS_MAX && store.readmit_throttle.may_step() {
                    let is_many =
                        steps > READMIT_SMALL_STEPS_MAX || store.readmit_throttle.is_bulk();
                    let way = is_many.then_some(&pick.scan.starts);
                    store.readmit_throttle.run_step(store, &stale, way).await?;
                } else if std::mem::replace(&mut pick.skips_stale, true) {
                    // They do not hold up the others.
                    store.readmit_throttle.close_lanes(&stale.lanes);
                    if pick.close_stale_lanes(stale) {
                        store.notifier.notify_local();
                        return Ok(CommittedClaim::default());
                    }
                }
                pick.scan = store.claim_cursors.start_scan();
            }
        }
        step = in_pipelined_transaction!(store, tx => claim_and_commit(store, &tx, &pick));
    }
}

/// What a claim asks for.
#[derive(Debug)]
pub(super) struct ClaimRequest<'a> {
    claim: &'a Claim,
    pub(super) scan: ClaimScan<'a>,
    /// Whatever waits at the gate.
    ignores_pending_admission: bool,
    /// Whatever else there is that a younger limit applies to.
    skips_stale: bool,
    /// Lanes that are left out.
    closed_lanes: Vec<i64>,
    /// How many there may be besides.
    lanes_expected: usize,
}

impl<'a> ClaimRequest<'a> {
    pub(super) fn new(store: &'a PostgresInner, claim: &'a Claim) -> Self {
        let scan = store.claim_cursors.start_scan();
        let lanes_expected = scan.lanes_expected.min(lane_count_max(claim)).min(LANES_MAX);
        let closed_lanes = store.readmit_throttle.closed_lanes();
        let skips_stale = !store.readmit_throttle.may_step();
        Self {
            claim,
            scan,
            ignores_pending_admission: false,
            skips_stale,
            closed_lanes,
            lanes_expected,
        }
    }

    /// There are more lanes than were reckoned with. Where they are too many, some are left out, and
    /// others the next time.
    fn widen_lanes(&mut self, open: &[LaneId]) {
        let mut open = self.without_closed_lanes(open.to_vec());
        self.lanes_expected = open.len().min(LANES_MAX);
        if open.len() > LANES_MAX {
            let first = self.scan.next_lane_rotation(open.len(), LANES_MAX);
            open.rotate_left(first);
            self.closed_lanes.extend(open[LANES_MAX..].iter().map(|lane| lane.0));
        }
    }

    /// Leaves out the lanes of these, and says whether no others are left.
    fn close_stale_lanes(&mut self, stale: StaleTasks) -> bool {
        self.closed_lanes.extend(stale.lanes);
        self.without_closed_lanes(stale.open_lanes).is_empty()
    }

    /// The lanes it has read of those that are open.
    fn without_closed_lanes(&self, mut open: Vec<LaneId>) -> Vec<LaneId> {
        open.retain(|lane| !self.closed_lanes.contains(&lane.0));
        open
    }

    /// The same, whatever waits at the gate.
    pub(super) fn ignoring_pending_admission(store: &'a PostgresInner, claim: &'a Claim) -> Self {
        Self { ignores_pending_admission: true, ..Self::new(store, claim) }
    }

    pub(super) fn claim(&self) -> &'a Claim {
        self.claim
    }

    /// What was taken is committed; gives also the jobs whose windows it left.
    pub(super) fn accept_batch(&self, batch: ClaimBatch) -> (CommittedClaim, Vec<LimitId>) {
        let ScanResult { open_lanes: open, is_exhausted: is_all, .. } = &batch.scan_result;
        let is_behind = self.scan.inbox_from > 0 || !self.scan.is_thorough(open);
        let has_left_some = batch.has_skipped_stale || !self.closed_lanes.is_empty();
        let is_all_there_is = !(has_left_some || *is_all && (is_behind || batch.has_due));
        self.scan.record_result(batch.scan_result);
        (
            CommittedClaim { attempts: batch.attempts, is_exhausted: is_all_there_is },
            batch.job_windows,
        )
    }
}

/// The lanes that a claim may be about.
fn lane_count_max(claim: &Claim) -> usize {
    (claim.queues.len() * claim.kinds.len()).max(1)
}

/// Tasks that are taken and committed.
#[derive(Debug)]
pub(super) struct CommittedClaim {
    pub(super) attempts: Vec<Attempt>,
    /// As many as were wanted, or all that there are.
    pub(super) is_exhausted: bool,
}

impl Default for CommittedClaim {
    fn default() -> Self {
        Self { attempts: Vec::new(), is_exhausted: true }
    }
}

/// Tasks that are taken.
#[derive(Debug)]
pub(super) struct ClaimBatch {
    attempts: Vec<Attempt>,
    /// The jobs whose windows they left.
    job_windows: Vec<LimitId>,
    /// Some that a younger limit applies to were left.
    has_skipped_stale: bool,
    /// A task is due that this claim has passed.
    has_due: bool,
    scan_result: ScanResult,
}

impl ClaimBatch {
    pub(super) fn task_ids(&self) -> BTreeSet<TaskId> {
        self.attempts.iter().map(|attempt| attempt.task).collect()
    }

    fn from_row(
        row: &Row,
        lease: ClaimedLease,
        task_rows: &TaskRows,
        pick: &ClaimRequest<'_>,
    ) -> Result<Self> {
        let attempts = lease.into_attempts(task_rows)?;
        let (mut last, stale) = (last_key_of_each_lane(row), StaleTasks::from_row(row));
        // The next claim begins before those that were left.
        last.retain(|lane, _| !stale.lanes.contains(&lane.0));
        let found = ScanResult {
            open_lanes: pick.without_closed_lanes(open_lanes(row)),
            last_keys: last,
            is_exhausted: stale.tasks.is_empty() && attempts.len() < pick.claim.tasks_max as usize,
            has_special: row.get("has_special"),
            last_submitted_task: last_submitted_task(row),
            server_time: server_time(row),
        };
        let windows: Vec<i64> = row.get("windows");
        let windows = windows.into_iter().map(LimitId).collect();
        let (has_left_some, has_due) =
            (!stale.tasks.is_empty(), ClaimProbe::from_row(row).has_due());
        Ok(Self {
            attempts,
            job_windows: windows,
            has_skipped_stale: has_left_some,
            has_due,
            scan_result: found,
        })
    }

    /// These with slots were to be met; others would be special.
    pub(super) fn expect_slot_holders(&mut self, ready: &[ReadyRow]) {
        let is_expected = |task: TaskId| ready.iter().any(|row| row.task == task);
        let mut held = self.attempts.iter().filter(|attempt| !attempt.slots.is_empty());
        self.scan_result.has_special = held.any(|attempt| !is_expected(attempt.task));
    }

    /// The same behind others that the worker has got already.
    pub(super) fn with_earlier_attempts(mut self, mut others: Vec<Attempt>, claim: &Claim) -> Self {
        others.append(&mut self.attempts);
        self.scan_result.is_exhausted &= others.len() < claim.tasks_max as usize;
        self.attempts = others;
        self
    }

    fn empty(probe_result: ClaimProbe, took: Duration) -> Self {
        let has_due = probe_result.has_due();
        let ClaimProbe { open_lanes: open, last_submitted_task: last_task, .. } = probe_result;
        let scan_result = ScanResult {
            open_lanes: open,
            is_exhausted: true,
            server_time: took,
            last_submitted_task: last_task,
            ..ScanResult::default()
        };
        Self {
            attempts: Vec::new(),
            job_windows: Vec::new(),
            has_skipped_stale: false,
            has_due,
            scan_result,
        }
    }
}

/// The last that was picked of each lane.
fn last_key_of_each_lane(row: &Row) -> BTreeMap<LaneId, LaneKey> {
    let list = |column: &str| row.get::<_, Vec<i64>>(column).into_iter();
    let keys = list("ranks").zip(list("tags")).zip(list("tasks"));
    let keys = keys.map(|((rank, tag), task)| (rank, tag, task));
    list("lanes").map(LaneId).zip(keys).collect()
}

/// How long the server took.
fn server_time(row: &Row) -> Duration {
    Duration::from_micros(row.get::<_, i64>("took_us").unsigned_abs())
}

/// What came of it.
#[derive(Debug)]
enum ClaimStep {
    Claimed(ClaimBatch),
    /// What was seen, and how long it took.
    Empty(ClaimProbe, Duration),
    Stale(StaleTasks),
    /// There are some that are not plain.
    NotFastEligible,
    /// More lanes are open, these, than were reckoned with.
    MoreLanes(Vec<LaneId>),
    /// The gate was in the way.
    Retry,
}

impl ClaimStep {
    fn from_row(row: &Row, bodies: &TaskRows, pick: &ClaimRequest<'_>) -> Result<Self> {
        if let Some(leased) = ClaimedLease::from_row(row)? {
            return ClaimBatch::from_row(row, leased, bodies, pick).map(Self::Claimed);
        }
        let stale = StaleTasks::from_row(row);
        if !stale.tasks.is_empty() {
            return Ok(Self::Stale(stale));
        }
        if row.get::<_, Option<Vec<i64>>>("tasks").is_some() {
            return Ok(Self::NotFastEligible);
        }
        let view = ClaimProbe::from_row(row);
        let is_read =
            view.is_worker_recorded && (pick.ignores_pending_admission || !view.has_admission_work);
        if is_read && pick.without_closed_lanes(view.open_lanes.clone()).len() > pick.lanes_expected
        {
            return Ok(Self::MoreLanes(view.open_lanes));
        }
        Ok(Self::Empty(view, server_time(row)))
    }
}

/// Notes that the worker lives and what it serves, in a transaction of its own.
async fn record_worker_and_lanes(
    tx: &Tx<'_>,
    claim: &Claim,
    probe_result: &ClaimProbe,
) -> Result<(), TxError> {
    let alive_until = probe_result.start.now + claim.lease_ms;
    let open: Vec<i64> = probe_result.open_lanes.iter().map(|lane| lane.0).collect();
    tx.execute(PUT_WORKER_AND_LANES, &[&&*claim.worker.0, &alive_until, &open]).await?;
    Ok(())
}

/// Notes what a worker asks for before a transaction that needs it noted.
pub(super) async fn record_worker(store: &PostgresInner, claim: &Claim) -> Result<()> {
    let note = async |tx: &Tx<'_>| {
        let view = probe(store, tx, Some(claim)).await?;
        record_worker_and_lanes(tx, claim, &view).await?;
        tx.commit().await
    };
    let noted = run_once!(store, request_connection, begin, tx => note(&tx));
    Ok(noted?)
}

/// For a heartbeat: the worker lives.
pub(super) async fn record_worker_alive(
    tx: &Tx<'_>,
    worker: &str,
    alive_until: Millis,
) -> Result<(), TxError> {
    let none: [i64; 0] = [];
    tx.execute(PUT_WORKER_AND_LANES, &[&worker, &alive_until, &&none[..]]).await?;
    Ok(())
}

async fn claim_and_commit(
    store: &PostgresInner,
    tx: &Tx<'_>,
    pick: &ClaimRequest<'_>,
) -> Result<ClaimStep, TxError> {
    let ((), taken, ()) = tokio::try_join!(biased;
        lock_limits_version_shared(store, tx),
        run_claim(store, tx, pick, &pick.scan.starts),
        tx.commit(),
    )?;
    Ok(taken)
}

async fn run_claim(
    store: &PostgresInner,
    tx: &Tx<'_>,
    pick: &ClaimRequest<'_>,
    starts: &LaneStarts,
) -> Result<ClaimStep, TxError> {
    let sort = if pick.scan.expects_fast_only { ClaimKind::Fast } else { ClaimKind::General };
    let (row, bodies) =
        tokio::try_join!(biased; query_claim(store, tx, pick, starts, sort), read_task_rows(tx))?;
    Ok(ClaimStep::from_row(&row, &bodies, pick)?)
}

/// Gives the row that tells what came of it.
async fn query_claim(
    store: &PostgresInner,
    tx: &Tx<'_>,
    pick: &ClaimRequest<'_>,
    from: &LaneStarts,
    kind: ClaimKind,
) -> Result<Row, TxError> {
    let sql = store.options.claim_sql().for_lanes(pick.lanes_expected, kind);
    let (queues, kinds) = queue_and_kind_names(Some(pick.claim));
    let Claim { worker, tasks_max, lease_ms, .. } = pick.claim;
    let (worker, wanted, now) = (&*worker.0, i64::from(*tasks_max), store.options.now_override());
    let ClaimRequest {
        ignores_pending_admission: is_told_to,
        skips_stale: takes_rest,
        closed_lanes: closed,
        ..
    } = pick;
    let LaneStarts { lanes, ranks, tags, tasks } = from;
    let lanes_max = pick.lanes_expected as i64;
    let params: Params<'_> = &[
        &queues,
        &kinds,
        &worker,
        lease_ms,
        &now,
        &pick.scan.inbox_from,
        &wanted,
        is_told_to,
        closed,
        lanes,
        ranks,
        tags,
        tasks,
        &lanes_max,
        takes_rest,
    ];
    let row = tx.query_one(sql, params).await?;
    store.claim_cursors.observe_lane_count(open_lanes(&row).len());
    store.next_due.update_from_row(&row);
    Ok(row)
}

/// No limit begins from here to the end of the transaction.
pub(super) async fn lock_limits_version_shared(
    store: &PostgresInner,
    tx: &Tx<'_>,
) -> Result<(), TxError> {
    if store.options.is_injected(InjectedBug::LimitsVersionUnlocked) {
        return Ok(());
    }
    tx.query(LOCK_LIMITS_VERSION_SHARED, &[]).await.map(drop)
}

/// The claim that goes with exits, in their transaction. None where it has to follow: something
/// waits at the gate, or a limit has begun that the tasks have to go back for. `new` are the first of
/// each lane that the same transaction has made ready.
pub(super) async fn claim_in_tx(
    store: &PostgresInner,
    tx: &Tx<'_>,
    pick: Option<&ClaimRequest<'_>>,
    new: &[ReadyRow],
) -> Result<Option<ClaimBatch>, TxError> {
    let Some(request) = pick else {
        return Ok(None);
    };
    let from = request.scan.starts.not_after(new);
    Ok(accept_claim_step(store, run_claim(store, tx, request, &from).await?, request))
}

fn accept_claim_step(
    store: &PostgresInner,
    taken: ClaimStep,
    pick: &ClaimRequest<'_>,
) -> Option<ClaimBatch> {
    match taken {
        ClaimStep::Claimed(batch) => Some(batch),
        ClaimStep::NotFastEligible => {
            store.claim_cursors.expect_general_claims();
            None
        }
        ClaimStep::Empty(view, took)
            if pick.ignores_pending_admission
                || view.is_worker_recorded && !view.has_admission_work =>
        {
            Some(ClaimBatch::empty(view, took))
        }
        _ => None,
    }
}

/// The same where the bodies are asked for once, for this and for what the transaction has done before.
pub(super) async fn send_claim(
    store: &PostgresInner,
    tx: &Tx<'_>,
    pick: Option<&ClaimRequest<'_>>,
    sort: ClaimKind,
) -> Result<Option<Row>, TxError> {
    match pick {
        Some(pick) => query_claim(store, tx, pick, &pick.scan.starts, sort).await.map(Some),
        None => Ok(None),
    }
}

/// What came of it.
pub(super) fn read_claim(
    store: &PostgresInner,
    row: &Row,
    bodies: &TaskRows,
    pick: &ClaimRequest<'_>,
) -> Result<Option<ClaimBatch>> {
    Ok(accept_claim_step(store, ClaimStep::from_row(row, bodies, pick)?, pick))
}
