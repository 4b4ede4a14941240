//! Stores plain tasks in one statement: what has to be known of their names is remembered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::request_stats::{FallbackReason, RequestPath};
use tidegate_core::tables::ReadyRow;
use tidegate_core::{
    Kind, LaneId, Millis, NewTask, Result, Submission, SubmittedTask, TaskId, ready_rank,
};

use super::PostgresInner;
use super::call::{self, Verb};
use super::claim_cursors::{first_of_each_lane, lane_key};
use super::error::TxError;
use super::submit::{STATEMENT_BYTES_MAX, StoredSubmission, SubmitContext};
use super::transaction::{Params, Tx, with_autocommit};

const SUBMIT_FAST: &str = include_str!("queries/submit_fast.sql");

/// How long a process remembers that a group has a limit. The statement finds out if a limit has begun, and not
/// if one has gone away: its tasks would take the way through the inbox for ever.
const LIMITED_FOR: Duration = Duration::from_secs(10);

/// Names that are remembered at most.
const NAMES_MAX: usize = 10_000;

/// What this process knows of names. The server says whether it is still so.
#[derive(Debug, Default)]
pub(super) struct NameCache(Mutex<Arc<CachedNames>>);

#[derive(Debug, Clone, Default)]
struct CachedNames {
    limits_version: i64,
    /// Kinds and their queues.
    kinds: HashMap<String, String>,
    /// By kind and queue.
    lanes: HashMap<String, HashMap<String, i64>>,
    limited_groups: HashMap<String, Group>,
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

impl NameCache {
    /// What was looked up for these tasks.
    ///
    /// A submit in flight shares the names, so new names are added to a copy. The copy is made without the
    /// mutex, and only if there is a new name.
    pub(super) fn remember(&self, context: &SubmitContext, tasks: &[NewTask]) {
        let now = now();
        loop {
            let before = self.lock_names().clone();
            if before.contains_names(context, tasks, now) {
                return;
            }
            let mut after = CachedNames::clone(&before);
            after.add_names(context, tasks, now);
            let mut known = self.lock_names();
            if Arc::ptr_eq(&known, &before) {
                *known = Arc::new(after);
                return;
            }
        }
    }

    fn clear(&self) {
        *self.lock_names() = Arc::default();
    }

    fn fresh_names(&self) -> Arc<CachedNames> {
        self.lock_names().clone()
    }

    fn lock_names(&self) -> MutexGuard<'_, Arc<CachedNames>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedNames {
    /// Whether all of these names are known, as they are.
    fn contains_names(&self, catalogue: &SubmitContext, tasks: &[NewTask], now: Instant) -> bool {
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
        match self.limited_groups.get(group)? {
            Group::Unlimited => Some(false),
            Group::Limited(seen_at) => (now < *seen_at + LIMITED_FOR).then_some(true),
        }
    }

    fn add_names(&mut self, catalogue: &SubmitContext, tasks: &[NewTask], now: Instant) {
        let known = self;
        let names = known.kinds.len() + known.lanes.len() + known.limited_groups.len();
        if known.limits_version != catalogue.limits_version || names > NAMES_MAX {
            *known =
                CachedNames { limits_version: catalogue.limits_version, ..CachedNames::default() };
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
                known.limited_groups.insert(group.to_owned(), limit);
            }
        }
    }
}

/// Tasks as columns of the statement.
#[derive(Debug, Default)]
struct SubmitColumns<'a> {
    /// Kinds and their queues, and lanes by queue and kind, as they have to be.
    expected_kinds: BTreeMap<&'a str, &'a str>,
    expected_lanes: BTreeMap<i64, (&'a str, &'a str)>,
    lanes: Vec<i64>,
    kinds: Vec<&'a str>,
    queues: Vec<&'a str>,
    groups: Vec<Option<&'a str>>,
    priorities: Vec<i32>,
    max_attempts: Vec<Option<i64>>,
    timeouts: Vec<Option<i64>>,
    payloads: Vec<&'a [u8]>,
    is_limited: Vec<bool>,
    traces: Vec<Option<&'a str>>,
}

impl<'a> SubmitColumns<'a> {
    /// None where not all is known.
    fn from_tasks(names: &'a CachedNames, tasks: &'a [NewTask], now: Instant) -> Option<Self> {
        let mut columns = Self::default();
        for task in tasks {
            let default = names.kinds.get(&task.kind)?;
            let queue = task.queue.as_ref().unwrap_or(default);
            let lane = *names.lanes.get(&task.kind)?.get(queue)?;
            if columns.lanes.last() != Some(&lane) {
                columns.expected_kinds.insert(&task.kind, default);
                columns.expected_lanes.insert(lane, (queue, &task.kind));
            }
            columns.lanes.push(lane);
            columns.is_limited.push(names.is_limited(task.group(), now)?);
            columns.kinds.push(&task.kind);
            columns.queues.push(queue);
            columns.groups.push(task.effective_group.as_deref());
            columns.priorities.push(task.priority);
            columns.max_attempts.push(task.max_attempts.map(i64::from));
            columns.timeouts.push(task.timeout_ms);
            columns.payloads.push(&task.payload);
            columns.traces.push(task.trace.as_deref());
        }
        Some(columns)
    }
}

/// Stores a submission in one round trip, if it is plain and all its names are known. None where it
/// has to be looked at more closely.
pub(super) async fn submit_fast(
    store: &PostgresInner,
    submission: &Submission,
) -> Result<Option<StoredSubmission>> {
    if !is_fast_eligible(submission) {
        call::record_fallback(Verb::Submit, FallbackReason::TaskOptions);
        return Ok(None);
    }
    let known = store.name_cache.fresh_names();
    let Some(columns) = SubmitColumns::from_tasks(&known, &submission.tasks, now()) else {
        call::record_fallback(Verb::Submit, FallbackReason::UnknownNames);
        return Ok(None);
    };
    // Noted first, so that a submit that fails is counted on this path too.
    call::record_path(Verb::Submit, RequestPath::Fast);
    let stored =
        with_autocommit!(store, tx => insert_fast(store, &tx, known.limits_version, &columns));
    if stored.is_none() {
        store.name_cache.clear();
        call::record_fallback(Verb::Submit, FallbackReason::UnknownNames);
    }
    Ok(stored)
}

async fn insert_fast(
    store: &PostgresInner,
    tx: &Tx<'_>,
    limits_version: i64,
    columns: &SubmitColumns<'_>,
) -> Result<Option<StoredSubmission>, TxError> {
    let SubmitColumns {
        lanes,
        kinds,
        queues,
        groups,
        priorities,
        max_attempts: attempts,
        timeouts,
        ..
    } = columns;
    let SubmitColumns {
        expected_kinds: known,
        expected_lanes: known_lanes,
        payloads,
        is_limited: gated,
        traces,
        ..
    } = columns;
    let (names, defaults): (Vec<&str>, Vec<&str>) = known.iter().unzip();
    let known_ids: Vec<i64> = known_lanes.keys().copied().collect();
    let (of_queues, of_kinds): (Vec<&str>, Vec<&str>) = known_lanes.values().copied().unzip();
    let now = store.options.now_override();
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
    let rows = tx.query(SUBMIT_FAST, params).await?;
    let stored = rows.first().map(|row| {
        let ids: Vec<i64> = row.get("ids");
        let ready = first_ready_of_lanes(
            columns,
            &ids,
            row.get("now"),
            row.get("virtual_time"),
            limits_version,
        );
        let submitted = ids.into_iter().map(|id| SubmittedTask { task: TaskId(id), is_new: true });
        StoredSubmission { submitted: submitted.collect(), first_ready: ready }
    });
    Ok(stored)
}

/// The first of each lane that can be claimed.
fn first_ready_of_lanes(
    columns: &SubmitColumns<'_>,
    ids: &[i64],
    now: Millis,
    virtual_time: i64,
    limits_version: i64,
) -> Vec<ReadyRow> {
    let mut ready: Vec<ReadyRow> = Vec::new();
    for (at, id) in ids.iter().enumerate().filter(|(at, _)| !columns.is_limited[*at]) {
        ready.push(ReadyRow {
            task: TaskId(*id),
            lane: LaneId(columns.lanes[at]),
            rank: ready_rank(now, columns.priorities[at]),
            tag: virtual_time,
            limits_version,
            holds_slots: false,
            ready_at: now,
        });
    }
    ready.sort_unstable_by_key(|row| (row.lane, lane_key(row)));
    first_of_each_lane(ready.iter())
}

/// Whether tasks need nothing but a kind, a queue and perhaps a slot of their group.
fn is_fast_eligible(submission: &Submission) -> bool {
    let Submission { tasks, jobs, limits, submitting_attempt: on_behalf_of } = submission;
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
    is_bare && bytes <= STATEMENT_BYTES_MAX && tasks.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_of_group(group: &str) -> NewTask {
        NewTask { effective_group: Some(group.to_owned()), ..NewTask::new("a", "null") }
    }

    fn context() -> SubmitContext {
        SubmitContext::with_lane("default", "a", 1)
    }

    #[test]
    fn known_names_are_not_copied() {
        let names = NameCache::default();
        names.remember(&context(), &[task_of_group("g")]);
        let in_flight = names.fresh_names();
        names.remember(&context(), &[task_of_group("g")]);
        assert!(Arc::ptr_eq(&in_flight, &names.fresh_names()));
    }

    #[test]
    fn names_learned_during_submit_are_added() {
        let names = NameCache::default();
        names.remember(&context(), &[task_of_group("g")]);
        let in_flight = names.fresh_names();
        names.remember(&context(), &[task_of_group("h")]);
        let known = names.fresh_names();
        assert!(
            SubmitColumns::from_tasks(&known, &[task_of_group("g"), task_of_group("h")], now())
                .is_some()
        );
        assert!(SubmitColumns::from_tasks(&in_flight, &[task_of_group("h")], now()).is_none());
    }

    #[test]
    fn names_stay_known_however_rarely_the_process_submits() {
        let names = NameCache::default();
        names.remember(&context(), &[task_of_group("g")]);
        let later = now() + 1000 * LIMITED_FOR;
        assert!(
            SubmitColumns::from_tasks(&names.fresh_names(), &[task_of_group("g")], later).is_some()
        );
    }

    #[test]
    fn limit_of_a_group_is_looked_up_again_after_a_while() {
        let mut known = CachedNames::default();
        let (limited, began) = (context().with_limit("g"), now());
        known.add_names(&limited, &[task_of_group("g")], began);
        let gated = |known: &CachedNames, at| {
            Some(SubmitColumns::from_tasks(known, &[task_of_group("g")], at)?.is_limited)
        };
        assert_eq!(gated(&known, began), Some(vec![true]));
        let later = began + LIMITED_FOR;
        assert_eq!(gated(&known, later), None);
        assert!(!known.contains_names(&limited, &[task_of_group("g")], later));
        known.add_names(&context(), &[task_of_group("g")], later);
        assert_eq!(gated(&known, later), Some(vec![false]), "the limit has gone away");
    }
}
