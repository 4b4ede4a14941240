//! Stores tasks. It only inserts.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::tables::{ReadyRow, WaiterRow};
use tidegate_core::{
    CapacitySource, Error, ErrorKind, Kind, LaneId, Limit, LimitScope, NewTask, Result, SetLimit,
    Submission, SubmittedTask, TaskId, Token, rules,
};

use super::attempt_guard::{check_attempt_runs, lock_running_attempt};
use super::claim_cursors::first_of_each_lane;
use super::error::TxError;
use super::limit_columns::{INSERT_LIMITS, NewLimitColumns};
use super::rows;
use super::set_limit::set_limit;
use super::submit_fast::submit_fast;
use super::transaction::{Params, Tx, in_pipelined_transaction, with_autocommit};
use super::working_set::{PLACEHOLDER_ID_MIN, WorkingSet};
use super::working_set_load::{read_kinds, read_tx_start};
use super::{PostgresInner, in_transaction};
use crate::memory::working_state::StoredTask;

const LANES_OF_KINDS: &str = include_str!("queries/lanes_of_kinds.sql");
const LIMITS_BY_NAME: &str = include_str!("queries/limits_by_name.sql");
const LOCK_NAME_CREATION: &str = include_str!("queries/lock_name_creation.sql");
const INSERT_KINDS: &str = include_str!("queries/insert_kinds.sql");
const INSERT_LANES: &str = include_str!("queries/insert_lanes.sql");
const INSERT_UNIQUE_KEYS: &str = include_str!("queries/insert_unique_keys.sql");
const UNIQUE_KEYS_TAKEN: &str = include_str!("queries/unique_keys_taken.sql");
const SET_UNIQUE_KEY_TASKS: &str = include_str!("queries/set_unique_key_tasks.sql");
const NEXT_TASK_IDS: &str = include_str!("queries/next_task_ids.sql");
const INSERT_TASKS: &str = include_str!("queries/insert_tasks.sql");
const INSERT_POSITIONS: &str = include_str!("queries/insert_positions.sql");
const NOTIFY: &str = include_str!("queries/notify.sql");

/// Times the names are looked up and made.
const NAME_ROUNDS_MAX: u32 = 10;

/// Tasks in one statement: its parameters must stay below what one message may carry.
pub(super) const STATEMENT_BYTES_MAX: usize = 64 << 20;

/// What was stored, and the first of each lane that is new to claim.
#[derive(Debug)]
pub(super) struct StoredSubmission {
    pub(super) submitted: Vec<SubmittedTask>,
    pub(super) first_ready: Vec<ReadyRow>,
}

pub(super) async fn submit(
    store: &PostgresInner,
    mut submission: Submission,
) -> Result<Vec<SubmittedTask>> {
    rules::check_submission(&submission, PAYLOAD_BYTES_MAX)?;
    let stored = match submit_fast(store, &submission).await? {
        Some(stored) => stored,
        None => {
            let attempt = submission.submitting_attempt.take();
            // Before names and limits are made, which a submission that is refused must not leave behind.
            // Only one whose attempt ends from here to its last statement does, as names come first.
            if let Some(attempt) = attempt {
                check_attempt_runs(store, attempt).await?;
            }
            set_submitted_limits(store, &submission).await?;
            submission.limits.clear();
            let catalogue = prepare_context(store, &submission).await?;
            store.name_cache.remember(&catalogue, &submission.tasks);
            in_pipelined_transaction!(store, tx => insert_submission(store, &tx, &catalogue, &submission, attempt))
        }
    };
    store.claim_cursors.move_back(&stored.first_ready);
    store.notifier.notify_local();
    Ok(stored.submitted)
}

pub(super) async fn submit_in(
    store: &PostgresInner,
    transaction: &tokio_postgres::Transaction<'_>,
    submission: &Submission,
) -> Result<Vec<SubmittedTask>> {
    rules::check_submission(submission, PAYLOAD_BYTES_MAX)?;
    if submission.submitting_attempt.is_some() {
        // As long as the caller's transaction is open, nobody could take the lease back.
        return Err(Error::invalid(
            "a submission in a transaction of the caller's cannot be on behalf of an attempt; leave \
             on_behalf_of empty, or submit without a transaction",
        ));
    }
    set_submitted_limits(store, submission).await?;
    let without_limits;
    let submission = if submission.limits.is_empty() {
        submission
    } else {
        without_limits = Submission { limits: Vec::new(), ..submission.clone() };
        &without_limits
    };
    let catalogue = prepare_context(store, submission).await?;
    let tx = Tx::borrowed_from_caller(store, transaction);
    tx.execute("SAVEPOINT tidegate_submit", &[]).await?;
    match insert_submission(store, &tx, &catalogue, submission, None).await {
        Ok(StoredSubmission { submitted, .. }) => {
            tx.execute("RELEASE SAVEPOINT tidegate_submit", &[]).await?;
            Ok(submitted)
        }
        Err(fault) => {
            tx.execute("ROLLBACK TO SAVEPOINT tidegate_submit", &[]).await?;
            Err(fault.into())
        }
    }
}

/// Sets the limits that tasks bring along, where nobody has, before there are tasks: a task that
/// is stored is never without its limit. A limit begins in a transaction of its own, as names do.
async fn set_submitted_limits(store: &PostgresInner, submission: &Submission) -> Result<()> {
    if submission.limits.is_empty() {
        return Ok(());
    }
    // A submission that is refused leaves no limit behind, so it is tried on paper first.
    let catalogue = with_autocommit!(store, tx => read_context(store, &tx, submission));
    rules::submit(&mut catalogue.dry_run_working_set(), submission)?;
    for (group, capacity) in &submission.limits {
        let name = LimitScope::Group.limit_name(group);
        if !catalogue.is_capacity_settled(&name) {
            let set = SetLimit { name, capacity: Some(*capacity), source: CapacitySource::Submit };
            set_limit(store, set).await?;
        }
    }
    Ok(())
}

/// Kinds, lanes and limits as a submit needs to know them. What it names for the first time
/// is made here, in a transaction of its own: a long transaction of the caller's must not keep
/// others from the same names.
async fn prepare_context(store: &PostgresInner, submission: &Submission) -> Result<SubmitContext> {
    for _ in 0..NAME_ROUNDS_MAX {
        let catalogue = with_autocommit!(store, tx => read_context(store, &tx, submission));
        if !catalogue.lacks_names_of(submission) {
            return Ok(catalogue);
        }
        // A submission that is refused leaves no trace, so it is tried on paper first.
        let mut working_set = catalogue.dry_run_working_set();
        rules::submit(&mut working_set, submission)?;
        if !has_new_names(&working_set) {
            // What is missing belongs to a task that repeats the unique key of another.
            return Ok(catalogue);
        }
        in_transaction!(store, tx => make_names(&tx, &working_set));
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "the kinds and jobs of the submission go away as fast as they are made",
    ))
}

#[derive(Debug, Clone)]
pub(super) struct SubmitContext {
    now: i64,
    virtual_time: i64,
    pub(super) limits_version: i64,
    pub(super) kinds: Vec<Kind>,
    /// By queue and kind.
    pub(super) lanes: BTreeMap<(String, String), i64>,
    limits: Vec<Limit>,
}

impl SubmitContext {
    fn working_set(&self) -> WorkingSet {
        let mut draft = WorkingSet::new(self.now, self.virtual_time, self.limits_version, 0);
        self.kinds.iter().for_each(|kind| draft.add_kind(kind.clone()));
        for ((queue, kind), id) in &self.lanes {
            let name = (queue.as_str().into(), kind.as_str().into());
            draft.state.lanes.insert(name, LaneId(*id));
        }
        self.limits.iter().for_each(|limit| draft.add_limit(limit.clone()));
        draft.finish_loading();
        draft
    }

    /// Returns a draft for a submission that is only checked: it takes no copies of the payloads.
    fn dry_run_working_set(&self) -> WorkingSet {
        let mut draft = self.working_set();
        draft.state.omits_payloads = true;
        draft
    }

    /// A catalogue that names one lane, and the kind and the queue of it.
    #[cfg(test)]
    pub(super) fn with_lane(queue: &str, kind: &str, lane: i64) -> Self {
        let kinds = vec![Kind::new(kind)];
        let lanes = [((queue.to_owned(), kind.to_owned()), lane)].into();
        Self { now: 0, virtual_time: 0, limits_version: 1, kinds, lanes, limits: Vec::new() }
    }

    /// Adds the limit of a group.
    #[cfg(test)]
    pub(super) fn with_limit(mut self, group: &str) -> Self {
        let name = LimitScope::Group.limit_name(group);
        self.limits.push(Limit::new(
            tidegate_core::LimitId(1),
            &name,
            Some(1),
            CapacitySource::Operator,
            0,
            None,
        ));
        self
    }

    /// Of a group that was asked about.
    pub(super) fn is_limited(&self, group: &str) -> bool {
        let name = LimitScope::Group.limit_name(group);
        self.limits.iter().any(|limit| *limit.name == *name)
    }

    /// Whether a submit's capacity would change nothing any more.
    fn is_capacity_settled(&self, limit_name: &str) -> bool {
        let limit = self.limits.iter().find(|limit| *limit.name == *limit_name);
        limit.is_some_and(|limit| {
            let base = limit.capacity_without_override.map_or(CapacitySource::Unset, |base| base.1);
            !CapacitySource::Submit.may_replace(limit.source)
                && !CapacitySource::Submit.may_replace(base)
        })
    }

    fn lacks_names_of(&self, submission: &Submission) -> bool {
        let kinds: BTreeMap<&str, &Kind> =
            self.kinds.iter().map(|kind| (&*kind.name, kind)).collect();
        let limits: BTreeSet<&str> = self.limits.iter().map(|limit| &*limit.name).collect();
        let jobs = submission.jobs.iter().map(|job| job.name.as_str());
        let mut jobs = jobs.chain(submission.tasks.iter().filter_map(|task| task.job.as_deref()));
        let no_lane = |task: &NewTask| {
            kinds.get(task.kind.as_str()).is_none_or(|kind| {
                let queue = task.queue.as_deref().unwrap_or(&kind.queue);
                !self.lanes.contains_key(&(queue.to_owned(), task.kind.clone()))
            })
        };
        jobs.any(|job| !limits.contains(LimitScope::Job.limit_name(job).as_str()))
            || submission.tasks.iter().any(no_lane)
    }
}

/// In one round trip. Each statement sees what was committed before it, and the counters come first:
/// the stamp of a task is never newer than what is known of the limits.
async fn read_context(
    store: &PostgresInner,
    tx: &Tx<'_>,
    submission: &Submission,
) -> Result<SubmitContext, TxError> {
    let kinds: BTreeSet<&str> = submission.tasks.iter().map(|task| task.kind.as_str()).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut limits: BTreeSet<String> =
        submission.jobs.iter().map(|job| LimitScope::Job.limit_name(&job.name)).collect();
    limits.extend(submission.limits.iter().map(|(group, _)| LimitScope::Group.limit_name(group)));
    for task in &submission.tasks {
        limits.extend(task.job.as_ref().map(|job| LimitScope::Job.limit_name(job)));
        limits.insert(LimitScope::Group.limit_name(task.group()));
    }
    let limits: Vec<String> = limits.into_iter().collect();
    let (of_kinds, of_limits): (Params<'_>, Params<'_>) = (&[&kinds], &[&limits]);
    let (start, lanes, limits, kinds) = tokio::try_join!(biased;
        read_tx_start(store, tx),
        tx.query(LANES_OF_KINDS, of_kinds),
        tx.query(LIMITS_BY_NAME, of_limits),
        read_kinds(tx, &kinds),
    )?;
    Ok(SubmitContext {
        now: start.now,
        virtual_time: start.virtual_time,
        limits_version: start.limits_version,
        kinds,
        lanes: lanes
            .iter()
            .map(|row| ((row.get("queue"), row.get("kind")), row.get("id")))
            .collect(),
        limits: limits.iter().map(rows::limit_without_held).collect::<Result<_>>()?,
    })
}

fn has_new_names(working_set: &WorkingSet) -> bool {
    let (old, new) = (&working_set.before, &working_set.state);
    (new.kinds.len(), new.lanes.len()) != (old.kinds.len(), old.lanes.len())
        || new.limits.range(tidegate_core::LimitId(PLACEHOLDER_ID_MIN)..).next().is_some()
}

/// Makes the names that a draft has and the store has not.
async fn make_names(tx: &Tx<'_>, draft: &WorkingSet) -> Result<(), TxError> {
    tx.query(LOCK_NAME_CREATION, &[]).await?;
    let (old, new) = (&draft.before, &draft.state);
    let kinds: Vec<&Kind> = new
        .kinds
        .values()
        .filter(|kind| !old.kinds.contains_key(&kind.name))
        .map(|kind| &**kind)
        .collect();
    tx.execute(
        INSERT_KINDS,
        &[
            &kinds.iter().map(|kind| &*kind.name).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| &*kind.queue).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_attempts)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.base_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.cap_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_crashes)).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let mut lanes: Vec<_> =
        new.lanes.iter().filter(|(name, _)| !old.lanes.contains_key(*name)).collect();
    lanes.sort_by_key(|(_, id)| **id);
    tx.execute(
        INSERT_LANES,
        &[
            &lanes.iter().map(|((queue, _), _)| &**queue).collect::<Vec<_>>(),
            &lanes.iter().map(|((_, kind), _)| &**kind).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let made = new.limits.range(tidegate_core::LimitId(PLACEHOLDER_ID_MIN)..);
    let made: Vec<&Limit> = made.map(|(_, limit)| limit).collect();
    tx.execute(INSERT_LIMITS, &NewLimitColumns::from_limits(&made).params()).await?;
    Ok(())
}

/// Commits, where the transaction is not the caller's; where there are no unique keys, in two round
/// trips. Where it is on behalf of an attempt, only if that runs.
async fn insert_submission(
    store: &PostgresInner,
    tx: &Tx<'_>,
    context: &SubmitContext,
    submission: &Submission,
    attempt: Option<(TaskId, Token)>,
) -> Result<StoredSubmission, TxError> {
    let mut draft = context.working_set();
    let own_keys = take_unique_keys(tx, &mut draft, submission).await?;
    let mut submitted = rules::submit(&mut draft, submission)?;
    let new: Vec<TaskId> = draft.state.tasks.keys().copied().collect();
    let ids = tx.query(NEXT_TASK_IDS, &[&(new.len() as i64)]).await?;
    let mut ids: Vec<i64> = ids.iter().map(|row| row.get("id")).collect();
    ids.sort_unstable();
    let ids: BTreeMap<TaskId, i64> = new.into_iter().zip(ids).collect();
    let put_keys = async {
        if own_keys.is_empty() {
            return Ok(());
        }
        let task = |key: &&str| draft.state.unique_keys.get(*key).and_then(|task| ids.get(task));
        let tasks: Vec<Option<&i64>> = own_keys.iter().map(|key| task(&key.as_str())).collect();
        tx.execute(SET_UNIQUE_KEY_TASKS, &[&own_keys, &tasks]).await.map(drop)
    };
    let (now, tasks) = (draft.state.now, draft.state.tasks.values().collect::<Vec<_>>());
    let parts = split_by_payload_bytes(&tasks);
    let (last, first) = parts.split_last().map_or((&[][..], &[][..]), |(last, rest)| (*last, rest));
    for part in first {
        insert_tasks(tx, now, part, &ids).await?;
    }
    tokio::try_join!(biased;
        insert_tasks(tx, now, last, &ids),
        insert_positions(tx, &draft, &ids),
        put_keys,
        tx.query(NOTIFY, &[]),
        lock_running_attempt(store, tx, attempt),
        tx.commit(),
    )?;
    for one in &mut submitted {
        one.task = ids.get(&one.task).map_or(one.task, |id| TaskId(*id));
    }
    let mut ready = first_of_each_lane(draft.state.ready.iter());
    ready.iter_mut().for_each(|row| row.task = TaskId(ids[&row.task]));
    Ok(StoredSubmission { submitted, first_ready: ready })
}

/// Takes the unique keys that are free; the others name their task in the draft.
async fn take_unique_keys(
    tx: &Tx<'_>,
    draft: &mut WorkingSet,
    submission: &Submission,
) -> Result<Vec<String>, TxError> {
    let keys = submission.tasks.iter().filter_map(|task| task.unique_key.as_deref());
    let mut wanted: BTreeSet<&str> = keys.collect();
    let mut own = Vec::new();
    while !wanted.is_empty() {
        let asked: Vec<&str> = wanted.iter().copied().collect();
        for row in tx.query(INSERT_UNIQUE_KEYS, &[&asked]).await? {
            let key: String = row.get("key");
            wanted.remove(key.as_str());
            own.push(key);
        }
        let asked: Vec<&str> = wanted.iter().copied().collect();
        if asked.is_empty() {
            break;
        }
        // One that is neither free nor taken was given back in between: ask again.
        for row in tx.query(UNIQUE_KEYS_TAKEN, &[&asked]).await? {
            let key: &str = row.get("key");
            draft.state.unique_keys.insert(key.into(), TaskId(row.get("task")));
            wanted.remove(key);
        }
    }
    Ok(own)
}

/// Tasks in parts whose payloads fit into a statement each.
fn split_by_payload_bytes<'a>(tasks: &'a [&'a StoredTask]) -> Vec<&'a [&'a StoredTask]> {
    let (mut parts, mut from) = (Vec::new(), 0);
    while from < tasks.len() {
        let mut bytes = 0;
        let fits = tasks[from..].iter().take_while(|task| {
            bytes += task.submitted.payload.len();
            bytes <= STATEMENT_BYTES_MAX
        });
        let to = from + fits.count().max(1);
        parts.push(&tasks[from..to]);
        from = to;
    }
    parts
}

async fn insert_tasks(
    tx: &Tx<'_>,
    now: i64,
    part: &[&StoredTask],
    ids: &BTreeMap<TaskId, i64>,
) -> Result<(), TxError> {
    tx.execute(
        INSERT_TASKS,
        &[
            &part.iter().map(|task| ids[&task.info.task]).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.lane.0).collect::<Vec<_>>(),
            &part.iter().map(|task| &*task.info.kind).collect::<Vec<_>>(),
            &part.iter().map(|task| &*task.queue).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.group.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.job.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.workflow.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.submitted.unique_key.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| i64::from(task.info.weight)).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.priority).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.max_attempts.map(i64::from)).collect::<Vec<_>>(),
            &part.iter().map(|task| task.submitted.timeout_ms).collect::<Vec<_>>(),
            &part.iter().map(|task| task.submitted.payload.as_slice()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.due_at).collect::<Vec<_>>(),
            &part.iter().map(|task| task.info.on_failure as i32).collect::<Vec<_>>(),
            &part.iter().map(|task| task.submitted.trace.as_deref()).collect::<Vec<_>>(),
            &now,
        ],
    )
    .await
    .map(drop)
}

async fn insert_positions(
    tx: &Tx<'_>,
    draft: &WorkingSet,
    ids: &BTreeMap<TaskId, i64>,
) -> Result<(), TxError> {
    let state = &draft.state;
    let ready: Vec<&ReadyRow> = state.ready.iter().collect();
    let line: Vec<WaiterRow> = Vec::new();
    let none: Vec<i64> = Vec::new();
    tx.execute(
        INSERT_POSITIONS,
        &[
            &state.scheduled.iter().map(|(_, task)| ids[task]).collect::<Vec<_>>(),
            &state.scheduled.iter().map(|(run_at, _)| *run_at).collect::<Vec<_>>(),
            &state.inbox.iter().map(|task| ids[task]).collect::<Vec<_>>(),
            &ready.iter().map(|row| ids[&row.task]).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.lane.0).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.rank).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.tag).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.limits_version).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.holds_slots).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.ready_at).collect::<Vec<_>>(),
            &none,
            &none,
            &line.iter().map(|row| row.wait_reason as i32).collect::<Vec<_>>(),
            &none,
            &none,
            &none,
            &none,
            &none,
            &line.iter().map(|row| row.in_job_window).collect::<Vec<_>>(),
            &none,
            &none,
            &none,
            &none,
            &line.iter().map(|row| row.in_job_window).collect::<Vec<_>>(),
            &state
                .inbox
                .iter()
                .map(|task| state.fair_share_job(*task).map(|job| &**job))
                .collect::<Vec<_>>(),
        ],
    )
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submit_dry_run_copies_no_payload() {
        let tasks = vec![NewTask::new("a", vec![0; 1 << 20]); 3];
        let submission = Submission { tasks, ..Submission::default() };
        let mut draft = SubmitContext::with_lane("default", "a", 1).dry_run_working_set();
        rules::submit(&mut draft, &submission).expect("submit");
        let bytes: usize =
            draft.state.tasks.values().map(|task| task.submitted.payload.len()).sum();
        assert_eq!((draft.state.tasks.len(), bytes), (3, 0));
    }
}
