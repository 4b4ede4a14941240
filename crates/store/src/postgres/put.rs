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

/// How long a process remembers that a group has a limit. The statement finds out if a limit has begun, and not
/// if one has gone away: its tasks would take the way through the inbox for ever.
const LIMITED_FOR: Duration = Duration::from_secs(10);

/// Names that are remembered at most.
const NAMES_MAX: usize = 10_000;

/// What this process knows of names. The server says whether it is still so.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<Arc<Known>>);

#[derive(Debug, Clone, Default)]
struct Known {
    limits_version: i64,
    /// Kinds and their queues.
    kinds: HashMap<String, String>,
    /// By kind and queue.
    lanes: HashMap<String, HashMap<String, i64>>,
    groups: HashMap<String, Group>,
}

/// What is known of the limit of a group.
#[derive(Debug, Clone, Copy)]
enum Group {
    /// Holds until the version of the limits changes.
    Unlimited,
    /// The limit was seen at this time.
    Limited(Instant),
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
        let now = now();
        loop {
            let before = self.lock().clone();
            if before.has(catalogue, tasks, now) {
                return;
            }
            let mut after = Known::clone(&before);
            after.add(catalogue, tasks, now);
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

    fn known(&self) -> Arc<Known> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Whether all of these names are known, as they are.
    fn has(&self, catalogue: &Catalogue, tasks: &[NewTask], now: Instant) -> bool {
        let has_kind =
            |kind: &Kind| self.kinds.get(&*kind.name).is_some_and(|q| **q == *kind.queue);
        let has_lane = |((queue, kind), id): (&(String, String), &i64)| {
            self.lanes.get(kind).and_then(|lanes| lanes.get(queue)) == Some(id)
        };
        self.limits_version == catalogue.limits_version
            && catalogue.kinds.iter().all(has_kind)
            && catalogue.lanes.iter().all(has_lane)
            && tasks.iter().all(|task| self.is_limited(task.group(), now).is_some())
    }

    /// Returns whether a group has a limit, or none if that has to be looked up.
    fn is_limited(&self, group: &str, now: Instant) -> Option<bool> {
        match self.groups.get(group)? {
            Group::Unlimited => Some(false),
            Group::Limited(seen_at) => (now < *seen_at + LIMITED_FOR).then_some(true),
        }
    }

    fn add(&mut self, catalogue: &Catalogue, tasks: &[NewTask], now: Instant) {
        let known = self;
        let names = known.kinds.len() + known.lanes.len() + known.groups.len();
        if known.limits_version != catalogue.limits_version || names > NAMES_MAX {
            *known = Known { limits_version: catalogue.limits_version, ..Known::default() };
        }
        let kinds = catalogue.kinds.iter();
        known.kinds.extend(kinds.map(|kind| (kind.name.to_string(), kind.queue.to_string())));
        for ((queue, kind), id) in &catalogue.lanes {
            known.lanes.entry(kind.clone()).or_default().insert(queue.clone(), *id);
        }
        for task in tasks {
            let group = task.group();
            if known.is_limited(group, now).is_none() {
                let is_limited = catalogue.is_limited(group);
                let limit = if is_limited { Group::Limited(now) } else { Group::Unlimited };
                known.groups.insert(group.to_owned(), limit);
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
    fn of(known: &'a Known, tasks: &'a [NewTask], now: Instant) -> Option<Self> {
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
            columns.gated.push(known.is_limited(task.group(), now)?);
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
    let Some(columns) = Columns::of(&known, &submission.tasks, now()) else {
        call::note_fallback(Verb::Submit, FallbackReason::UnknownNames);
        return Ok(None);
    };
    // Noted first, so that a submit that fails is counted on this path too.
    call::note_path(Verb::Submit, RequestPath::Fast);
    let stored = glimpse!(store, tx => insert(store, &tx, known.limits_version, &columns));
    if stored.is_none() {
        store.names.forget();
        call::note_fallback(Verb::Submit, FallbackReason::UnknownNames);
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
        let in_flight = names.known();
        names.learn(&catalogue(), &[task("g")]);
        assert!(Arc::ptr_eq(&in_flight, &names.known()));
    }

    #[test]
    fn names_that_are_learned_during_a_submit_are_added() {
        let names = Names::default();
        names.learn(&catalogue(), &[task("g")]);
        let in_flight = names.known();
        names.learn(&catalogue(), &[task("h")]);
        let known = names.known();
        assert!(Columns::of(&known, &[task("g"), task("h")], now()).is_some());
        assert!(Columns::of(&in_flight, &[task("h")], now()).is_none());
    }

    #[test]
    fn names_stay_known_however_rarely_the_process_submits() {
        let names = Names::default();
        names.learn(&catalogue(), &[task("g")]);
        let later = now() + 1000 * LIMITED_FOR;
        assert!(Columns::of(&names.known(), &[task("g")], later).is_some());
    }

    #[test]
    fn limit_of_a_group_is_looked_up_again_after_a_while() {
        let mut known = Known::default();
        let (limited, began) = (catalogue().with_limit("g"), now());
        known.add(&limited, &[task("g")], began);
        let gated = |known: &Known, at| Some(Columns::of(known, &[task("g")], at)?.gated);
        assert_eq!(gated(&known, began), Some(vec![true]));
        let later = began + LIMITED_FOR;
        assert_eq!(gated(&known, later), None);
        assert!(!known.has(&limited, &[task("g")], later));
        known.add(&catalogue(), &[task("g")], later);
        assert_eq!(gated(&known, later), Some(vec![false]), "the limit has gone away");
    }
}
