//! Hands slots on without the locks of their limits.
//!
//! A limit whose line is long would make all who finish under it wait for each other's commit. But
//! where as many begin as end, nothing of the limit changes except who holds which number: so
//! whoever ends a task takes the next in line along, and all of them share the limit.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, Completion, LaneId, LimitId, Result, TaskId};
use tokio_postgres::Row;

use super::PostgresInner;
use super::admission::run_follow_ups_bounded;
use super::claim::{ClaimBatch, ClaimRequest, CommittedClaim, read_claim, send_claim};
use super::claim_cursors::{LaneKey, LaneStarts};
use super::claim_probe::{open_lanes, queue_and_kind_names};
use super::claim_result::{ClaimedLease, read_task_rows};
use super::claim_sql::ClaimKind;
use super::error::TxError;
use super::finish::{CompletedBatch, complete_listed};
use super::finish_failed::{FailedBatch, may_fail_on_fast_path};
use super::hand_off_cache::{WaitCursor, WaitCursors, now};
use super::transaction::{Params, Tx, in_pipelined_transaction};
use super::working_set::FollowUp;

pub(super) const LOCK_LIMITS_SHARED_THEN_LEASES: &str =
    include_str!("queries/lock_limits_shared_then_leases.sql");
const HAND_OFF: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/hand_off_eligible.sql"),
    include_str!("queries/hand_off_start.sql"),
    include_str!("queries/record_limit_deltas.sql"),
    include_str!("queries/complete_tasks.sql"),
    include_str!("queries/hand_off_result.sql")
);
const HAND_OFF_BY_ADMISSION: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/hand_off_eligible.sql"),
    include_str!("queries/hand_off_admit.sql"),
    include_str!("queries/record_limit_deltas.sql"),
    include_str!("queries/complete_tasks.sql"),
    include_str!("queries/hand_off_admit_result.sql")
);

/// A list that is not there is empty.
fn list_or_empty(row: &Row, column: &str) -> impl Iterator<Item = i64> {
    row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default().into_iter()
}

/// The last in each line of those who left it.
fn furthest_waiters(row: &Row) -> BTreeMap<LimitId, WaitCursor> {
    let keys = list_or_empty(row, "ranks")
        .zip(list_or_empty(row, "line_tags"))
        .zip(list_or_empty(row, "places"));
    let (now, of_lines) =
        (now(), list_or_empty(row, "limits").zip(list_or_empty(row, "parked_total")));
    let mut furthest: BTreeMap<LimitId, WaitCursor> = BTreeMap::new();
    for ((limit, refused), ((rank, tag), place)) in of_lines.zip(keys) {
        let key = (rank, tag, place);
        let new = WaitCursor { parked_total: refused, key, read_at: now };
        let one = furthest.entry(LimitId(limit)).or_insert(new);
        one.key = one.key.max(key);
    }
    furthest
}

/// What is ready first in lanes.
fn first_ready_keys(row: &Row) -> BTreeMap<LaneId, LaneKey> {
    let keys = list_or_empty(row, "first_ranks")
        .zip(list_or_empty(row, "first_tags"))
        .zip(list_or_empty(row, "first_tasks"));
    let keys = keys.map(|((rank, tag), task)| (rank, tag, task));
    list_or_empty(row, "first_lanes").map(LaneId).zip(keys).collect()
}

/// Those who are ready with their slots.
fn admitted_ready_rows(row: &Row) -> Vec<ReadyRow> {
    let tasks = list_or_empty(row, "holders").zip(list_or_empty(row, "lanes"));
    let places = list_or_empty(row, "ranks").zip(list_or_empty(row, "tags"));
    let ready = |((task, lane), (rank, tag))| ReadyRow {
        task: TaskId(task),
        lane: LaneId(lane),
        rank,
        tag,
        limits_version: row.get("limits_version"),
        holds_slots: true,
        ready_at: row.get("now"),
    };
    tasks.zip(places).map(ready).collect()
}

/// Notes when the next task is due: by the look of the hand-off, and by the retries that were written after it.
fn update_due_hint(store: &PostgresInner, row: &Row, failed: Option<&FailedBatch>) {
    store.next_due.update_from_row(row);
    if let Some(failed) = failed {
        failed.update_due_hint(store);
    }
}

/// Whether a task is due, or a limit is due to be looked at.
fn has_due(row: &Row) -> bool {
    row.get::<_, Option<i64>>("next_due").is_some_and(|due| due <= row.get("now"))
}

/// What became of exits.
pub(super) enum HandOffOutcome {
    /// They are ended, and this runs instead.
    Done(CommittedClaim),
    /// These are yet to be ended, and the claim has to follow: those that hold slots or may, and those
    /// that do not. `is_refused`: some of the former could have been handed on.
    Remaining { slow: Vec<Completion>, quick: Vec<Completion>, is_refused: bool },
    /// Nothing is done: these failed attempts need the general path first. The others may be tried again.
    NotEligible { failed: Vec<Completion>, others: Vec<Completion> },
    /// These are yet to be ended: tasks wait for admission that may come before the next in line.
    AdmissionPending { completions: Vec<Completion>, is_due: bool },
}

/// Ends attempts, and goes on with the next in line. `has_new_ready`: the same call has made tasks ready, which
/// come before the next in line.
pub(super) async fn hand_off(
    store: &PostgresInner,
    exits: Vec<Completion>,
    claim: &Claim,
    has_new_ready: bool,
) -> Result<HandOffOutcome> {
    let held = store.hand_off_cache.take_held_slots(&exits);
    let (mut mine, mut rest): (Vec<_>, Vec<_>) =
        exits.into_iter().partition(|completion| held.contains_key(&completion.task));
    if mine.is_empty() {
        return Ok(HandOffOutcome::Remaining { slow: mine, quick: rest, is_refused: false });
    }
    // Where fewer are wanted than end, the next in line are ready for any worker.
    if rest.is_empty() && !has_new_ready && mine.len() <= claim.tasks_max as usize {
        let request = HandOffRequest {
            completed: CompletedBatch::new(&mine),
            cursors: store.hand_off_cache.wait_cursors(&mine, &held),
        };
        match hand_off_slots(store, &mine, request, ClaimRequest::new(store, claim)).await? {
            SlotHandOff::Done(claimed) => return Ok(HandOffOutcome::Done(claimed)),
            SlotHandOff::NotEligible(failed) => {
                return Ok(split_not_eligible(store, mine, &failed, &held));
            }
            SlotHandOff::AdmissionPending { is_due } => {
                store.hand_off_cache.restore_held_slots(&mine, &held);
                return Ok(HandOffOutcome::AdmissionPending { completions: mine, is_due });
            }
            SlotHandOff::Refused { held } => {
                let is_held = |completion: &Completion| held.contains(&completion.task.0);
                (mine, rest) = mine.into_iter().partition(is_held);
            }
        }
        if mine.is_empty() {
            return Ok(HandOffOutcome::Remaining {
                slow: rest,
                quick: Vec::new(),
                is_refused: true,
            });
        }
    }
    let baton = HandOffRequest {
        completed: CompletedBatch::new(&mine),
        cursors: store.hand_off_cache.wait_cursors(&mine, &held),
    };
    hand_off_by_admission(store, mine, rest, baton, ClaimRequest::new(store, claim), &held).await
}

/// Splits off the failed attempts that need the general path.
fn split_not_eligible(
    store: &PostgresInner,
    exits: Vec<Completion>,
    failed: &FailedBatch,
    held: &BTreeMap<TaskId, LimitId>,
) -> HandOffOutcome {
    let (others, failed) = failed.partition_by_path(exits);
    store.hand_off_cache.restore_held_slots(&others, held);
    HandOffOutcome::NotEligible { failed, others }
}

/// What is handed on.
struct HandOffRequest {
    completed: CompletedBatch,
    cursors: WaitCursors,
}

impl HandOffRequest {
    fn slot_count(&self) -> i64 {
        self.completed.tasks.len() as i64
    }
}

/// What became of a hand-off.
enum SlotHandOff {
    Done(CommittedClaim),
    NotEligible(FailedBatch),
    AdmissionPending {
        is_due: bool,
    },
    /// Nothing is done. The next in line may be admitted for these exits; for none of them where the
    /// general path has to do it.
    Refused {
        held: Vec<i64>,
    },
}

/// Everybody who ends holds a slot, and the next in line takes it over.
async fn hand_off_slots(
    store: &PostgresInner,
    exits: &[Completion],
    request: HandOffRequest,
    claim_request: ClaimRequest<'_>,
) -> Result<SlotHandOff> {
    let reply = in_pipelined_transaction!(store, tx => send_hand_off(store, &tx, exits, &request, &claim_request));
    let HandOffReply {
        attempts,
        furthest_waiters: furthest,
        open_lanes: open,
        first_ready: first,
        last_submitted_task: last_task,
        needs_recheck: is_to_look,
        claimed,
    } = match reply {
        HandOffAnswer::Done(relayed) => *relayed,
        HandOffAnswer::NotEligible(failed) => return Ok(SlotHandOff::NotEligible(failed)),
        HandOffAnswer::AdmissionPending { is_due } => {
            return Ok(SlotHandOff::AdmissionPending { is_due });
        }
        HandOffAnswer::Refused(held) => return Ok(SlotHandOff::Refused { held }),
    };
    if is_to_look {
        store.notifier.notify_local();
    }
    store.hand_off_cache.advance_cursors(furthest, &request.cursors);
    claim_request.scan.record_first_ready(&open, &first, last_task);
    let mut follow_up = FollowUp::default();
    let claim = claim_request.claim();
    let claimed = match claimed {
        Some(batch) => {
            let (claimed, windows) =
                claim_request.accept_batch(batch.with_earlier_attempts(attempts, claim));
            follow_up.job_windows = windows;
            claimed
        }
        None => {
            let is_all_there_is = attempts.len() == claim.tasks_max as usize;
            CommittedClaim { attempts, is_exhausted: is_all_there_is }
        }
    };
    run_follow_ups_bounded(store, follow_up).await;
    Ok(SlotHandOff::Done(claimed))
}

/// What the server answers to a hand-off.
enum HandOffAnswer {
    Done(Box<HandOffReply>),
    NotEligible(FailedBatch),
    AdmissionPending {
        is_due: bool,
    },
    /// With the exits for which the next in line may be admitted.
    Refused(Vec<i64>),
}

struct HandOffReply {
    attempts: Vec<Attempt>,
    /// How far they were in their lines.
    furthest_waiters: BTreeMap<LimitId, WaitCursor>,
    /// The lanes that were looked at, and what is ready first there.
    open_lanes: Vec<LaneId>,
    first_ready: BTreeMap<LaneId, LaneKey>,
    last_submitted_task: i64,
    /// Whether somebody has to look a moment later, whoever was told that there is nothing.
    needs_recheck: bool,
    /// What was claimed beside; none where the claim has to follow.
    claimed: Option<ClaimBatch>,
}

/// Sends the locks; and where some attempts failed, waits until it is decided about them.
async fn lock_and_decide(
    store: &PostgresInner,
    tx: &Tx<'_>,
    exits: &[Completion],
    leases: &Vec<i64>,
    cursors: &WaitCursors,
) -> Result<FailedBatch, TxError> {
    let (_, failed) = tokio::try_join!(biased;
        lock_limits_and_leases(store, tx, leases, cursors),
        FailedBatch::decide(store, tx, exits),
    )?;
    Ok(failed)
}

/// All in one round trip; in two if some attempts failed.
async fn send_hand_off(
    store: &PostgresInner,
    tx: &Tx<'_>,
    exits: &[Completion],
    baton: &HandOffRequest,
    pick: &ClaimRequest<'_>,
) -> Result<HandOffAnswer, TxError> {
    let mut failed = None;
    if exits.iter().any(may_fail_on_fast_path) {
        let decided =
            lock_and_decide(store, tx, exits, &baton.completed.leases, &baton.cursors).await?;
        if !decided.partition_by_path(exits.to_vec()).1.is_empty() {
            return Ok(HandOffAnswer::NotEligible(decided));
        }
        failed = Some(decided);
    }
    let wanted = i64::from(pick.claim().tasks_max);
    let claim_in_same_tx = (wanted > baton.slot_count()).then_some(pick);
    let LaneStarts { lanes, ranks, tags, tasks } = &pick.scan.starts;
    let order: Params<'_> = &[lanes, ranks, tags, tasks];
    let asked = ClaimParams::new(pick, queue_and_kind_names(Some(pick.claim())).1);
    let (_, relayed, (), claimed, bodies, ()) = tokio::try_join!(biased;
        lock_unless_decided(store, tx, failed.as_ref(), &baton.completed.leases, &baton.cursors),
        query_hand_off(store, tx, HAND_OFF, baton, &asked, order),
        write_failed(tx, failed.as_ref()),
        send_claim(store, tx, claim_in_same_tx, ClaimKind::General),
        read_task_rows(tx),
        tx.commit(),
    )?;
    update_due_hint(store, &relayed, failed.as_ref());
    if !relayed.get::<_, bool>("is_on") {
        if relayed.get("has_gate_work") {
            return Ok(HandOffAnswer::AdmissionPending { is_due: has_due(&relayed) });
        }
        return Ok(HandOffAnswer::Refused(list_or_empty(&relayed, "held").collect()));
    }
    let leased = ClaimedLease::from_row(&relayed)?;
    let attempts = leased.map(|leased| leased.into_attempts(&bodies)).transpose()?;
    let claimed = claimed.map(|row| read_claim(store, &row, &bodies, pick)).transpose()?;
    Ok(HandOffAnswer::Done(Box::new(HandOffReply {
        attempts: attempts.unwrap_or_default(),
        furthest_waiters: furthest_waiters(&relayed),
        open_lanes: open_lanes(&relayed),
        first_ready: first_ready_keys(&relayed),
        last_submitted_task: relayed.get("last_task"),
        needs_recheck: relayed.get("has_recheck"),
        claimed: claimed.flatten(),
    })))
}

/// Takes the locks, unless they were taken to decide about failed attempts.
async fn lock_unless_decided(
    store: &PostgresInner,
    tx: &Tx<'_>,
    failed: Option<&FailedBatch>,
    leases: &Vec<i64>,
    lines: &WaitCursors,
) -> Result<(), TxError> {
    match failed {
        Some(_) => Ok(()),
        None => lock_limits_and_leases(store, tx, leases, lines).await.map(drop),
    }
}

async fn write_failed(tx: &Tx<'_>, failed: Option<&FailedBatch>) -> Result<(), TxError> {
    match failed {
        Some(failed) => failed.write_decisions(tx).await,
        None => Ok(()),
    }
}

/// Others end beside those who hold slots, so a claim goes along that takes whoever is first: the next in
/// line are let in before it.
async fn hand_off_by_admission(
    store: &PostgresInner,
    slot_holders: Vec<Completion>,
    without_slots: Vec<Completion>,
    baton: HandOffRequest,
    pick: ClaimRequest<'_>,
    held: &BTreeMap<TaskId, LimitId>,
) -> Result<HandOffOutcome> {
    let others = CompletedBatch::new(&without_slots);
    let exits: Vec<Completion> = slot_holders.iter().chain(&without_slots).cloned().collect();
    let admission = in_pipelined_transaction!(store, tx => send_hand_off_by_admission(store, &tx, &exits, &baton, &others, &pick));
    let HandOffAdmissionReply { reply: relayed, completed: ended, claimed } = match admission {
        Ok(admission) => admission,
        Err(failed) => return Ok(split_not_eligible(store, exits, &failed, held)),
    };
    let mut slow: Vec<Completion> =
        without_slots.into_iter().filter(|exit| !ended.contains(&exit.task)).collect();
    let is_refused = !relayed.get::<_, bool>("is_on");
    if is_refused && relayed.get("has_gate_work") {
        store.hand_off_cache.restore_held_slots(&slot_holders, held);
        slow.extend(slot_holders);
        return Ok(HandOffOutcome::AdmissionPending {
            completions: slow,
            is_due: has_due(&relayed),
        });
    }
    let mut left = FollowUp::default();
    if !is_refused {
        store.hand_off_cache.advance_cursors(furthest_waiters(&relayed), &baton.cursors);
        left.first_new_ready = admitted_ready_rows(&relayed);
        if relayed.get("has_recheck") {
            store.notifier.notify_local();
        }
    } else {
        slow.extend(slot_holders);
    }
    let settled = claimed.map(|mut batch| {
        let tasks = batch.task_ids();
        batch.expect_slot_holders(&left.first_new_ready);
        left.first_new_ready.retain(|row| !tasks.contains(&row.task));
        let (claimed, windows) = pick.accept_batch(batch);
        left.job_windows = windows;
        claimed
    });
    left.notify_others = !left.first_new_ready.is_empty();
    run_follow_ups_bounded(store, left).await;
    Ok(match settled {
        Some(claimed) => HandOffOutcome::Done(claimed),
        None => HandOffOutcome::Remaining { slow, quick: Vec::new(), is_refused },
    })
}

struct HandOffAdmissionReply {
    /// What became of those who hold slots.
    reply: Row,
    /// Which of the others are ended.
    completed: BTreeSet<TaskId>,
    /// None where the claim has to follow.
    claimed: Option<ClaimBatch>,
}

/// All in one round trip; in two if some attempts failed. Gives the decisions about these, and does
/// nothing, where one of them needs the general path.
async fn send_hand_off_by_admission(
    store: &PostgresInner,
    tx: &Tx<'_>,
    exits: &[Completion],
    baton: &HandOffRequest,
    others: &CompletedBatch,
    claim_request: &ClaimRequest<'_>,
) -> Result<Result<HandOffAdmissionReply, FailedBatch>, TxError> {
    let leases: BTreeSet<i64> =
        baton.completed.leases.iter().chain(&others.leases).copied().collect();
    let leases: Vec<i64> = leases.into_iter().collect();
    let mut failed = None;
    if exits.iter().any(may_fail_on_fast_path) {
        let decided = lock_and_decide(store, tx, exits, &leases, &baton.cursors).await?;
        if !decided.partition_by_path(exits.to_vec()).1.is_empty() {
            return Ok(Err(decided));
        }
        failed = Some(decided);
    }
    // Only the lanes of those next in line matter.
    let kinds =
        claim_request.claim().kinds.iter().filter(|kind| baton.cursors.kinds.contains(*kind));
    let asked = ClaimParams::new(claim_request, kinds.map(|kind| &**kind).collect());
    let (_, relayed, ended, (), claimed, bodies, ()) = tokio::try_join!(biased;
        lock_unless_decided(store, tx, failed.as_ref(), &leases, &baton.cursors),
        query_hand_off(store, tx, HAND_OFF_BY_ADMISSION, baton, &asked, &[]),
        complete_listed(store, tx, others),
        write_failed(tx, failed.as_ref()),
        send_claim(store, tx, Some(claim_request), ClaimKind::AfterAdmission),
        read_task_rows(tx),
        tx.commit(),
    )?;
    update_due_hint(store, &relayed, failed.as_ref());
    // A claim that found exits before it has not looked at all.
    let is_all = relayed.get("is_on") && ended.len() == others.tasks.len();
    let claimed = claimed.filter(|_| is_all);
    let claimed = claimed.map(|row| read_claim(store, &row, &bodies, claim_request)).transpose()?;
    Ok(Ok(HandOffAdmissionReply { reply: relayed, completed: ended, claimed: claimed.flatten() }))
}

async fn lock_limits_and_leases(
    store: &PostgresInner,
    tx: &Tx<'_>,
    leases: &Vec<i64>,
    lines: &WaitCursors,
) -> Result<Vec<Row>, TxError> {
    tx.query(store.options.hold_limits_sql(), &[leases, &lines.lock_buckets()]).await
}

/// Who asks, and for which of its kinds.
struct ClaimParams<'a> {
    claim: &'a Claim,
    kinds: Vec<&'a str>,
    inbox_from: i64,
}

impl<'a> ClaimParams<'a> {
    fn new(pick: &ClaimRequest<'a>, kinds: Vec<&'a str>) -> Self {
        Self { claim: pick.claim(), kinds, inbox_from: pick.scan.inbox_from }
    }
}

/// What both texts are about.
async fn query_hand_off(
    store: &PostgresInner,
    tx: &Tx<'_>,
    sql: &'static str,
    baton: &HandOffRequest,
    claim_params: &ClaimParams<'_>,
    more: Params<'_>,
) -> Result<Row, TxError> {
    let HandOffRequest {
        completed: CompletedBatch { tasks, tokens, results, leases },
        cursors: lines,
    } = baton;
    let ClaimParams { claim, kinds, inbox_from: arrived_from } = claim_params;
    let (queues, _) = queue_and_kind_names(Some(claim));
    let (worker, now, slots) = (&*claim.worker.0, store.options.now_override(), baton.slot_count());
    let params: Params<'_> = &[
        &queues,
        kinds,
        &worker,
        &claim.lease_ms,
        &now,
        arrived_from,
        tasks,
        tokens,
        results,
        leases,
        &slots,
        &lines.limits,
        &lines.parked_totals,
        &lines.ranks,
        &lines.tags,
        &lines.places,
    ];
    tx.query_one(sql, &[params, more].concat()).await
}
