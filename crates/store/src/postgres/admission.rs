//! Lets what waits at the gate through, in transactions of bounded size.

use std::collections::BTreeSet;

use tidegate_core::bounds::{ADMISSION_BATCH_MAX, JOB_WINDOW_SIZE};
use tidegate_core::rules::admission::{self, Admission};
use tidegate_core::tables::{Position, ReadyRow, Tables};
use tidegate_core::{AdmitReply, Claim, LimitId, Result, TaskId};

use super::call;
use super::claim_probe::{PendingAdmission, read_pending_admission};
use super::due::admit_due_and_probe;
use super::error::{TxError, ignore_unavailable, log_after_commit};
use super::notifications::IdleAnswer;
use super::rows;
use super::sized_sql::SizedSql;
use super::transaction::{Params, Tx, in_pipelined_transaction, with_autocommit};
use super::working_set::{FollowUp, WorkingSet};
use super::working_set_load::{LoadRequest, TxStart, lock_and_load, read_tx_start};
use super::working_set_write::write_changes_and_commit;
use super::{InjectedBug, PostgresInner};

const TRY_ADMISSION_LOCK: &str = include_str!("queries/try_admission_lock.sql");
const FULL_WINDOWS: &str = include_str!("queries/full_windows.sql");
const LOCK_DUE_TASKS: &str = include_str!("queries/lock_due_tasks.sql");
const LOCK_INBOX_HEAD: &str = include_str!("queries/lock_inbox_head.sql");
static READY_HOLDERS: SizedSql = SizedSql::new(include_str!("queries/ready_holders.sql"));
const LOCK_READY_TASKS: &str = include_str!("queries/lock_ready_tasks.sql");
const LOCK_INBOX_OF_JOBS: &str = include_str!("queries/lock_inbox_of_jobs.sql");

/// Tasks the gate looks at in the lines in one transaction.
pub(super) const ADMISSION_BUDGET: u32 = 16;

/// The same in a transaction that only drains lines.
const FOLLOW_UP_BUDGET: u32 = 250;

/// Due tasks, and as many arrivals, that come to the gate in one transaction at most.
const INBOX_TASKS_MAX: usize = 1000;

/// Transactions that follow one verb at most; what is left then is taken up by claims.
const FOLLOW_UP_ROUNDS_MAX: u32 = 1000;

/// The same behind a claim.
const FOLLOW_UP_ROUNDS_AFTER_CLAIM_MAX: u32 = 4;

/// The name of these transactions in events.
const FOLLOW_UP_STEP_NAME: &str = "admission behind a commit";

/// Of these, how many look again at windows they filled themselves: while others claim as fast
/// as this one fills, it is they who go on.
const WINDOW_ROUNDS_MAX: u32 = 4;

pub(super) async fn admit(store: &PostgresInner) -> Result<AdmitReply> {
    let mut admitted = AdmitReply::default();
    let news = match store.notifier.idle_answer(None) {
        IdleAnswer::StillIdle => return Ok(admitted),
        IdleAnswer::ProbeNeeded(news) | IdleAnswer::ClaimNeeded(news) => news,
    };
    // The fast path for due tasks goes along, and the look shows what it has left.
    let (due, view, at_gate) = admit_due_and_probe(store).await?;
    (admitted.ready, admitted.parked) = (due.ready, due.parked);
    drop(due);
    if !view.needs_admission() {
        store.notifier.record_idle(None, news, view.due_in());
        return Ok(admitted);
    }
    run_follow_ups(store, FollowUp { dirty_limits: at_gate.dirty_limits, ..FollowUp::default() })
        .await?;
    if at_gate.has_inbox_tasks {
        admitted = admit_inbox(store, admitted).await?;
    }
    Ok(admitted)
}

/// What a claim does before it takes ready tasks. `at_gate` is what the claim has seen already.
pub(super) async fn admit_before_claim(
    store: &PostgresInner,
    claim: &Claim,
    pending: Option<PendingAdmission>,
) -> Result<()> {
    let mut at_gate = match pending {
        Some(at_gate) => at_gate,
        None => read_pending_admission(store, claim).await?,
    };
    let mut seen = 0;
    while !at_gate.unserved_tasks.is_empty() && seen < ADMISSION_BATCH_MAX as usize {
        let follow_up = in_pipelined_transaction!(store, tx => readmit_unserved_waiters(store, &tx, &at_gate.unserved_tasks));
        run_follow_ups(store, follow_up).await?;
        seen += at_gate.unserved_tasks.len();
        at_gate = read_pending_admission(store, claim).await?;
    }
    if !at_gate.dirty_limits.is_empty() {
        // Whoever has one of them locked looks itself, as a rule; otherwise the next claim does.
        let at_gate = FollowUp {
            dirty_limits: std::mem::take(&mut at_gate.dirty_limits),
            ..FollowUp::default()
        };
        let left = in_pipelined_transaction!(store, tx => admit_from_dirty_limits(store, &tx, &at_gate, true));
        run_follow_ups(store, FollowUp { dirty_limits: Vec::new(), ..left }).await?;
    }
    if at_gate.has_inbox_tasks {
        admit_inbox(store, AdmitReply::default()).await?;
    }
    Ok(())
}

/// Goes on with lines that a transaction left dirty, until nothing is left; and tells others
/// of what became ready. What it cannot finish stays marked, and the next claim takes it up.
pub(super) async fn run_follow_ups(store: &PostgresInner, follow_up: FollowUp) -> Result<()> {
    ignore_unavailable(
        FOLLOW_UP_STEP_NAME,
        run_follow_up_rounds(store, follow_up, FOLLOW_UP_ROUNDS_MAX).await,
    )
}

/// The same behind a claim. Who has claimed must begin before its lease ends, so it goes on for
/// a few rounds, and no error keeps it from what is committed.
pub(super) async fn run_follow_ups_bounded(store: &PostgresInner, left: FollowUp) {
    if let Err(error) = run_follow_up_rounds(store, left, FOLLOW_UP_ROUNDS_AFTER_CLAIM_MAX).await {
        log_after_commit(FOLLOW_UP_STEP_NAME, &error);
    }
}

/// Only these steps find that a window was filled while tasks were claimed out of it, so they continue after the
/// caller is gone.
async fn run_follow_up_rounds(store: &PostgresInner, left: FollowUp, rounds: u32) -> Result<()> {
    call::behind_commit(Box::pin(take_rounds(store, left, rounds))).await
}

async fn take_rounds(store: &PostgresInner, mut left: FollowUp, rounds: u32) -> Result<()> {
    for round in 0..rounds {
        store.claim_cursors.move_back(&left.first_new_ready);
        if left.notify_others {
            store.notifier.notify_others();
        }
        if !left.job_windows.is_empty() && round < WINDOW_ROUNDS_MAX {
            left.dirty_limits.extend(read_full_windows(store, &left.job_windows).await?);
        }
        if left.dirty_limits.is_empty() && left.over_limits.is_empty() {
            return Ok(());
        }
        left = in_pipelined_transaction!(store, tx => admit_from_dirty_limits(store, &tx, &left, false));
    }
    // Somebody else goes on.
    store.claim_cursors.move_back(&left.first_new_ready);
    store.notifier.notify_others();
    Ok(())
}

async fn read_full_windows(store: &PostgresInner, jobs: &[LimitId]) -> Result<Vec<LimitId>> {
    if store.options.is_injected(InjectedBug::WindowNotRechecked) {
        return Ok(Vec::new());
    }
    let jobs: Vec<i64> = jobs.iter().map(|job| job.0).collect();
    let jobs: Params<'_> = &[&jobs];
    let full = with_autocommit!(store, tx => tx.query(FULL_WINDOWS, jobs));
    Ok(full.iter().map(|row| LimitId(row.get("id"))).collect())
}

/// Drains lines that may have room, and takes back to them who must not begin; returns those that are
/// left.
async fn admit_from_dirty_limits(
    store: &PostgresInner,
    tx: &Tx<'_>,
    left: &FollowUp,
    skip_locked: bool,
) -> Result<FollowUp, TxError> {
    let start = read_tx_start(store, tx).await?;
    let mut budget = FOLLOW_UP_BUDGET;
    let locked = lock_ready_holders(tx, &left.over_limits).await?;
    let tasks = locked.iter().map(|row| row.task).collect();
    let limits = left.dirty_limits.iter().chain(&left.over_limits).copied().collect();
    let wanted = LoadRequest {
        tasks,
        limits,
        admission_budget: budget,
        skip_locked,
        ..LoadRequest::default()
    };
    let mut working_set = lock_and_load(store, tx, start, wanted).await?;
    load_ready_holders(tx, &mut working_set, &left.over_limits, &locked).await?;
    working_set.finish_loading();
    admission::admit_from_dirty_limits(&mut working_set, &mut budget)?;
    write_changes_and_commit(tx, &working_set).await?;
    Ok(working_set.follow_up())
}

/// Locks ready tasks that hold slots of these limits. Whoever is claiming one of them is waited for: it
/// may leave it where it is.
async fn lock_ready_holders(tx: &Tx<'_>, limits: &[LimitId]) -> Result<Vec<ReadyRow>, TxError> {
    let mut tasks = Vec::new();
    for limit in limits {
        tasks.extend(ready_holders_page(tx, *limit).await?.0);
    }
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    Ok(tx.query(LOCK_READY_TASKS, &[&tasks]).await?.iter().map(rows::ready_row).collect())
}

/// Ready tasks that hold slots of a limit, and whether these are all.
async fn ready_holders_page(tx: &Tx<'_>, limit: LimitId) -> Result<(Vec<i64>, bool), TxError> {
    let (sql, page) = READY_HOLDERS.for_size(FOLLOW_UP_BUDGET as usize);
    let rows = tx.query(sql, &[&limit.0]).await?;
    let is_all = rows.len() < page;
    Ok((rows.iter().map(|row| row.get("task")).collect(), is_all))
}

/// Takes up those that were locked. Under the limits' locks nobody else comes: who did before was let in by
/// somebody who raised the limit for a moment, and the next transaction takes it back.
async fn load_ready_holders(
    tx: &Tx<'_>,
    working_set: &mut WorkingSet,
    limits: &[LimitId],
    locked: &[ReadyRow],
) -> Result<(), TxError> {
    locked.iter().for_each(|row| working_set.set_position(row.task, Position::Ready(*row)));
    for limit in limits {
        let (tasks, is_all) = ready_holders_page(tx, *limit).await?;
        let is_locked = |task: &i64| locked.iter().any(|row| row.task.0 == *task);
        working_set.ready_holders_loaded.insert(*limit, is_all && tasks.iter().all(is_locked));
    }
    Ok(())
}

/// Looks again at tasks that were parked because nobody served them.
async fn readmit_unserved_waiters(
    store: &PostgresInner,
    tx: &Tx<'_>,
    tasks: &[TaskId],
) -> Result<FollowUp, TxError> {
    let moment = read_tx_start(store, tx).await?;
    let (in_line, tasks) = (tasks.len(), tasks.to_vec());
    let wanted = LoadRequest {
        tasks: tasks.clone(),
        waiting_tasks: in_line,
        admission_budget: ADMISSION_BUDGET,
        ..LoadRequest::default()
    };
    let mut draft = lock_and_load(store, tx, moment, wanted).await?;
    draft.finish_loading();
    let mut rows = Vec::new();
    for task in tasks {
        if let Some(Position::Waiting(row)) = draft.position(task)?
            && row.wait_reason == tidegate_core::tables::WaitReason::NoWorker
        {
            rows.push(row);
        }
    }
    rows.sort_unstable();
    for row in rows {
        admission::retry_admission(&mut draft, row)?;
    }
    let mut budget = ADMISSION_BUDGET;
    admission::admit_from_dirty_limits(&mut draft, &mut budget)?;
    write_changes_and_commit(tx, &draft).await?;
    Ok(draft.follow_up())
}

/// Admits due and submitted tasks, unless another transaction holds the admission lock. `admitted` counts tasks
/// that the caller has admitted before.
/// The caller has tried the fast path for due tasks.
async fn admit_inbox(store: &PostgresInner, mut admitted: AdmitReply) -> Result<AdmitReply> {
    let mut seen = admitted.ready + admitted.parked;
    loop {
        let (step, follow_up) =
            in_pipelined_transaction!(store, tx => admit_inbox_batch(store, &tx));
        run_follow_ups(store, follow_up).await?;
        admitted.ready += step.ready;
        admitted.parked += step.parked;
        seen += step.ready + step.parked;
        admitted.has_more = step.has_more;
        if !step.has_more || seen >= ADMISSION_BATCH_MAX {
            return Ok(admitted);
        }
    }
}

async fn admit_inbox_batch(
    store: &PostgresInner,
    tx: &Tx<'_>,
) -> Result<(AdmitReply, FollowUp), TxError> {
    let mut admitted = AdmitReply::default();
    let now = store.options.now_override();
    let at: Params<'_> = &[&now];
    let (keeper, due, mut arrived) = tokio::try_join!(biased;
        tx.query_one(TRY_ADMISSION_LOCK, at),
        tx.query(LOCK_DUE_TASKS, &[]),
        tx.query(LOCK_INBOX_HEAD, &[]),
    )?;
    if !keeper.get::<_, bool>("is_gatekeeper") {
        return Ok((admitted, FollowUp::default()));
    }
    let moment = TxStart::from_row(&keeper);
    let due: Vec<(TaskId, i64)> =
        due.iter().map(|row| (TaskId(row.get("task")), row.get("run_at"))).collect();
    admitted.has_more = due.len() == INBOX_TASKS_MAX || arrived.len() == INBOX_TASKS_MAX;
    if arrived.len() == INBOX_TASKS_MAX {
        let last: Option<i64> = arrived.last().map(|row| row.get("task"));
        let params: Params<'_> = &[&i64::from(JOB_WINDOW_SIZE), &last];
        arrived.extend(tx.query(LOCK_INBOX_OF_JOBS, params).await?);
    }
    let arrived = arrived.iter().map(|row| TaskId(row.get("task")));
    // Who is among the first of its job may be among the first of all.
    let arrived = Vec::from_iter(arrived.collect::<BTreeSet<TaskId>>());
    let order: Vec<TaskId> =
        due.iter().map(|(task, _)| *task).chain(arrived.iter().copied()).collect();
    let wanted = LoadRequest {
        tasks: order.clone(),
        admission_budget: ADMISSION_BUDGET,
        ..LoadRequest::default()
    };
    let mut draft = lock_and_load(store, tx, moment, wanted).await?;
    due.iter().for_each(|(task, run_at)| draft.set_position(*task, Position::Scheduled(*run_at)));
    arrived.iter().for_each(|task| draft.set_position(*task, Position::Inbox));
    draft.finish_loading();
    due.iter().try_for_each(|(task, run_at)| draft.remove_scheduled(*task, *run_at))?;
    arrived.iter().try_for_each(|task| draft.remove_inbox(*task))?;
    for task in order {
        admit_task(&mut draft, task, &mut admitted)?;
    }
    let mut budget = ADMISSION_BUDGET;
    admission::admit_from_dirty_limits(&mut draft, &mut budget)?;
    write_changes_and_commit(tx, &draft).await?;
    Ok((admitted, draft.follow_up()))
}

fn admit_task(
    draft: &mut WorkingSet,
    task: TaskId,
    admitted: &mut AdmitReply,
) -> Result<(), TxError> {
    let Some(tags) = draft.task_info(task)? else {
        return Ok(());
    };
    match admission::admit_new(draft, &tags)? {
        Admission::Ready => admitted.ready += 1,
        Admission::Parked => admitted.parked += 1,
        // Whoever stays behind would be overtaken by the next step of its workflow.
        Admission::LimitNotLocked(_) => return Err(TxError::Retry),
    }
    Ok(())
}
