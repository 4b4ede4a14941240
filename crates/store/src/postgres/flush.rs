//! Writes what the rules changed in a draft. Every row it touches is guarded by a lock the
//! transaction already has, so it waits for nobody; the counters' row is the last.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::{LineRow, Position, ReadyRow};
use tidegate_core::{Error, ErrorKind, Halt, Limit, LimitId, Millis, TaskId};

use super::draft::{Draft, STAND_IN, fills_window};
use super::error::Fault;
use super::groups::put_groups;
use super::made::Shares;
use super::rows::state_code;
use super::session::{Params, Tx};

const LEAVE: &str = include_str!("queries/delete_positions.sql");
const ENTER: &str = include_str!("queries/insert_positions.sql");
const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
const END_LEASES: &str = include_str!("queries/delete_finished_leases.sql");
const MARK_RUNNING: &str = include_str!("queries/update_running.sql");
const PUT_FENCED: &str = include_str!("queries/put_fenced_attempts.sql");
const BEGIN_LIMIT: &str = include_str!("queries/insert_limit.sql");
const PUT_LIMITS: &str = include_str!("queries/update_limits.sql");
const PUT_LEDGERS: &str = include_str!("queries/set_attempt_counts.sql");
const END_TASKS: &str = include_str!("queries/finish_tasks.sql");
const REMOVE_TASKS: &str = include_str!("queries/delete_tasks.sql");
const FREE_KEYS: &str = include_str!("queries/delete_unique_keys.sql");
const PUT_VIRTUAL_TIME: &str = include_str!("queries/set_virtual_time.sql");
const PUT_LIMITS_VERSION: &str = include_str!("queries/set_limits_version.sql");

/// The ids the server gave to limits that the draft began.
#[derive(Debug, Default)]
struct Given(BTreeMap<LimitId, LimitId>);

impl Given {
    fn limit(&self, id: LimitId) -> i64 {
        self.0.get(&id).unwrap_or(&id).0
    }
}

pub(super) async fn flush(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    flush_and(tx, draft, std::future::ready(Ok(()))).await
}

/// Writes, and commits in the same round trip.
pub(super) async fn flush_and_commit(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    flush_and(tx, draft, tx.commit()).await
}

/// Writes, and sends what follows in the same round trip. Each function below sends all of its
/// statements when it is first polled, so that they come before those that follow.
pub(super) async fn flush_and<T>(
    tx: &Tx<'_>,
    draft: &Draft,
    follow: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let mut given = Given::default();
    begin_limits(tx, draft, &mut given).await?;
    // In a box: all of them together are much to carry about in every verb.
    let write = Box::pin(async {
        tokio::try_join!(biased;
            leave(tx, draft),
            enter(tx, draft, &given),
            drop_leases(tx, draft),
            mark_running(tx, draft),
            put_fenced(tx, draft),
            put_changed_limits(tx, draft),
            put_groups(tx, draft, |limit| given.limit(limit)),
            put_tasks(tx, draft),
            put_counters(tx, draft),
        )
    });
    let (_, followed) = tokio::try_join!(biased; write, follow)?;
    Ok(followed)
}

async fn begin_limits(tx: &Tx<'_>, draft: &Draft, given: &mut Given) -> Result<(), Fault> {
    for (id, limit) in draft.state.limits.range(LimitId(STAND_IN)..) {
        let (base, base_source) = base(limit);
        let row = tx
            .one(
                BEGIN_LIMIT,
                &[
                    &&*limit.name,
                    &limit.capacity.map(i64::from),
                    &(limit.source as i32),
                    &base,
                    &base_source,
                    &limit.version,
                    &limit.since,
                ],
            )
            .await?;
        given.0.insert(*id, LimitId(row.get("id")));
    }
    Ok(())
}

async fn leave(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let (old, new) = (&draft.before, &draft.state);
    let scheduled: Vec<i64> =
        old.scheduled.difference(&new.scheduled).map(|(_, task)| task.0).collect();
    let arrived: Vec<i64> = old.arrived.difference(&new.arrived).map(|task| task.0).collect();
    let ready: Vec<i64> = old.ready.difference(&new.ready).map(|row| row.task.0).collect();
    let line: Vec<i64> = old.line.difference(&new.line).map(|row| row.task.0).collect();
    let running = old.running.keys().filter(|key| !new.running.contains_key(key));
    let running: Vec<i64> = running.map(|(_, task)| task.0).collect();
    let freed: Vec<_> = old.held.difference(&new.held).collect();
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
    write_all(tx, LEAVE, params).await
}

/// Runs a statement that fails where a row is missing that this transaction has the lock for.
async fn write_all(tx: &Tx<'_>, sql: &'static str, params: Params<'_>) -> Result<(), Fault> {
    match tx.one(sql, params).await {
        Err(fault) if fault.is_division_by_zero() => {
            let text = "rows went away under this transaction's lock";
            Err(Fault::Rule(Error::new(ErrorKind::Incompatible, text)))
        }
        written => written.map(drop),
    }
}

async fn enter(tx: &Tx<'_>, draft: &Draft, given: &Given) -> Result<(), Fault> {
    let (old, new) = (&draft.before, &draft.state);
    let scheduled: Vec<_> = new.scheduled.difference(&old.scheduled).collect();
    let arrived: Vec<TaskId> = new.arrived.difference(&old.arrived).copied().collect();
    let ready: Vec<&ReadyRow> = new.ready.difference(&old.ready).collect();
    let mut line: Vec<&LineRow> = new.line.difference(&old.line).collect();
    line.sort_unstable_by_key(|row| row.place);
    let place = |row: &&LineRow| (row.place < STAND_IN).then_some(row.place);
    let held: Vec<_> = new.held.difference(&old.held).collect();
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
        ENTER,
        &[
            &scheduled.iter().map(|(_, task)| task.0).collect::<Vec<_>>(),
            &scheduled.iter().map(|(run_at, _)| *run_at).collect::<Vec<_>>(),
            &arrived.iter().map(|task| task.0).collect::<Vec<_>>(),
            &ready.task,
            &ready.lane,
            &ready.rank,
            &ready.tag,
            &ready.stamp,
            &ready.gated,
            &ready.since,
            &line.iter().map(|row| row.task.0).collect::<Vec<_>>(),
            &line.iter().map(|row| given.limit(row.limit)).collect::<Vec<_>>(),
            &line.iter().map(|row| row.class as i32).collect::<Vec<_>>(),
            &line.iter().map(|row| row.rank).collect::<Vec<_>>(),
            &line.iter().map(|row| row.tag).collect::<Vec<_>>(),
            &line.iter().map(place).collect::<Vec<_>>(),
            &line.iter().map(|row| row.lane.0).collect::<Vec<_>>(),
            &line.iter().map(|row| i64::from(row.moves)).collect::<Vec<_>>(),
            &line.iter().map(|row| row.passed).collect::<Vec<_>>(),
            &line.iter().map(|row| row.since).collect::<Vec<_>>(),
            &held.iter().map(|(_, limit, _)| given.limit(*limit)).collect::<Vec<_>>(),
            &held.iter().map(|(_, _, number)| i64::from(*number)).collect::<Vec<_>>(),
            &held.iter().map(|(task, _, _)| task.0).collect::<Vec<_>>(),
            &line.iter().map(|row| draft.is_plain(row.task)).collect::<Vec<_>>(),
            &arrived
                .iter()
                .map(|task| new.job_at_gate(*task).map(|job| &**job))
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
    stamp: Vec<i64>,
    gated: Vec<bool>,
    since: Vec<i64>,
}

impl ReadyColumns {
    fn new(rows: impl Iterator<Item = ReadyRow>) -> Self {
        let mut columns = Self::default();
        for row in rows {
            columns.task.push(row.task.0);
            columns.lane.push(row.lane.0);
            columns.rank.push(row.rank);
            columns.tag.push(row.tag);
            columns.stamp.push(row.stamp);
            columns.gated.push(row.gated);
            columns.since.push(row.since);
        }
        columns
    }
}

/// Comes after the attempts have left: the second statement sees what runs without them.
async fn drop_leases(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let gone = draft.before.leases.keys().filter(|token| !draft.state.leases.contains_key(token));
    let gone: Vec<i64> = gone.map(|token| token.0).collect();
    let ending: Vec<i64> = draft.ending_leases.iter().map(|token| token.0).collect();
    let (of_gone, of_ending): (Params<'_>, Params<'_>) = (&[&gone], &[&ending]);
    // A lease of which only a part was loaded stays. The transaction that ends the last attempt of a lease removes the lease. Of two transactions that end
    // the last two attempts, the second one looks when the first has committed.
    let written = tokio::try_join!(biased;
        execute_if(tx, !gone.is_empty(), END_LEASES, of_gone),
        execute_if(tx, !ending.is_empty(), LOCK_LEASES, of_ending),
        execute_if(tx, !ending.is_empty(), END_LEASES, of_ending),
    );
    written.map(drop)
}

async fn execute_if(
    tx: &Tx<'_>,
    is_needed: bool,
    sql: &'static str,
    params: Params<'_>,
) -> Result<(), Fault> {
    if !is_needed {
        return Ok(());
    }
    tx.execute(sql, params).await.map(drop)
}

async fn mark_running(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let mut marks: (Vec<i64>, Vec<bool>, Vec<bool>) = Default::default();
    for (key, old) in &draft.before.running {
        if let Some(new) = draft.state.running.get(key)
            && (old.cancel, old.gated) != (new.cancel, new.gated)
        {
            marks.0.push(key.1.0);
            marks.1.push(new.cancel);
            marks.2.push(new.gated);
        }
    }
    if !marks.0.is_empty() {
        write_all(tx, MARK_RUNNING, &[&marks.0, &marks.1, &marks.2]).await?;
    }
    Ok(())
}

async fn put_fenced(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let fenced: Vec<_> = draft.state.fenced.difference(&draft.before.fenced).collect();
    if fenced.is_empty() {
        return Ok(());
    }
    let tokens: Vec<i64> = fenced.iter().map(|(token, _)| token.0).collect();
    let tasks: Vec<i64> = fenced.iter().map(|(_, task)| task.0).collect();
    tx.execute(PUT_FENCED, &[&tokens, &tasks]).await?;
    Ok(())
}

async fn put_changed_limits(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let changed: Vec<&Limit> = draft
        .state
        .limits
        .values()
        .filter(|limit| limit.id.0 < STAND_IN && draft.before.limits.get(&limit.id) != Some(limit))
        .collect();
    put_limits(tx, &changed, |limit| draft.is_calm(limit)).await
}

/// Writes limits whose locks this transaction has.
pub(super) async fn put_limits(
    tx: &Tx<'_>,
    changed: &[&Limit],
    is_calm: impl Fn(&Limit) -> bool,
) -> Result<(), Fault> {
    if changed.is_empty() {
        return Ok(());
    }
    let shares = Shares::of(changed.iter().copied());
    let each = |of: fn(&Limit) -> i64| changed.iter().map(|limit| of(limit)).collect::<Vec<i64>>();
    write_all(
        tx,
        PUT_LIMITS,
        &[
            &each(|limit| limit.id.0),
            &changed.iter().map(|limit| limit.capacity.map(i64::from)).collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.source as i32).collect::<Vec<_>>(),
            &changed.iter().map(|limit| base(limit).0).collect::<Vec<_>>(),
            &changed.iter().map(|limit| base(limit).1).collect::<Vec<_>>(),
            &each(|limit| limit.version),
            &each(|limit| i64::from(limit.waiting)),
            &each(|limit| i64::from(limit.aside)),
            &changed.iter().map(|limit| limit.reserver.map(|task| task.0)).collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.dirty).collect::<Vec<_>>(),
            &each(|limit| limit.share.map_or(0, |share| share.last_tag)),
            &each(|limit| limit.share.map_or(0, |share| i64::from(share.ahead))),
            &changed.iter().map(|limit| fills_window(limit)).collect::<Vec<_>>(),
            &each(|limit| limit.refused),
            &changed.iter().map(|limit| is_calm(limit)).collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.halt.map(Halt::code)).collect::<Vec<_>>(),
            &changed.iter().map(|limit| limit.look_at).collect::<Vec<_>>(),
            &shares.weights,
            &shares.reserves,
            &shares.priorities,
            &shares.delays,
            &each(|limit| limit.share.map_or(0, |share| share.next_at)),
        ],
    )
    .await
}

fn base(limit: &Limit) -> (Option<i64>, Option<i32>) {
    limit
        .base
        .map_or((None, None), |(capacity, source)| (Some(i64::from(capacity)), Some(source as i32)))
}

/// Tasks as the columns of an array statement.
#[derive(Debug, Default)]
struct Ledgers<'a> {
    task: Vec<i64>,
    spent: Vec<i64>,
    deaths: Vec<i64>,
    error: Vec<Option<&'a [u8]>>,
    arrival: Vec<i64>,
    state: Vec<i32>,
    result: Vec<Option<&'a [u8]>>,
    remove_at: Vec<Option<i64>>,
}

async fn put_tasks(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let (mut moved, mut ended) = (Ledgers::default(), Ledgers::default());
    let (mut removed, mut keys) = (Vec::new(), Vec::new());
    let remove_at: BTreeMap<TaskId, i64> =
        draft.state.removals.iter().map(|(at, task)| (*task, *at)).collect();
    for (id, old) in &draft.before.tasks {
        let new = draft.state.tasks.get(id);
        let state = match new.map(|task| task.position) {
            None => None,
            Some(Some(Position::Final(state))) => Some(state_code(state)),
            Some(_) => Some(-1),
        };
        if state != Some(-1) {
            keys.extend(old.new.unique_key.as_deref());
        }
        let (Some(new), Some(state)) = (new, state) else {
            removed.push(id.0);
            continue;
        };
        let same = (&new.tags, &new.error) == (&old.tags, &old.error);
        let rows = if state == -1 { &mut moved } else { &mut ended };
        if state == -1 && same {
            continue;
        }
        rows.task.push(id.0);
        rows.spent.push(i64::from(new.tags.spent));
        rows.deaths.push(i64::from(new.tags.deaths));
        rows.error.push(new.error.as_deref().map(str::as_bytes));
        rows.arrival.push(new.tags.arrival);
        rows.state.push(state);
        rows.result.push(new.result.as_deref());
        rows.remove_at.push(remove_at.get(id).copied());
    }
    let keys: BTreeSet<&str> = keys.into_iter().collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    let (of_removed, of_keys): (Params<'_>, Params<'_>) = (&[&removed], &[&keys]);
    let written = tokio::try_join!(biased;
        put_ledgers(tx, &moved),
        end_tasks(tx, &ended, draft.state.now),
        execute_if(tx, !removed.is_empty(), REMOVE_TASKS, of_removed),
        execute_if(tx, !keys.is_empty(), FREE_KEYS, of_keys),
    );
    written.map(drop)
}

async fn put_ledgers(tx: &Tx<'_>, moved: &Ledgers<'_>) -> Result<(), Fault> {
    let Ledgers { task, spent, deaths, error, arrival, .. } = moved;
    if task.is_empty() {
        return Ok(());
    }
    write_all(tx, PUT_LEDGERS, &[task, spent, deaths, error, arrival]).await
}

async fn end_tasks(tx: &Tx<'_>, ended: &Ledgers<'_>, now: Millis) -> Result<(), Fault> {
    let Ledgers { task, spent, deaths, error, state, result, remove_at, .. } = ended;
    if task.is_empty() {
        return Ok(());
    }
    let params: Params<'_> = &[task, spent, deaths, error, state, result, remove_at, &now];
    write_all(tx, END_TASKS, params).await
}

async fn put_counters(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    let (old, new) = (draft.before.counters, draft.state.counters);
    let (is_new, is_later) =
        (new.limits_version != old.limits_version, new.virtual_time > old.virtual_time);
    let (version, time): (Params<'_>, Params<'_>) = (&[&new.limits_version], &[&new.virtual_time]);
    let written = tokio::try_join!(biased;
        execute_if(tx, is_new, PUT_LIMITS_VERSION, version),
        execute_if(tx, is_later, PUT_VIRTUAL_TIME, time),
    );
    written.map(drop)
}
