//! Writes what the rules changed in a draft. Every row it touches is guarded by a lock the
//! transaction already has, so it waits for nobody; the counters' row is the last.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::{Position, ReadyRow, WaiterRow};
use tidegate_core::{Error, ErrorKind, Limit, LimitId, Millis, PauseCause, TaskId};

use super::error::TxError;
use super::limit_columns::JobShareColumns;
use super::rows::state_code;
use super::slot_groups::put_slot_groups;
use super::transaction::{Params, Tx};
use super::working_set::{PLACEHOLDER_ID_MIN, WorkingSet, is_blocked_by_window};

const DELETE_POSITIONS: &str = include_str!("queries/delete_positions.sql");
const INSERT_POSITIONS: &str = include_str!("queries/insert_positions.sql");
const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
const DELETE_FINISHED_LEASES: &str = include_str!("queries/delete_finished_leases.sql");
const UPDATE_RUNNING: &str = include_str!("queries/update_running.sql");
const PUT_FENCED_ATTEMPTS: &str = include_str!("queries/put_fenced_attempts.sql");
const INSERT_LIMIT: &str = include_str!("queries/insert_limit.sql");
const UPDATE_LIMITS: &str = include_str!("queries/update_limits.sql");
const SET_ATTEMPT_COUNTS: &str = include_str!("queries/set_attempt_counts.sql");
const FINISH_TASKS: &str = include_str!("queries/finish_tasks.sql");
const DELETE_TASKS: &str = include_str!("queries/delete_tasks.sql");
const DELETE_UNIQUE_KEYS: &str = include_str!("queries/delete_unique_keys.sql");
const SET_VIRTUAL_TIME: &str = include_str!("queries/set_virtual_time.sql");
const SET_LIMITS_VERSION: &str = include_str!("queries/set_limits_version.sql");

/// The ids the server gave to limits that the draft began.
#[derive(Debug, Default)]
struct NewLimitIds(BTreeMap<LimitId, LimitId>);

impl NewLimitIds {
    fn resolve(&self, id: LimitId) -> i64 {
        self.0.get(&id).unwrap_or(&id).0
    }
}

pub(super) async fn write_changes(tx: &Tx<'_>, working_set: &WorkingSet) -> Result<(), TxError> {
    write_changes_and(tx, working_set, std::future::ready(Ok(()))).await
}

/// Writes, and commits in the same round trip.
pub(super) async fn write_changes_and_commit(
    tx: &Tx<'_>,
    draft: &WorkingSet,
) -> Result<(), TxError> {
    write_changes_and(tx, draft, tx.commit()).await
}

/// Writes, and sends what follows in the same round trip. Each function below sends all of its
/// statements when it is first polled, so that they come before those that follow.
pub(super) async fn write_changes_and<T>(
    tx: &Tx<'_>,
    draft: &WorkingSet,
    follow: impl Future<Output = Result<T, TxError>>,
) -> Result<T, TxError> {
    let mut given = NewLimitIds::default();
    insert_new_limits(tx, draft, &mut given).await?;
    // In a box: all of them together are much to carry about in every verb.
    let write = Box::pin(async {
        tokio::try_join!(biased;
            delete_positions(tx, draft),
            insert_positions(tx, draft, &given),
            delete_leases(tx, draft),
            update_running_flags(tx, draft),
            put_fenced(tx, draft),
            put_changed_limits(tx, draft),
            put_slot_groups(tx, draft, |limit| given.resolve(limit)),
            write_tasks(tx, draft),
            put_counters(tx, draft),
        )
    });
    let (_, followed) = tokio::try_join!(biased; write, follow)?;
    Ok(followed)
}

async fn insert_new_limits(
    tx: &Tx<'_>,
    draft: &WorkingSet,
    new_ids: &mut NewLimitIds,
) -> Result<(), TxError> {
    for (id, limit) in draft.state.limits.range(LimitId(PLACEHOLDER_ID_MIN)..) {
        let (base, base_source) = base_columns(limit);
        let row = tx
            .query_one(
                INSERT_LIMIT,
                &[
                    &&*limit.name,
                    &limit.capacity.map(i64::from),
                    &(limit.source as i32),
                    &base,
                    &base_source,
                    &limit.version,
                    &limit.applies_from_version,
                ],
            )
            .await?;
        new_ids.0.insert(*id, LimitId(row.get("id")));
    }
    Ok(())
}

async fn delete_positions(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let (old, new) = (&draft.before, &draft.state);
    let scheduled: Vec<i64> =
        old.scheduled.difference(&new.scheduled).map(|(_, task)| task.0).collect();
    let arrived: Vec<i64> = old.inbox.difference(&new.inbox).map(|task| task.0).collect();
    let ready: Vec<i64> = old.ready.difference(&new.ready).map(|row| row.task.0).collect();
    let line: Vec<i64> = old.waiters.difference(&new.waiters).map(|row| row.task.0).collect();
    let running = old.running.keys().filter(|key| !new.running.contains_key(key));
    let running: Vec<i64> = running.map(|(_, task)| task.0).collect();
    let freed: Vec<_> = old.held_slots.difference(&new.held_slots).collect();
    let limits: Vec<i64> = freed.iter().map(|(_, limit, _)| limit.0).collect();
    let numbers: Vec<i64> = freed.iter().map(|(_, _, number)| i64::from(*number)).collect();
    let expected =
        scheduled.len() + arrived.len() + ready.len() + line.len() + running.len() + freed.len();
    if expected == 0 {
        return Ok(());
    }
    let expected = expected as i64;
    let params: Params<'_> =
        &[&scheduled, &arrived, &ready, &line, &running, &limits, &numbers, &expected];
    execute_checked(tx, DELETE_POSITIONS, params).await
}

/// Runs a statement that fails where a row is missing that this transaction has the lock for.
async fn execute_checked(
    tx: &Tx<'_>,
    sql: &'static str,
    params: Params<'_>,
) -> Result<(), TxError> {
    match tx.query_one(sql, params).await {
        Err(fault) if fault.is_division_by_zero() => {
            let text = "rows went away under this transaction's lock";
            Err(TxError::Rule(Error::new(ErrorKind::Incompatible, text)))
        }
        written => written.map(drop),
    }
}

async fn insert_positions(
    tx: &Tx<'_>,
    draft: &WorkingSet,
    given: &NewLimitIds,
) -> Result<(), TxError> {
    let (old, new) = (&draft.before, &draft.state);
    let scheduled: Vec<_> = new.scheduled.difference(&old.scheduled).collect();
    let arrived: Vec<TaskId> = new.inbox.difference(&old.inbox).copied().collect();
    let ready: Vec<&ReadyRow> = new.ready.difference(&old.ready).collect();
    let mut line: Vec<&WaiterRow> = new.waiters.difference(&old.waiters).collect();
    line.sort_unstable_by_key(|row| row.admission_seq);
    let place =
        |row: &&WaiterRow| (row.admission_seq < PLACEHOLDER_ID_MIN).then_some(row.admission_seq);
    let held: Vec<_> = new.held_slots.difference(&old.held_slots).collect();
    if scheduled.is_empty()
        && arrived.is_empty()
        && ready.is_empty()
        && line.is_empty()
        && held.is_empty()
    {
        return Ok(());
    }
    let ready = ReadyColumns::new(ready.into_iter().copied());
    tx.execute(
        INSERT_POSITIONS,
        &[
            &scheduled.iter().map(|(_, task)| task.0).collect::<Vec<_>>(),
            &scheduled.iter().map(|(run_at, _)| *run_at).collect::<Vec<_>>(),
            &arrived.iter().map(|task| task.0).collect::<Vec<_>>(),
            &ready.task,
            &ready.lane,
            &ready.rank,
            &ready.tag,
            &ready.limits_version,
            &ready.holds_slots,
            &ready.ready_at,
            &line.iter().map(|row| row.task.0).collect::<Vec<_>>(),
            &line.iter().map(|row| given.resolve(row.limit)).collect::<Vec<_>>(),
            &line.iter().map(|row| row.wait_reason as i32).collect::<Vec<_>>(),
            &line.iter().map(|row| row.rank).collect::<Vec<_>>(),
            &line.iter().map(|row| row.tag).collect::<Vec<_>>(),
            &line.iter().map(place).collect::<Vec<_>>(),
            &line.iter().map(|row| row.lane.0).collect::<Vec<_>>(),
            &line.iter().map(|row| i64::from(row.queue_switches)).collect::<Vec<_>>(),
            &line.iter().map(|row| row.in_job_window).collect::<Vec<_>>(),
            &line.iter().map(|row| row.due_at).collect::<Vec<_>>(),
            &held.iter().map(|(_, limit, _)| given.resolve(*limit)).collect::<Vec<_>>(),
            &held.iter().map(|(_, _, number)| i64::from(*number)).collect::<Vec<_>>(),
            &held.iter().map(|(task, _, _)| task.0).collect::<Vec<_>>(),
            &line.iter().map(|row| draft.needs_single_slot_only(row.task)).collect::<Vec<_>>(),
            &arrived
                .iter()
                .map(|task| new.fair_share_job(*task).map(|job| &**job))
                .collect::<Vec<_>>(),
        ],
    )
    .await?;
    Ok(())
}

/// Ready rows as the columns of an array statement.
#[derive(Debug, Default)]
struct ReadyColumns {
    task: Vec<i64>,
    lane: Vec<i64>,
    rank: Vec<i64>,
    tag: Vec<i64>,
    limits_version: Vec<i64>,
    holds_slots: Vec<bool>,
    ready_at: Vec<i64>,
}

impl ReadyColumns {
    fn new(rows: impl Iterator<Item = ReadyRow>) -> Self {
        let mut columns = Self::default();
        for row in rows {
            columns.task.push(row.task.0);
            columns.lane.push(row.lane.0);
            columns.rank.push(row.rank);
            columns.tag.push(row.tag);
            columns.limits_version.push(row.limits_version);
            columns.holds_slots.push(row.holds_slots);
            columns.ready_at.push(row.ready_at);
        }
        columns
    }
}

/// Comes after the attempts have left: the second statement sees what runs without them.
async fn delete_leases(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let gone = draft.before.leases.keys().filter(|token| !draft.state.leases.contains_key(token));
    let gone: Vec<i64> = gone.map(|token| token.0).collect();
    let ending: Vec<i64> = draft.ending_leases.iter().map(|token| token.0).collect();
    let (of_gone, of_ending): (Params<'_>, Params<'_>) = (&[&gone], &[&ending]);
    // A lease of which only a part was loaded stays. The transaction that ends the last attempt of a lease removes the lease. Of two transactions that end
    // the last two attempts, the second one looks when the first has committed.
    let written = tokio::try_join!(biased;
        execute_if(tx, !gone.is_empty(), DELETE_FINISHED_LEASES, of_gone),
        execute_if(tx, !ending.is_empty(), LOCK_LEASES, of_ending),
        execute_if(tx, !ending.is_empty(), DELETE_FINISHED_LEASES, of_ending),
    );
    written.map(drop)
}

async fn execute_if(
    tx: &Tx<'_>,
    is_needed: bool,
    sql: &'static str,
    params: Params<'_>,
) -> Result<(), TxError> {
    if !is_needed {
        return Ok(());
    }
    tx.execute(sql, params).await.map(drop)
}

async fn update_running_flags(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let mut marks: (Vec<i64>, Vec<bool>, Vec<bool>) = Default::default();
    for (key, old) in &draft.before.running {
        if let Some(new) = draft.state.running.get(key)
            && (old.cancel_requested, old.holds_slots) != (new.cancel_requested, new.holds_slots)
        {
            marks.0.push(key.1.0);
            marks.1.push(new.cancel_requested);
            marks.2.push(new.holds_slots);
        }
    }
    if !marks.0.is_empty() {
        execute_checked(tx, UPDATE_RUNNING, &[&marks.0, &marks.1, &marks.2]).await?;
    }
    Ok(())
}

async fn put_fenced(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let fenced: Vec<_> =
        draft.state.fenced_attempts.difference(&draft.before.fenced_attempts).collect();
    if fenced.is_empty() {
        return Ok(());
    }
    let tokens: Vec<i64> = fenced.iter().map(|(token, _)| token.0).collect();
    let tasks: Vec<i64> = fenced.iter().map(|(_, task)| task.0).collect();
    tx.execute(PUT_FENCED_ATTEMPTS, &[&tokens, &tasks]).await?;
    Ok(())
}

async fn put_changed_limits(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let changed: Vec<&Limit> = draft
        .state
        .limits
        .values()
        .filter(|limit| {
            limit.id.0 < PLACEHOLDER_ID_MIN && draft.before.limits.get(&limit.id) != Some(limit)
        })
        .collect();
    put_limits(tx, &changed, |limit| draft.allows_hand_off(limit)).await
}

/// Writes limits whose locks this transaction has.
pub(super) async fn put_limits(
    tx: &Tx<'_>,
    changed: &[&Limit],
    allows_hand_off: impl Fn(&Limit) -> bool,
) -> Result<(), TxError> {
    if changed.is_empty() {
        return Ok(());
    }
    let shares = JobShareColumns::from_limits(changed.iter().copied());
    let each = |of: fn(&Limit) -> i64| changed.iter().map(|limit| of(limit)).collect::<Vec<i64>>();
    execute_checked(
        tx,
        UPDATE_LIMITS,
        &[
            &each(|limit| limit.id.0),
            &changed.iter().map(|limit| limit.capacity.map(i64::from)).collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.source as i32).collect::<Vec<_>>(),
            &changed.iter().map(|limit| base_columns(limit).0).collect::<Vec<_>>(),
            &changed.iter().map(|limit| base_columns(limit).1).collect::<Vec<_>>(),
            &each(|limit| limit.version),
            &each(|limit| i64::from(limit.waiting)),
            &each(|limit| i64::from(limit.skipped)),
            &changed
                .iter()
                .map(|limit| limit.reserving_task.map(|task| task.0))
                .collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.dirty).collect::<Vec<_>>(),
            &each(|limit| limit.fair_share.map_or(0, |share| share.last_tag)),
            &each(|limit| limit.fair_share.map_or(0, |share| i64::from(share.in_window))),
            &changed.iter().map(|limit| is_blocked_by_window(limit)).collect::<Vec<_>>(),
            &each(|limit| limit.parked_total),
            &changed.iter().map(|limit| allows_hand_off(limit)).collect::<Vec<_>>(),
            &changed
                .iter()
                .map(|limit| limit.paused_by.map(PauseCause::to_code))
                .collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.recheck_at).collect::<Vec<_>>(),
            &shares.weights,
            &shares.reserves,
            &shares.priorities,
            &shares.delays,
            &each(|limit| limit.fair_share.map_or(0, |share| share.next_start_at)),
        ],
    )
    .await
}

fn base_columns(limit: &Limit) -> (Option<i64>, Option<i32>) {
    limit
        .capacity_without_override
        .map_or((None, None), |(capacity, source)| (Some(i64::from(capacity)), Some(source as i32)))
}

/// Tasks as the columns of an array statement.
#[derive(Debug, Default)]
struct TaskColumns<'a> {
    task: Vec<i64>,
    attempts_used: Vec<i64>,
    crashes: Vec<i64>,
    error: Vec<Option<&'a [u8]>>,
    due_at: Vec<i64>,
    state: Vec<i32>,
    result: Vec<Option<&'a [u8]>>,
    remove_at: Vec<Option<i64>>,
}

async fn write_tasks(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let (mut moved, mut ended) = (TaskColumns::default(), TaskColumns::default());
    let (mut removed, mut keys) = (Vec::new(), Vec::new());
    let remove_at: BTreeMap<TaskId, i64> =
        draft.state.task_removals.iter().map(|(at, task)| (*task, *at)).collect();
    for (id, old) in &draft.before.tasks {
        let new = draft.state.tasks.get(id);
        let state = match new.map(|task| task.position) {
            None => None,
            Some(Some(Position::Finished(state))) => Some(state_code(state)),
            Some(_) => Some(-1),
        };
        if state != Some(-1) {
            keys.extend(old.submitted.unique_key.as_deref());
        }
        let (Some(new), Some(state)) = (new, state) else {
            removed.push(id.0);
            continue;
        };
        let same = (&new.info, &new.error) == (&old.info, &old.error);
        let rows = if state == -1 { &mut moved } else { &mut ended };
        if state == -1 && same {
            continue;
        }
        rows.task.push(id.0);
        rows.attempts_used.push(i64::from(new.info.attempts_used));
        rows.crashes.push(i64::from(new.info.crashes));
        rows.error.push(new.error.as_deref().map(str::as_bytes));
        rows.due_at.push(new.info.due_at);
        rows.state.push(state);
        rows.result.push(new.result.as_deref());
        rows.remove_at.push(remove_at.get(id).copied());
    }
    let keys: BTreeSet<&str> = keys.into_iter().collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    let (of_removed, of_keys): (Params<'_>, Params<'_>) = (&[&removed], &[&keys]);
    let written = tokio::try_join!(biased;
        put_attempt_counts(tx, &moved),
        finish_tasks(tx, &ended, draft.state.now),
        execute_if(tx, !removed.is_empty(), DELETE_TASKS, of_removed),
        execute_if(tx, !keys.is_empty(), DELETE_UNIQUE_KEYS, of_keys),
    );
    written.map(drop)
}

async fn put_attempt_counts(tx: &Tx<'_>, moved: &TaskColumns<'_>) -> Result<(), TxError> {
    let TaskColumns { task, attempts_used: spent, crashes: deaths, error, due_at: arrival, .. } =
        moved;
    if task.is_empty() {
        return Ok(());
    }
    execute_checked(tx, SET_ATTEMPT_COUNTS, &[task, spent, deaths, error, arrival]).await
}

async fn finish_tasks(tx: &Tx<'_>, finished: &TaskColumns<'_>, now: Millis) -> Result<(), TxError> {
    let TaskColumns {
        task,
        attempts_used: spent,
        crashes: deaths,
        error,
        state,
        result,
        remove_at,
        ..
    } = finished;
    if task.is_empty() {
        return Ok(());
    }
    let params: Params<'_> = &[task, spent, deaths, error, state, result, remove_at, &now];
    execute_checked(tx, FINISH_TASKS, params).await
}

async fn put_counters(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    let (old, new) = (draft.before.counters, draft.state.counters);
    let (is_new, is_later) =
        (new.limits_version != old.limits_version, new.virtual_time > old.virtual_time);
    let (version, time): (Params<'_>, Params<'_>) = (&[&new.limits_version], &[&new.virtual_time]);
    let written = tokio::try_join!(biased;
        execute_if(tx, is_new, SET_LIMITS_VERSION, version),
        execute_if(tx, is_later, SET_VIRTUAL_TIME, time),
    );
    written.map(drop)
}
