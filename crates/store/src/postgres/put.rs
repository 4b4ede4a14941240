//! Stores plain tasks in one statement: what has to be known of their names is remembered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::requests::{FallbackReason, RequestPath};
use tidegate_core::tables::ReadyRow;
use tidegate_core::{
    Kind, LaneId, Millis, NewTask, Result, Submission, Submitted, TaskId, ready_rank,
};

use super::Inner;
use super::call::{self, Verb};
use super::error::Fault;
use super::floors::{first_of_lanes, key};
use super::session::{Params, Tx, glimpse};
use super::submit::{BYTES_MAX, Catalogue, Stored};

const PUT: &str = include_str!("queries/submit_fast.sql");

/// What is remembered is asked for again after so long: limits may have gone away.
const FRESH: Duration = Duration::from_secs(10);

/// Names that are remembered at most.
const NAMES_MAX: usize = 10_000;

/// What this process knows of names. The server says whether it is still so.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<Arc<Known>>);

#[derive(Debug, Clone, Default)]
struct Known {
    /// When the first of it was heard.
    since: Option<Instant>,
    limits_version: i64,
    /// Kinds and their queues.
    kinds: HashMap<String, String>,
    /// By kind and queue.
    lanes: HashMap<String, HashMap<String, i64>>,
    /// Whether groups have limits.
    groups: HashMap<String, bool>,
}

#[expect(clippy::disallowed_methods, reason = "how long names are kept; the server checks them")]
fn now() -> Instant {
    Instant::now()
}

impl Names {
    /// What was looked up for these tasks.
    ///
    /// A submit in flight shares the names, so new names are added to a copy. The copy is made without the
    /// mutex, and only if there is a new name.
    pub(super) fn learn(&self, catalogue: &Catalogue, tasks: &[NewTask]) {
        loop {
            let before = self.lock().clone();
            if before.has(catalogue, tasks) {
                return;
            }
            let mut after = Known::clone(&before);
            after.add(catalogue, tasks);
            let mut known = self.lock();
            if Arc::ptr_eq(&known, &before) {
                *known = Arc::new(after);
                return;
            }
        }
    }

    fn forget(&self) {
        *self.lock() = Arc::default();
    }

    fn known(&self) -> Option<Arc<Known>> {
        let known = self.lock().clone();
        let is_fresh = known.since.is_some_and(|since| now() < since + FRESH);
        if !is_fresh {
            self.forget();
        }
        is_fresh.then_some(known)
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Whether all of these names are known, as they are.
    fn has(&self, catalogue: &Catalogue, tasks: &[NewTask]) -> bool {
        let has_kind =
            |kind: &Kind| self.kinds.get(&*kind.name).is_some_and(|q| **q == *kind.queue);
        let has_lane = |((queue, kind), id): (&(String, String), &i64)| {
            self.lanes.get(kind).and_then(|lanes| lanes.get(queue)) == Some(id)
        };
        self.since.is_some()
            && self.limits_version == catalogue.limits_version
            && catalogue.kinds.iter().all(has_kind)
            && catalogue.lanes.iter().all(has_lane)
            && tasks.iter().all(|task| self.groups.contains_key(task.group()))
    }

    fn add(&mut self, catalogue: &Catalogue, tasks: &[NewTask]) {
        let known = self;
        let names = known.kinds.len() + known.lanes.len() + known.groups.len();
        if known.limits_version != catalogue.limits_version || names > NAMES_MAX {
            *known = Known { limits_version: catalogue.limits_version, ..Known::default() };
        }
        known.since.get_or_insert_with(now);
        let kinds = catalogue.kinds.iter();
        known.kinds.extend(kinds.map(|kind| (kind.name.to_string(), kind.queue.to_string())));
        for ((queue, kind), id) in &catalogue.lanes {
            known.lanes.entry(kind.clone()).or_default().insert(queue.clone(), *id);
        }
        for task in tasks {
            let group = task.group();
            if !known.groups.contains_key(group) {
                known.groups.insert(group.to_owned(), catalogue.is_limited(group));
            }
        }
    }
}

/// Tasks as columns of the statement.
#[derive(Debug, Default)]
struct Columns<'a> {
    /// Kinds and their queues, and lanes by queue and kind, as they have to be.
    known: BTreeMap<&'a str, &'a str>,
    known_lanes: BTreeMap<i64, (&'a str, &'a str)>,
    lanes: Vec<i64>,
    kinds: Vec<&'a str>,
    queues: Vec<&'a str>,
    groups: Vec<Option<&'a str>>,
    priorities: Vec<i32>,
    attempts: Vec<Option<i64>>,
    timeouts: Vec<Option<i64>>,
    payloads: Vec<&'a [u8]>,
    gated: Vec<bool>,
    traces: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    /// None where not all is known.
    fn of(known: &'a Known, tasks: &'a [NewTask]) -> Option<Self> {
        let mut columns = Self::default();
        for task in tasks {
            let default = known.kinds.get(&task.kind)?;
            let queue = task.queue.as_ref().unwrap_or(default);
            let lane = *known.lanes.get(&task.kind)?.get(queue)?;
            if columns.lanes.last() != Some(&lane) {
                columns.known.insert(&task.kind, default);
                columns.known_lanes.insert(lane, (queue, &task.kind));
            }
            columns.lanes.push(lane);
            columns.gated.push(*known.groups.get(task.group())?);
            columns.kinds.push(&task.kind);
            columns.queues.push(queue);
            columns.groups.push(task.group.as_deref());
            columns.priorities.push(task.priority);
            columns.attempts.push(task.max_attempts.map(i64::from));
            columns.timeouts.push(task.timeout_ms);
            columns.payloads.push(&task.payload);
            columns.traces.push(task.trace.as_deref());
        }
        Some(columns)
    }
}

/// Stores a submission in one round trip, if it is plain and all its names are known. None where it
/// has to be looked at more closely.
pub(super) async fn put(store: &Inner, submission: &Submission) -> Result<Option<Stored>> {
    if !is_plain(submission) {
        call::note_fallback(Verb::Submit, FallbackReason::TaskOptions);
        return Ok(None);
    }
    let known = store.names.known();
    let columns = known.as_ref().and_then(|known| Columns::of(known, &submission.tasks));
    let Some((known, columns)) = known.as_ref().zip(columns) else {
        call::note_fallback(Verb::Submit, FallbackReason::UnknownNames);
        return Ok(None);
    };
    let stored = glimpse!(store, tx => insert(store, &tx, known.limits_version, &columns));
    match &stored {
        Some(_) => call::note_path(Verb::Submit, RequestPath::Fast),
        None => {
            store.names.forget();
            call::note_fallback(Verb::Submit, FallbackReason::UnknownNames);
        }
    }
    Ok(stored)
}

async fn insert(
    store: &Inner,
    tx: &Tx<'_>,
    limits_version: i64,
    columns: &Columns<'_>,
) -> Result<Option<Stored>, Fault> {
    let Columns { lanes, kinds, queues, groups, priorities, attempts, timeouts, .. } = columns;
    let Columns { known, known_lanes, payloads, gated, traces, .. } = columns;
    let (names, defaults): (Vec<&str>, Vec<&str>) = known.iter().unzip();
    let known_ids: Vec<i64> = known_lanes.keys().copied().collect();
    let (of_queues, of_kinds): (Vec<&str>, Vec<&str>) = known_lanes.values().copied().unzip();
    let now = store.options.now();
    let params: Params<'_> = &[
        &limits_version,
        &names,
        &defaults,
        &now,
        lanes,
        kinds,
        queues,
        groups,
        priorities,
        attempts,
        timeouts,
        payloads,
        gated,
        &known_ids,
        &of_queues,
        &of_kinds,
        traces,
    ];
    let rows = tx.query(PUT, params).await?;
    let stored = rows.first().map(|row| {
        let ids: Vec<i64> = row.get("ids");
        let ready = ready(columns, &ids, row.get("now"), row.get("virtual_time"), limits_version);
        let submitted = ids.into_iter().map(|id| Submitted { task: TaskId(id), is_new: true });
        Stored { submitted: submitted.collect(), ready }
    });
    Ok(stored)
}

/// The first of each lane that can be claimed.
fn ready(
    columns: &Columns<'_>,
    ids: &[i64],
    now: Millis,
    virtual_time: i64,
    limits_version: i64,
) -> Vec<ReadyRow> {
    let mut ready: Vec<ReadyRow> = Vec::new();
    for (at, id) in ids.iter().enumerate().filter(|(at, _)| !columns.gated[*at]) {
        ready.push(ReadyRow {
            task: TaskId(*id),
            lane: LaneId(columns.lanes[at]),
            rank: ready_rank(now, columns.priorities[at]),
            tag: virtual_time,
            stamp: limits_version,
            gated: false,
            since: now,
        });
    }
    ready.sort_unstable_by_key(|row| (row.lane, key(row)));
    first_of_lanes(ready.iter())
}

/// Whether tasks need nothing but a kind, a queue and perhaps a slot of their group.
fn is_plain(submission: &Submission) -> bool {
    let Submission { tasks, jobs, limits, on_behalf_of } = submission;
    let bytes: usize = tasks.iter().map(|task| task.payload.len()).sum();
    let is_plain = |task: &NewTask| {
        let NewTask { job, workflow, unique_key, run_at, weight, .. } = task;
        job.is_none()
            && workflow.is_none()
            && unique_key.is_none()
            && run_at.is_none()
            && *weight == 1
    };
    let is_bare = jobs.is_empty() && limits.is_empty() && on_behalf_of.is_none();
    is_bare && bytes <= BYTES_MAX && tasks.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(group: &str) -> NewTask {
        NewTask { group: Some(group.to_owned()), ..NewTask::new("a", "null") }
    }

    fn catalogue() -> Catalogue {
        Catalogue::of_lane("default", "a", 1)
    }

    #[test]
    fn names_that_are_known_already_are_not_copied() {
        let names = Names::default();
        names.learn(&catalogue(), &[task("g")]);
        let in_flight = names.known().expect("fresh names");
        names.learn(&catalogue(), &[task("g")]);
        assert!(Arc::ptr_eq(&in_flight, &names.known().expect("fresh names")));
    }

    #[test]
    fn names_that_are_learned_during_a_submit_are_added() {
        let names = Names::default();
        names.learn(&catalogue(), &[task("g")]);
        let in_flight = names.known().expect("fresh names");
        names.learn(&catalogue(), &[task("h")]);
        let known = names.known().expect("fresh names");
        assert!(Columns::of(&known, &[task("g"), task("h")]).is_some());
        assert!(Columns::of(&in_flight, &[task("h")]).is_none());
    }
}
