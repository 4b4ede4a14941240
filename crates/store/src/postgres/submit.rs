//! Stores tasks. It only inserts.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::tables::{LineRow, ReadyRow};
use tidegate_core::{
    Error, ErrorKind, Kind, LaneId, Limit, NewTask, Result, Scope, SetLimit, Source, Submission,
    Submitted, TaskId, Token, rules,
};

use super::behalf::{keep_running, refuse_stopped};
use super::draft::{Draft, STAND_IN};
use super::error::Fault;
use super::floors::first_of_lanes;
use super::load::{kinds_named, moment};
use super::made::{MAKE_LIMITS, Made};
use super::put::put;
use super::rows;
use super::session::{Params, Tx, at_once, glimpse};
use super::set_limit::set_limit;
use super::{Inner, transact};
use crate::memory::state::Task;

const LANES_OF_KINDS: &str = include_str!("queries/lanes_of_kinds.sql");
const LIMITS_NAMED: &str = include_str!("queries/limits_by_name.sql");
const NAMES_LOCK: &str = include_str!("queries/lock_name_creation.sql");
const MAKE_KINDS: &str = include_str!("queries/insert_kinds.sql");
const MAKE_LANES: &str = include_str!("queries/insert_lanes.sql");
const TAKE_KEYS: &str = include_str!("queries/insert_unique_keys.sql");
const KEYS_TAKEN: &str = include_str!("queries/unique_keys_taken.sql");
const PUT_KEYS: &str = include_str!("queries/set_unique_key_tasks.sql");
const TASK_IDS: &str = include_str!("queries/next_task_ids.sql");
const INSERT_TASKS: &str = include_str!("queries/insert_tasks.sql");
const ENTER: &str = include_str!("queries/insert_positions.sql");
const NOTIFY: &str = include_str!("queries/notify.sql");

/// Times the names are looked up and made.
const NAMES_MAX: u32 = 10;

/// Tasks in one statement: its parameters must stay below what one message may carry.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// What was stored, and the first of each lane that is new to claim.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) submitted: Vec<Submitted>,
    pub(super) ready: Vec<ReadyRow>,
}

pub(super) async fn submit(store: &Inner, mut submission: Submission) -> Result<Vec<Submitted>> {
    rules::check_submission(&submission, PAYLOAD_BYTES_MAX)?;
    let stored = match put(store, &submission).await? {
        Some(stored) => stored,
        None => {
            let attempt = submission.on_behalf_of.take();
            // Before names and limits are made, which a submission that is refused must not leave behind.
            // Only one whose attempt ends from here to its last statement does, as names come first.
            if let Some(attempt) = attempt {
                refuse_stopped(store, attempt).await?;
            }
            set_limits(store, &submission).await?;
            submission.limits.clear();
            let catalogue = catalogue(store, &submission).await?;
            store.names.learn(&catalogue, &submission.tasks);
            at_once!(store, tx => insert(store, &tx, &catalogue, &submission, attempt))
        }
    };
    store.floors.lower(&stored.ready);
    store.changed.here();
    Ok(stored.submitted)
}

pub(super) async fn submit_in(
    store: &Inner,
    transaction: &tokio_postgres::Transaction<'_>,
    submission: &Submission,
) -> Result<Vec<Submitted>> {
    rules::check_submission(submission, PAYLOAD_BYTES_MAX)?;
    if submission.on_behalf_of.is_some() {
        // As long as the caller's transaction is open, nobody could take the lease back.
        return Err(Error::invalid(
            "a submission in a transaction of the caller's cannot be on behalf of an attempt; leave \
             on_behalf_of empty, or submit without a transaction",
        ));
    }
    set_limits(store, submission).await?;
    let without_limits;
    let submission = if submission.limits.is_empty() {
        submission
    } else {
        without_limits = Submission { limits: Vec::new(), ..submission.clone() };
        &without_limits
    };
    let catalogue = catalogue(store, submission).await?;
    let tx = Tx::of_caller(store, transaction);
    tx.execute("SAVEPOINT tidegate_submit", &[]).await?;
    match insert(store, &tx, &catalogue, submission, None).await {
        Ok(Stored { submitted, .. }) => {
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
async fn set_limits(store: &Inner, submission: &Submission) -> Result<()> {
    if submission.limits.is_empty() {
        return Ok(());
    }
    // A submission that is refused leaves no limit behind, so it is tried on paper first.
    let catalogue = glimpse!(store, tx => look(store, &tx, submission));
    rules::submit(&mut catalogue.dry_run(), submission)?;
    for (group, capacity) in &submission.limits {
        let name = Scope::Group.name(group);
        if !catalogue.has_set(&name) {
            let set = SetLimit { name, capacity: Some(*capacity), source: Source::Submit };
            set_limit(store, set).await?;
        }
    }
    Ok(())
}

/// Kinds, lanes and limits as a submit needs to know them. What it names for the first time
/// is made here, in a transaction of its own: a long transaction of the caller's must not keep
/// others from the same names.
async fn catalogue(store: &Inner, submission: &Submission) -> Result<Catalogue> {
    for _ in 0..NAMES_MAX {
        let catalogue = glimpse!(store, tx => look(store, &tx, submission));
        if !catalogue.is_missing(submission) {
            return Ok(catalogue);
        }
        // A submission that is refused leaves no trace, so it is tried on paper first.
        let mut draft = catalogue.dry_run();
        rules::submit(&mut draft, submission)?;
        if !has_new_names(&draft) {
            // What is missing belongs to a task that repeats the unique key of another.
            return Ok(catalogue);
        }
        transact!(store, tx => make(&tx, &draft));
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "the kinds and jobs of the submission go away as fast as they are made",
    ))
}

#[derive(Debug, Clone)]
pub(super) struct Catalogue {
    now: i64,
    virtual_time: i64,
    pub(super) limits_version: i64,
    pub(super) kinds: Vec<Kind>,
    /// By queue and kind.
    pub(super) lanes: BTreeMap<(String, String), i64>,
    limits: Vec<Limit>,
}

impl Catalogue {
    fn draft(&self) -> Draft {
        let mut draft = Draft::new(self.now, self.virtual_time, self.limits_version, 0);
        self.kinds.iter().for_each(|kind| draft.add_kind(kind.clone()));
        for ((queue, kind), id) in &self.lanes {
            let name = (queue.as_str().into(), kind.as_str().into());
            draft.state.lanes.insert(name, LaneId(*id));
        }
        self.limits.iter().for_each(|limit| draft.add_limit(limit.clone()));
        draft.seal();
        draft
    }

    /// Returns a draft for a submission that is only checked: it takes no copies of the payloads.
    fn dry_run(&self) -> Draft {
        let mut draft = self.draft();
        draft.state.drops_payloads = true;
        draft
    }

    /// A catalogue that names one lane, and the kind and the queue of it.
    #[cfg(test)]
    pub(super) fn of_lane(queue: &str, kind: &str, lane: i64) -> Self {
        let kinds = vec![Kind::new(kind)];
        let lanes = [((queue.to_owned(), kind.to_owned()), lane)].into();
        Self { now: 0, virtual_time: 0, limits_version: 1, kinds, lanes, limits: Vec::new() }
    }

    /// Adds the limit of a group.
    #[cfg(test)]
    pub(super) fn with_limit(mut self, group: &str) -> Self {
        let name = Scope::Group.name(group);
        self.limits.push(Limit::new(
            tidegate_core::LimitId(1),
            &name,
            Some(1),
            Source::Operator,
            0,
            None,
        ));
        self
    }

    /// Of a group that was asked about.
    pub(super) fn is_limited(&self, group: &str) -> bool {
        let name = Scope::Group.name(group);
        self.limits.iter().any(|limit| *limit.name == *name)
    }

    /// Whether a submit's capacity would change nothing any more.
    fn has_set(&self, limit_name: &str) -> bool {
        let limit = self.limits.iter().find(|limit| *limit.name == *limit_name);
        limit.is_some_and(|limit| {
            let base = limit.base.map_or(Source::Unset, |base| base.1);
            !Source::Submit.replaces(limit.source) && !Source::Submit.replaces(base)
        })
    }

    fn is_missing(&self, submission: &Submission) -> bool {
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
        jobs.any(|job| !limits.contains(Scope::Job.name(job).as_str()))
            || submission.tasks.iter().any(no_lane)
    }
}

/// In one round trip. Each statement sees what was committed before it, and the counters come first:
/// the stamp of a task is never newer than what is known of the limits.
async fn look(store: &Inner, tx: &Tx<'_>, submission: &Submission) -> Result<Catalogue, Fault> {
    let kinds: BTreeSet<&str> = submission.tasks.iter().map(|task| task.kind.as_str()).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut limits: BTreeSet<String> =
        submission.jobs.iter().map(|job| Scope::Job.name(&job.name)).collect();
    limits.extend(submission.limits.iter().map(|(group, _)| Scope::Group.name(group)));
    for task in &submission.tasks {
        limits.extend(task.job.as_ref().map(|job| Scope::Job.name(job)));
        limits.insert(Scope::Group.name(task.group()));
    }
    let limits: Vec<String> = limits.into_iter().collect();
    let (of_kinds, of_limits): (Params<'_>, Params<'_>) = (&[&kinds], &[&limits]);
    let (moment, lanes, limits, kinds) = tokio::try_join!(biased;
        moment(store, tx),
        tx.query(LANES_OF_KINDS, of_kinds),
        tx.query(LIMITS_NAMED, of_limits),
        kinds_named(tx, &kinds),
    )?;
    Ok(Catalogue {
        now: moment.now,
        virtual_time: moment.virtual_time,
        limits_version: moment.limits_version,
        kinds,
        lanes: lanes
            .iter()
            .map(|row| ((row.get("queue"), row.get("kind")), row.get("id")))
            .collect(),
        limits: limits.iter().map(rows::limit).collect::<Result<_>>()?,
    })
}

fn has_new_names(draft: &Draft) -> bool {
    let (old, new) = (&draft.before, &draft.state);
    (new.kinds.len(), new.lanes.len()) != (old.kinds.len(), old.lanes.len())
        || new.limits.range(tidegate_core::LimitId(STAND_IN)..).next().is_some()
}

/// Makes the names that a draft has and the store has not.
async fn make(tx: &Tx<'_>, draft: &Draft) -> Result<(), Fault> {
    tx.query(NAMES_LOCK, &[]).await?;
    let (old, new) = (&draft.before, &draft.state);
    let kinds: Vec<&Kind> = new
        .kinds
        .values()
        .filter(|kind| !old.kinds.contains_key(&kind.name))
        .map(|kind| &**kind)
        .collect();
    tx.execute(
        MAKE_KINDS,
        &[
            &kinds.iter().map(|kind| &*kind.name).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| &*kind.queue).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_attempts)).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.base_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| kind.backoff.cap_ms).collect::<Vec<_>>(),
            &kinds.iter().map(|kind| i64::from(kind.max_deaths)).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let mut lanes: Vec<_> =
        new.lanes.iter().filter(|(name, _)| !old.lanes.contains_key(*name)).collect();
    lanes.sort_by_key(|(_, id)| **id);
    tx.execute(
        MAKE_LANES,
        &[
            &lanes.iter().map(|((queue, _), _)| &**queue).collect::<Vec<_>>(),
            &lanes.iter().map(|((_, kind), _)| &**kind).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let made = new.limits.range(tidegate_core::LimitId(STAND_IN)..);
    let made: Vec<&Limit> = made.map(|(_, limit)| limit).collect();
    tx.execute(MAKE_LIMITS, &Made::of(&made).params()).await?;
    Ok(())
}

/// Commits, where the transaction is not the caller's; where there are no unique keys, in two round
/// trips. Where it is on behalf of an attempt, only if that runs.
async fn insert(
    store: &Inner,
    tx: &Tx<'_>,
    catalogue: &Catalogue,
    submission: &Submission,
    attempt: Option<(TaskId, Token)>,
) -> Result<Stored, Fault> {
    let mut draft = catalogue.draft();
    let own_keys = take_keys(tx, &mut draft, submission).await?;
    let mut submitted = rules::submit(&mut draft, submission)?;
    let new: Vec<TaskId> = draft.state.tasks.keys().copied().collect();
    let ids = tx.query(TASK_IDS, &[&(new.len() as i64)]).await?;
    let mut ids: Vec<i64> = ids.iter().map(|row| row.get("id")).collect();
    ids.sort_unstable();
    let ids: BTreeMap<TaskId, i64> = new.into_iter().zip(ids).collect();
    let put_keys = async {
        if own_keys.is_empty() {
            return Ok(());
        }
        let task = |key: &&str| draft.state.unique.get(*key).and_then(|task| ids.get(task));
        let tasks: Vec<Option<&i64>> = own_keys.iter().map(|key| task(&key.as_str())).collect();
        tx.execute(PUT_KEYS, &[&own_keys, &tasks]).await.map(drop)
    };
    let (now, tasks) = (draft.state.now, draft.state.tasks.values().collect::<Vec<_>>());
    let parts = parts(&tasks);
    let (last, first) = parts.split_last().map_or((&[][..], &[][..]), |(last, rest)| (*last, rest));
    for part in first {
        insert_tasks(tx, now, part, &ids).await?;
    }
    tokio::try_join!(biased;
        insert_tasks(tx, now, last, &ids),
        enter(tx, &draft, &ids),
        put_keys,
        tx.query(NOTIFY, &[]),
        keep_running(store, tx, attempt),
        tx.commit(),
    )?;
    for one in &mut submitted {
        one.task = ids.get(&one.task).map_or(one.task, |id| TaskId(*id));
    }
    let mut ready = first_of_lanes(draft.state.ready.iter());
    ready.iter_mut().for_each(|row| row.task = TaskId(ids[&row.task]));
    Ok(Stored { submitted, ready })
}

/// Takes the unique keys that are free; the others name their task in the draft.
async fn take_keys(
    tx: &Tx<'_>,
    draft: &mut Draft,
    submission: &Submission,
) -> Result<Vec<String>, Fault> {
    let keys = submission.tasks.iter().filter_map(|task| task.unique_key.as_deref());
    let mut wanted: BTreeSet<&str> = keys.collect();
    let mut own = Vec::new();
    while !wanted.is_empty() {
        let asked: Vec<&str> = wanted.iter().copied().collect();
        for row in tx.query(TAKE_KEYS, &[&asked]).await? {
            let key: String = row.get("key");
            wanted.remove(key.as_str());
            own.push(key);
        }
        let asked: Vec<&str> = wanted.iter().copied().collect();
        if asked.is_empty() {
            break;
        }
        // One that is neither free nor taken was given back in between: ask again.
        for row in tx.query(KEYS_TAKEN, &[&asked]).await? {
            let key: &str = row.get("key");
            draft.state.unique.insert(key.into(), TaskId(row.get("task")));
            wanted.remove(key);
        }
    }
    Ok(own)
}

/// Tasks in parts whose payloads fit into a statement each.
fn parts<'a>(tasks: &'a [&'a Task]) -> Vec<&'a [&'a Task]> {
    let (mut parts, mut from) = (Vec::new(), 0);
    while from < tasks.len() {
        let mut bytes = 0;
        let fits = tasks[from..].iter().take_while(|task| {
            bytes += task.new.payload.len();
            bytes <= BYTES_MAX
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
    part: &[&Task],
    ids: &BTreeMap<TaskId, i64>,
) -> Result<(), Fault> {
    tx.execute(
        INSERT_TASKS,
        &[
            &part.iter().map(|task| ids[&task.tags.task]).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.lane.0).collect::<Vec<_>>(),
            &part.iter().map(|task| &*task.tags.kind).collect::<Vec<_>>(),
            &part.iter().map(|task| &*task.queue).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.group.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.job.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.workflow.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.new.unique_key.as_deref()).collect::<Vec<_>>(),
            &part.iter().map(|task| i64::from(task.tags.weight)).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.priority).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.max_attempts.map(i64::from)).collect::<Vec<_>>(),
            &part.iter().map(|task| task.new.timeout_ms).collect::<Vec<_>>(),
            &part.iter().map(|task| task.new.payload.as_slice()).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.arrival).collect::<Vec<_>>(),
            &part.iter().map(|task| task.tags.on_failure as i32).collect::<Vec<_>>(),
            &part.iter().map(|task| task.new.trace.as_deref()).collect::<Vec<_>>(),
            &now,
        ],
    )
    .await
    .map(drop)
}

async fn enter(tx: &Tx<'_>, draft: &Draft, ids: &BTreeMap<TaskId, i64>) -> Result<(), Fault> {
    let state = &draft.state;
    let ready: Vec<&ReadyRow> = state.ready.iter().collect();
    let line: Vec<LineRow> = Vec::new();
    let none: Vec<i64> = Vec::new();
    tx.execute(
        ENTER,
        &[
            &state.scheduled.iter().map(|(_, task)| ids[task]).collect::<Vec<_>>(),
            &state.scheduled.iter().map(|(run_at, _)| *run_at).collect::<Vec<_>>(),
            &state.arrived.iter().map(|task| ids[task]).collect::<Vec<_>>(),
            &ready.iter().map(|row| ids[&row.task]).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.lane.0).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.rank).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.tag).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.stamp).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.gated).collect::<Vec<_>>(),
            &ready.iter().map(|row| row.since).collect::<Vec<_>>(),
            &none,
            &none,
            &line.iter().map(|row| row.class as i32).collect::<Vec<_>>(),
            &none,
            &none,
            &none,
            &none,
            &none,
            &line.iter().map(|row| row.passed).collect::<Vec<_>>(),
            &none,
            &none,
            &none,
            &none,
            &line.iter().map(|row| row.passed).collect::<Vec<_>>(),
            &state
                .arrived
                .iter()
                .map(|task| state.job_at_gate(*task).map(|job| &**job))
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
    fn dry_run_of_a_submission_copies_no_payload() {
        let tasks = vec![NewTask::new("a", vec![0; 1 << 20]); 3];
        let submission = Submission { tasks, ..Submission::default() };
        let mut draft = Catalogue::of_lane("default", "a", 1).dry_run();
        rules::submit(&mut draft, &submission).expect("submit");
        let bytes: usize = draft.state.tasks.values().map(|task| task.new.payload.len()).sum();
        assert_eq!((draft.state.tasks.len(), bytes), (3, 0));
    }
}
