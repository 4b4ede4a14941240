//! Judges every committed state: by the invariants a store can be asked for at any time, and
//! by comparing it with the state before and with the books.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::invariants::Violation;
use tidegate_core::reader::{Snapshot, SnapshotSlot, SnapshotTask};
use tidegate_core::tables::{Position, WaitReason};
use tidegate_core::{CancelOutcome, Claim, LimitId, Millis, TaskId, Token};

use super::message::{Reply, Request};
use super::response_checks::{CheckResult, ensure};
use super::shadow_model::ShadowModel;

const ONE_STATE: &str = "no acknowledged task is lost; each is in one state";
const CAPACITY: &str = "a commit that takes a slot leaves no more held than the capacity";
const PAUSED: &str = "a paused limit admits nobody";
const IDLE: &str = "no runnable task waits while a worker that can run it is idle";
const STALE: &str = "what is refused or carries a stale token changes nothing";
const RUNNING: &str = "handlers running un-paused have a live lease and never exceed the limit";

/// How many slots of each limit may be held at most: its capacity, or while it drains what is
/// left of those who held more when it was lowered.
#[derive(Debug, Default)]
pub(super) struct HeldCeilings(BTreeMap<Arc<str>, u32>);

/// Whether two states differ in more than the time.
pub(super) fn differ(before: &Snapshot, after: &Snapshot) -> bool {
    before.counters != after.counters
        || before.tasks != after.tasks
        || before.limits != after.limits
        || before.slots != after.slots
        || before.leases != after.leases
        || before.finished != after.finished
}

/// What must hold of a state that differs from the one before, besides what the store can be
/// asked for at any time.
pub(super) fn check_transition(
    before: &Snapshot,
    after: &Snapshot,
    books: &ShadowModel,
    ceilings: &mut HeldCeilings,
) -> CheckResult {
    check_tasks(after, books)?;
    check_capacities(after, books)?;
    ensure!(
        after.counters.last_token == books.last_token.0,
        "tokens ascend",
        "the store counts {}, {} was given last",
        after.counters.last_token,
        books.last_token
    );
    check_taken_slots(before, after)?;
    check_paused_limits(before, after)?;
    ceilings.update(after);
    Ok(())
}

fn check_tasks(after: &Snapshot, books: &ShadowModel) -> CheckResult {
    let stored = after.tasks.iter().map(|task| task.id);
    if !stored.eq(books.tasks.keys().copied()) {
        let stored: Vec<TaskId> = after.tasks.iter().map(|task| task.id).collect();
        let known: Vec<&TaskId> = books.tasks.keys().collect();
        return Err(Violation { rule: ONE_STATE, details: format!("{stored:?} for {known:?}") });
    }
    for (task, entry) in after.tasks.iter().zip(books.tasks.values()) {
        let running = match task.positions.first() {
            Some(Position::Running(token)) => Some(*token),
            _ => None,
        };
        let stored = (running, task.attempts_used, task.crashes);
        let known = (entry.running, entry.attempts_used, entry.crashes);
        ensure!(
            stored == known,
            "the token, the attempts spent and the deaths are those of the answers",
            "task {}: {stored:?}, expected {known:?}",
            task.id
        );
    }
    Ok(())
}

fn check_capacities(after: &Snapshot, books: &ShadowModel) -> CheckResult {
    for limit in after.limits.iter().filter(|limit| !limit.name.starts_with("workflow:")) {
        let known = books.capacity(&limit.name);
        ensure!(
            limit.capacity == known,
            "a capacity is held by the strongest source",
            "{} is {:?}, expected {known:?}",
            limit.name,
            limit.capacity
        );
    }
    Ok(())
}

/// Slots that were taken in this commit were free.
fn check_taken_slots(before: &Snapshot, after: &Snapshot) -> CheckResult {
    if before.slots == after.slots && before.tasks == after.tasks {
        return Ok(());
    }
    for limit in after.limits.iter().filter(|limit| limit.capacity.is_some()) {
        let capacity = limit.capacity.unwrap_or_default();
        let first = after.slots.partition_point(|slot| slot.limit < limit.id);
        let held = after.slots[first..].iter().take_while(|slot| slot.limit == limit.id);
        if held.clone().count() <= capacity as usize {
            continue;
        }
        let is_new = before.limits.binary_search_by_key(&limit.id, |limit| limit.id).is_err();
        let taken = held.filter(|slot| was_taken(slot, is_new, before, after));
        for slot in taken {
            let rule = if capacity == 0 { PAUSED } else { CAPACITY };
            ensure!(
                false,
                rule,
                "{} of {} was taken by task {}",
                slot.number,
                limit.name,
                slot.task
            );
        }
    }
    Ok(())
}

/// Nobody passes a limit that stood still before and after.
fn check_paused_limits(before: &Snapshot, after: &Snapshot) -> CheckResult {
    for limit in after.limits.iter().filter(|limit| limit.paused_by.is_some()) {
        let was = before.limits.binary_search_by_key(&limit.id, |limit| limit.id);
        if was.is_ok_and(|at| before.limits[at].paused_by.is_some()) {
            let mut slots = after.slots.iter().filter(|slot| slot.limit == limit.id);
            // A step keeps its workflow's slot through its attempts.
            let taken = slots.find(|slot| before.slots.binary_search(slot).is_err());
            ensure!(taken.is_none(), PAUSED, "{taken:?} of {}", limit.name);
        }
    }
    Ok(())
}

/// Whether this commit gave the slot to its holder. A new limit counts what runs already.
fn was_taken(slot: &SnapshotSlot, is_new: bool, before: &Snapshot, after: &Snapshot) -> bool {
    let ran = matches!(position(before, slot.task), Some(Position::Running(_)));
    let readmitted = ran && matches!(position(after, slot.task), Some(Position::Ready(_)));
    if is_new {
        !ran || readmitted
    } else {
        before.slots.binary_search(slot).is_err() || readmitted
    }
}

fn position(snapshot: &Snapshot, task: TaskId) -> Option<Position> {
    row(snapshot, task)?.positions.first().copied()
}

fn row(snapshot: &Snapshot, task: TaskId) -> Option<&SnapshotTask> {
    let at = snapshot.tasks.binary_search_by_key(&task, |task| task.id).ok()?;
    snapshot.tasks.get(at)
}

impl HeldCeilings {
    fn update(&mut self, after: &Snapshot) {
        self.0.retain(|name, _| after.limits.iter().any(|limit| limit.name == *name));
        for limit in &after.limits {
            let capacity = limit.capacity.unwrap_or(u32::MAX);
            if let Some(ceiling) = self.0.get_mut(&limit.name) {
                *ceiling = capacity.max(limit.held.min(*ceiling));
            } else {
                self.0.insert(limit.name.clone(), capacity.max(limit.held));
            }
        }
    }
}

/// Judges the handlers whose code runs at this moment on processes that are not stopped.
pub(super) fn check_running(
    handlers: impl Iterator<Item = (Token, TaskId)>,
    books: &ShadowModel,
    ceilings: &HeldCeilings,
    now: Millis,
) -> CheckResult {
    let mut held: Vec<(&Arc<str>, u32)> = Vec::new();
    let mut steps: Vec<&Arc<str>> = Vec::new();
    for (token, task) in handlers {
        let entry = books.tasks.get(&task).filter(|entry| entry.running == Some(token));
        let is_live = books.leases.get(&token).is_some_and(|lease| lease.expires_at > now);
        let Some(entry) = entry.filter(|_| is_live) else {
            let found = format!("task {task} runs with token {token}, which is not its lease");
            return Err(Violation { rule: RUNNING, details: found });
        };
        if let Some(workflow) = &entry.workflow {
            ensure!(!steps.contains(&workflow), RUNNING, "two steps of {workflow}");
            steps.push(workflow);
        }
        for (i, limit) in entry.limits.iter().enumerate() {
            let weight = if i == 0 { entry.weight } else { 1 };
            match held.iter_mut().find(|(name, _)| *name == limit) {
                Some((_, units)) => *units += weight,
                None => held.push((limit, weight)),
            }
        }
    }
    for (limit, units) in held {
        let ceiling = ceilings.0.get(limit).copied().unwrap_or(u32::MAX);
        ensure!(units <= ceiling, RUNNING, "{units} units of {limit}, at most {ceiling}");
    }
    Ok(())
}

/// A worker that got less than it asked for leaves nothing behind that it could run, and
/// nothing at the gate that nobody looked at. One exception: what it claimed of a job may have
/// opened the job's window for others; it finds them when it asks again, which it does at once
/// unless it got nothing.
pub(super) fn check_idle_claim(
    claim: &Claim,
    given: usize,
    after: &Snapshot,
    books: &ShadowModel,
) -> CheckResult {
    for (task, entry) in after.tasks.iter().zip(books.tasks.values()) {
        let window = books.kinds.get(&entry.kind).and_then(|kind| kind.day_window);
        let can_run = claim.kinds.contains(&entry.kind)
            && claim.queues.contains(&entry.queue)
            && window.is_none_or(|window| window.is_open(after.now));
        let waits = match task.positions.first() {
            Some(Position::Ready(row)) => {
                let let_in = given > 0 && task.job.is_some() && row.ready_at == after.now;
                can_run && !let_in
            }
            Some(Position::Waiting(row)) => can_run && row.wait_reason == WaitReason::NoWorker,
            Some(Position::Inbox) => true,
            Some(Position::Scheduled(run_at)) => *run_at <= after.now,
            _ => false,
        };
        ensure!(!waits, IDLE, "task {} at {:?}", task.id, task.positions);
    }
    let unseen = after.limits.iter().find(|limit| limit.needs_recheck(after.now));
    ensure!(unseen.is_none(), IDLE, "nobody looked at the line of {unseen:?}");
    Ok(())
}

/// A verb that changed nothing must not have said that it did.
pub(super) fn check_unchanged(request: &Request, answer: &Reply) -> CheckResult {
    let claimed = match answer {
        Reply::Submit(Ok(told)) => told.iter().any(|told| told.is_new),
        Reply::Claim(Ok(told)) => !told.is_empty(),
        Reply::Finish(Ok(told)) => {
            let exits =
                if let Request::Finish(asked) = request { asked.completions.len() } else { 0 };
            !told.claimed.is_empty() || told.lost_attempts.len() < exits
        }
        Reply::Cancel(Ok(told)) => told.contains(&CancelOutcome::Cancelled),
        Reply::Reap(Ok(told)) => told.expired_attempts > 0,
        Reply::Heartbeat(Ok(told)) => told.released_attempts > 0,
        Reply::Pause(Ok(told)) => *told,
        Reply::Prune(Ok(told)) => told.tasks > 0 || told.limits > 0,
        _ => false,
    };
    ensure!(!claimed, "what is acknowledged is written", "{request:?}: {answer:?}");
    Ok(())
}

/// What was refused, or carried only stale tokens, must not have changed anything.
pub(super) fn check_changed(request: &Request, answer: &Reply) -> CheckResult {
    let refused = match (request, answer) {
        (Request::Submit(_), Reply::Submit(Err(_))) => true,
        (Request::SetLimit(_), Reply::SetLimit(Err(_))) => true,
        (Request::SetJob(_), Reply::SetJob(Err(_))) => true,
        (Request::Pause(_), Reply::Pause(Err(_) | Ok(false))) => true,
        (Request::Finish(asked), Reply::Finish(Ok(told))) => {
            asked.claim.is_none() && told.lost_attempts.len() == asked.completions.len()
        }
        (Request::Heartbeat(asked), Reply::Heartbeat(Ok(told))) => {
            told.lost_leases == asked.tokens && told.released_attempts == 0
        }
        _ => false,
    };
    ensure!(!refused, STALE, "{request:?}: {answer:?}");
    Ok(())
}

/// Why tasks stand in lines.
pub(super) fn wait_reasons(after: &Snapshot) -> impl Iterator<Item = WaitReason> {
    after.tasks.iter().filter_map(|task| match task.positions.first() {
        Some(Position::Waiting(row)) => Some(row.wait_reason),
        _ => None,
    })
}

/// The limits under which somebody can never run as things are.
pub(super) fn unsatisfiable_limits(after: &Snapshot) -> Vec<Arc<str>> {
    let stuck = |task: &SnapshotTask| match task.positions.first() {
        Some(Position::Waiting(row)) if row.wait_reason == WaitReason::TooHeavy => Some(row.limit),
        _ => None,
    };
    let too_heavy: Vec<LimitId> = after.tasks.iter().filter_map(stuck).collect();
    let limits = after.limits.iter();
    limits
        .filter(|limit| limit.capacity == Some(0) || too_heavy.contains(&limit.id))
        .map(|limit| limit.name.clone())
        .collect()
}
