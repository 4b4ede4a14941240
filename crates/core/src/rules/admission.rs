//! The gate: where a task gets a slot of every limit that applies to it, all or none, or is
//! parked in the line of the one limit that stopped it.
//!
//! The rules, in the order they are tried on one task:
//!
//! 1. A lifetime slot (its workflow's) is taken first and kept, also while the task is not due. A
//!    step that halted its workflow and comes back lifts the halt and goes before all others.
//! 2. No slot goes to a task that no worker serves: none that is alive, has room for it and
//!    finds its kind inside its hours.
//! 3. A task of a job passes its job's line only within the job's window, and not before the time
//!    between two starts is over; there it gets its fair tag, and goes before those of other jobs if
//!    its slot is one of its job's reserve.
//! 4. Every attempt slot is taken together, or none is. Nobody overtakes the head of a line.
//! 5. A task that moved between lines too often collects its slots one after another, in
//!    ascending order of limit, and keeps them; one task at a time per limit may do so.
//!
//! After every committed step this holds for each limit that is not marked dirty: the head of
//! its line does not fit; and where more slots are held than may be, those who hold them run.

mod job_window;
mod reservation;
mod revocation;

use std::cmp::Ordering;

pub use job_window::record_job_claim;
use job_window::{
    clear_window_entry, enter_window, leave_job_window, may_enter_window,
    promote_to_guaranteed_slot, remove_from_job_window, requeue_in_job,
};
use reservation::{release_reservation, reserve_slots};
pub use revocation::is_revocation_pending;
use revocation::{release_reservation_over_capacity, revoke_excess_admissions};

use crate::bounds::QUEUE_SWITCHES_BEFORE_RESERVING;
use crate::fault_injection::{InjectedBug, is_injected};
use crate::ranking::RETURNED_TASK_TAG;
use crate::tables::{ReadyRow, Tables, TaskInfo, WaitReason, WaiterRow};
use crate::{
    CapacitySource, Error, ErrorKind, Limit, LimitId, LimitScope, OnFailure, PauseCause, Result,
    SlotLifetime, TaskId, ready_rank,
};

/// A slot (or several) of one limit that a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequiredLimit {
    /// The limit.
    pub limit: LimitId,
    /// How many slots.
    pub weight: u32,
    /// For how long.
    pub slot_lifetime: SlotLifetime,
    /// Whether the task holds them already.
    pub is_held: bool,
}

/// What became of a task at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It was admitted and is ready.
    Ready,
    /// It stands in a line.
    Parked,
    /// It was not touched: this transaction does not hold the lock of this limit.
    LimitNotLocked(LimitId),
}

/// A task in front of the gate.
#[derive(Debug, Clone)]
struct Candidate {
    task: TaskId,
    /// How it would stand in a line.
    new_row: WaiterRow,
    /// How it stands in a line now, if it does.
    current_row: Option<WaiterRow>,
    required_limits: Vec<RequiredLimit>,
    /// Its priority, raised since it became due. Decides in its job's own line.
    due_rank: i64,
    /// Its priority, raised since it passed its job's line, if it has a job. Decides against
    /// tasks of other jobs; otherwise a job with an old backlog would go before all others
    /// until the backlog is worked off, whatever the weights.
    rank: i64,
}

enum Blocker {
    Full(LimitId),
    TooHeavy(LimitId),
}

/// Returns the limits that apply to a task, lifetime first, then its job's, then its group's. It changes
/// nothing: the limit of a workflow that does not exist yet is left out. No task holds a slot of it.
pub fn required_limits(tables: &mut dyn Tables, info: &TaskInfo) -> Result<Vec<RequiredLimit>> {
    let mut needs = Vec::new();
    let mut need = |limit, weight, hold| {
        needs.push(RequiredLimit { limit, weight, slot_lifetime: hold, is_held: false });
    };
    if let Some(workflow) = &info.workflow
        && let Some(limit) = tables.limit_id(&LimitScope::Workflow.limit_name(workflow))?
    {
        let hold = if is_injected(InjectedBug::WorkflowSlotPerAttempt) {
            SlotLifetime::Attempt
        } else {
            SlotLifetime::Task
        };
        need(limit, 1, hold);
    }
    if let Some(job) = &info.job
        && let Some(limit) = tables.limit_id(&LimitScope::Job.limit_name(job))?
    {
        need(limit, 1, SlotLifetime::Attempt);
    }
    let group = info.group.as_ref().unwrap_or(&info.kind);
    if let Some(limit) = tables.limit_id(&LimitScope::Group.limit_name(group))? {
        need(limit, info.weight, SlotLifetime::Attempt);
    }
    if needs.is_empty() {
        return Ok(needs);
    }
    for (limit, _) in tables.held_slot_counts(info.task)? {
        if let Some(need) = needs.iter_mut().find(|need| need.limit == limit) {
            need.is_held = true;
        }
    }
    Ok(needs)
}

/// Returns the same for a task that is to be admitted, and creates the limit of its workflow if it is
/// missing: without it the steps of the workflow would run side by side.
fn ensure_required_limits(tables: &mut dyn Tables, info: &TaskInfo) -> Result<Vec<RequiredLimit>> {
    if let Some(workflow) = &info.workflow {
        let name = LimitScope::Workflow.limit_name(workflow);
        if tables.limit_id(&name)?.is_none() {
            tables.insert_limit(&name, Some(1), CapacitySource::Unset, 0, None)?;
        }
    }
    required_limits(tables, info)
}

/// Brings a task that stands nowhere to the gate. On `Unlocked` it still stands nowhere.
pub fn admit_new(tables: &mut dyn Tables, info: &TaskInfo) -> Result<Admission> {
    // Beside tasks of jobs a task without one has the tag of a job that just came; with none it
    // would go before every one of them.
    let tag = tables.counters()?.virtual_time;
    admit_with_tag(tables, info, tag)
}

/// The same with a task that was through the gate and whose worker died or gave it back. It goes
/// before all others of its rank: those that still stand in line had not got as far.
pub fn admit_returned(tables: &mut dyn Tables, info: &TaskInfo) -> Result<Admission> {
    admit_with_tag(tables, info, RETURNED_TASK_TAG)
}

/// The rank counts from when the task became due, not from when somebody looked.
fn admit_with_tag(tables: &mut dyn Tables, info: &TaskInfo, tag: i64) -> Result<Admission> {
    let needs = ensure_required_limits(tables, info)?;
    let mut counters = tables.counters()?;
    let rank = ready_rank(info.due_at, info.priority);
    if needs.is_empty() {
        let since = tables.now();
        tables.put_ready(ReadyRow {
            lane: info.lane,
            rank,
            tag,
            task: info.task,
            limits_version: counters.limits_version,
            holds_slots: false,
            ready_at: since,
        })?;
        return Ok(Admission::Ready);
    }
    if let Some(limit) = first_unlocked_limit(tables, &needs)? {
        return Ok(Admission::LimitNotLocked(limit));
    }
    counters.last_admission_seq += 1;
    tables.set_counters(counters)?;
    let row = WaiterRow {
        limit: needs[0].limit,
        wait_reason: WaitReason::Queued,
        rank,
        tag: if info.job.is_some() { tag.min(0) } else { tag },
        admission_seq: counters.last_admission_seq,
        task: info.task,
        lane: info.lane,
        queue_switches: 0,
        in_job_window: false,
        due_at: info.due_at,
    };
    let waiter = Candidate {
        task: info.task,
        new_row: row,
        current_row: None,
        required_limits: needs,
        due_rank: rank,
        rank,
    };
    try_admit(tables, waiter)
}

/// Considers a task that stands in a line again.
pub fn retry_admission(tables: &mut dyn Tables, row: WaiterRow) -> Result<Admission> {
    match candidate_from_row(tables, row)? {
        Some(waiter) => try_admit(tables, waiter),
        None => Ok(Admission::Parked),
    }
}

/// Admits from the line of a limit while the head fits, for at most `budget` tasks; where more slots
/// are held than may be, sends back those who have not begun.
pub fn admit_from_queue(
    tables: &mut dyn Tables,
    id: LimitId,
    budget: &mut u32,
) -> Result<Admission> {
    if !revoke_excess_admissions(tables, id, budget)? {
        return Ok(Admission::Parked);
    }
    loop {
        let Some(mut limit) = tables.locked_limit(id)? else {
            return Ok(Admission::LimitNotLocked(id));
        };
        let next = next_candidate(tables, &limit)?;
        let Some(waiter) = next else {
            if *budget > 0 && promote_to_guaranteed_slot(tables, &limit)? {
                *budget -= 1;
                continue;
            }
            let before = (limit.dirty, limit.recheck_at);
            limit.mark_rechecked(tables.now());
            if before != (limit.dirty, limit.recheck_at) {
                tables.put_limit(&limit)?;
            }
            return Ok(Admission::Parked);
        };
        if *budget == 0 {
            return Ok(Admission::Parked);
        }
        *budget -= 1;
        if let Admission::LimitNotLocked(other) = try_admit(tables, waiter)? {
            return Ok(Admission::LimitNotLocked(other));
        }
    }
}

/// Drains every dirty limit this transaction may touch. True when some are left.
pub fn admit_from_dirty_limits(tables: &mut dyn Tables, budget: &mut u32) -> Result<bool> {
    // Who is to get a slot of its job's reserve comes to the lines of other limits before they are
    // looked at.
    admit_from_dirty_limits_where(tables, budget, |limit| limit.is_guaranteed_slot(0))?;
    admit_from_dirty_limits_where(tables, budget, |_| true)
}

fn admit_from_dirty_limits_where(
    tables: &mut dyn Tables,
    budget: &mut u32,
    is_selected: fn(&Limit) -> bool,
) -> Result<bool> {
    // Draining one limit may disturb one with a lower id, so passes are made until one of
    // them settles nothing.
    loop {
        let (mut after, mut settled, mut left) = (LimitId(0), false, false);
        while let Some(id) = tables.next_limit_to_recheck(after)? {
            if *budget == 0 {
                return Ok(true);
            }
            after = id;
            if tables.locked_limit(id)?.is_some_and(|limit| !is_selected(&limit)) {
                continue;
            }
            admit_from_queue(tables, id, budget)?;
            match tables.locked_limit(id)? {
                Some(limit) if !limit.needs_recheck(tables.now()) => settled = true,
                _ => left = true,
            }
        }
        if !settled {
            return Ok(left);
        }
    }
}

/// Gives back what a task holds: every slot when it is `ending`, else the attempt's. The task
/// leaves its job's window if it is `ahead` there: past the line and not yet claimed.
pub fn release_task_slots(
    tables: &mut dyn Tables,
    info: &TaskInfo,
    ending: bool,
    ahead: bool,
) -> Result<()> {
    for need in required_limits(tables, info)? {
        let mut limit = require_limit(tables, need.limit)?;
        if ending || need.slot_lifetime == SlotLifetime::Attempt {
            free_held_slots(tables, info.task, &mut limit)?;
        }
        if limit.reserving_task == Some(info.task) {
            limit.reserving_task = None;
            limit.mark_dirty_if_waiting();
        }
        if ahead && remove_from_job_window(&mut limit) {
            limit.mark_dirty_if_waiting();
        }
        tables.put_limit(&limit)?;
    }
    Ok(())
}

/// Halts the workflow of a step that failed for good, unless the step said that it goes on.
pub fn pause_workflow_after_failure(tables: &mut dyn Tables, info: &TaskInfo) -> Result<()> {
    let Some(workflow) = info.workflow.as_ref().filter(|_| info.on_failure == OnFailure::Halt)
    else {
        return Ok(());
    };
    if let Some(id) = tables.limit_id(&LimitScope::Workflow.limit_name(workflow))? {
        let mut limit = require_limit(tables, id)?;
        limit.paused_by = Some(PauseCause::FailedStep(info.task));
        tables.put_limit(&limit)?;
    }
    Ok(())
}

fn free_held_slots(tables: &mut dyn Tables, task: TaskId, limit: &mut Limit) -> Result<()> {
    let freed = tables.free_slots(task, limit.id)?;
    limit.held = limit.held.saturating_sub(freed);
    if freed > 0 && !is_injected(InjectedBug::LostWakeup) {
        limit.mark_dirty_if_waiting();
    }
    if is_injected(InjectedBug::DoubleRelease) && freed == 0 {
        limit.held = limit.held.saturating_sub(1);
    }
    Ok(())
}

fn candidate_from_row(tables: &mut dyn Tables, row: WaiterRow) -> Result<Option<Candidate>> {
    let Some(tags) = tables.task_info(row.task)? else {
        return Ok(None);
    };
    let needs = ensure_required_limits(tables, &tags)?;
    let arrival_rank = ready_rank(row.due_at, tags.priority);
    let rank = if row.in_job_window { row.rank } else { arrival_rank };
    let mut next = row;
    let by_arrival =
        |need: &RequiredLimit| need.limit == row.limit && need.slot_lifetime == SlotLifetime::Task;
    if tags.job.is_none() && needs.iter().any(by_arrival) {
        next.tag = tables.counters()?.virtual_time;
    }
    Ok(Some(Candidate {
        task: row.task,
        new_row: next,
        current_row: Some(row),
        required_limits: needs,
        due_rank: arrival_rank,
        rank,
    }))
}

/// The task whose turn it is in the line of a limit, if there is room for it.
fn next_candidate(tables: &mut dyn Tables, limit: &Limit) -> Result<Option<Candidate>> {
    if limit.waiting == 0 {
        return Ok(None);
    }
    if limit.skipped > 0
        && let Some(row) = next_unskipped_waiter(tables, limit)?
    {
        return candidate_from_row(tables, row);
    }
    let Some(row) = tables.first_waiter(limit.id, WaitReason::Reserving, WaitReason::Queued)?
    else {
        return Ok(None);
    };
    let Some(waiter) = candidate_from_row(tables, row)? else {
        return Ok(None);
    };
    let weight =
        waiter.required_limits.iter().find(|need| need.limit == limit.id).map(|need| need.weight);
    // A limit that no longer applies holds nobody back.
    let Some(weight) = weight else {
        return Ok(Some(waiter));
    };
    let may_pass = row.in_job_window || may_enter_window(tables, limit)?;
    // Who reserves at a limit that was paused or whose window is full has slots of others to
    // give back.
    let room = limit.is_too_small_for(weight)
        || (row.wait_reason == WaitReason::Reserving && (limit.is_paused() || !may_pass))
        || (limit.has_free_slots(weight) && may_pass);
    Ok(room.then_some(waiter))
}

/// A task set aside in the line whose reason is gone: the seat is free, or it is no longer
/// too heavy. Those without a worker are looked at when a worker comes.
fn next_unskipped_waiter(tables: &mut dyn Tables, limit: &Limit) -> Result<Option<WaiterRow>> {
    if limit.reserving_task.is_none()
        && let Some(row) = tables.first_waiter(
            limit.id,
            WaitReason::WaitingToReserve,
            WaitReason::WaitingToReserve,
        )?
    {
        return Ok(Some(row));
    }
    let lightest = tables.first_waiter(limit.id, WaitReason::TooHeavy, WaitReason::TooHeavy)?;
    Ok(lightest.filter(|row| limit.capacity.is_none_or(|capacity| row.rank <= i64::from(capacity))))
}

fn first_unlocked_limit(
    tables: &mut dyn Tables,
    required: &[RequiredLimit],
) -> Result<Option<LimitId>> {
    for need in required {
        if tables.locked_limit(need.limit)?.is_none() {
            return Ok(Some(need.limit));
        }
    }
    Ok(None)
}

fn try_admit(tables: &mut dyn Tables, mut candidate: Candidate) -> Result<Admission> {
    if let Some(limit) = first_unlocked_limit(tables, &candidate.required_limits)? {
        return Ok(Admission::LimitNotLocked(limit));
    }
    if let Some(full) = acquire_task_lifetime_slots(tables, &mut candidate)? {
        return park(tables, candidate, full, WaitReason::Queued);
    }
    requeue_in_job(tables, &mut candidate)?;
    release_reservation_over_capacity(tables, &mut candidate)?;
    if candidate.new_row.due_at > tables.now() {
        // It is its turn in its workflow, and not yet its time.
        leave_queue(tables, &candidate)?;
        tables.put_scheduled(candidate.task, candidate.new_row.due_at)?;
        return Ok(Admission::Parked);
    }
    let first_attempt =
        candidate.required_limits.iter().find(|need| need.slot_lifetime == SlotLifetime::Attempt);
    let Some(first_attempt) = first_attempt.map(|need| need.limit) else {
        return make_ready(tables, candidate);
    };
    if !tables.is_lane_served(candidate.new_row.lane)? {
        release_reservation(tables, &mut candidate)?;
        return park(tables, candidate, first_attempt, WaitReason::NoWorker);
    }
    match find_blocker(tables, &mut candidate)? {
        None => make_ready(tables, candidate),
        Some(Blocker::TooHeavy(limit)) => {
            release_reservation(tables, &mut candidate)?;
            leave_job_window(tables, &mut candidate)?;
            park(tables, candidate, limit, WaitReason::TooHeavy)
        }
        Some(Blocker::Full(limit)) => {
            if candidate
                .current_row
                .is_some_and(|at| at.limit != limit && is_attempt_limit(&candidate, at.limit))
            {
                candidate.new_row.queue_switches += 1;
            }
            if candidate.new_row.queue_switches >= QUEUE_SWITCHES_BEFORE_RESERVING {
                reserve_slots(tables, candidate)
            } else {
                park(tables, candidate, limit, WaitReason::Queued)
            }
        }
    }
}

fn is_attempt_limit(candidate: &Candidate, limit: LimitId) -> bool {
    candidate
        .required_limits
        .iter()
        .any(|need| need.limit == limit && need.slot_lifetime == SlotLifetime::Attempt)
}

/// Takes the lifetime slots one after another; returns the first limit that is full.
fn acquire_task_lifetime_slots(
    tables: &mut dyn Tables,
    candidate: &mut Candidate,
) -> Result<Option<LimitId>> {
    for i in 0..candidate.required_limits.len() {
        let need = candidate.required_limits[i];
        if need.slot_lifetime == SlotLifetime::Attempt || need.is_held {
            continue;
        }
        let mut limit = require_limit(tables, need.limit)?;
        if limit.paused_by == Some(PauseCause::FailedStep(candidate.task)) {
            limit.paused_by = None;
            tables.put_limit(&limit)?;
        } else if !limit.has_free_slots(need.weight) || would_overtake(tables, candidate, need)? {
            return Ok(Some(need.limit));
        }
        acquire_slots(tables, candidate, i)?;
    }
    Ok(None)
}

/// The first attempt limit that stops the task. A task of a job that finds room at its job
/// passes the job's line here, even if another limit stops it then.
fn find_blocker(tables: &mut dyn Tables, candidate: &mut Candidate) -> Result<Option<Blocker>> {
    // Before all else: a limit that is too small stays so, and the drain of its line looks at a
    // head that is too heavy until it is set aside.
    for need in candidate.required_limits.iter().filter(|need| !need.is_held) {
        if require_limit(tables, need.limit)?.is_too_small_for(need.weight) {
            return Ok(Some(Blocker::TooHeavy(need.limit)));
        }
    }
    for i in 0..candidate.required_limits.len() {
        let need = candidate.required_limits[i];
        if need.slot_lifetime == SlotLifetime::Task || need.is_held {
            continue;
        }
        let limit = require_limit(tables, need.limit)?;
        let fits = limit.has_free_slots(need.weight)
            || (is_injected(InjectedBug::CheckThenAct)
                && limit.has_free_slots(need.weight.saturating_sub(1)));
        if !fits || !is_first_in_queue(tables, candidate, need, &limit)? {
            return Ok(Some(Blocker::Full(need.limit)));
        }
        enter_window(tables, candidate, limit)?;
        if is_injected(InjectedBug::ParkKeepsPartialSlots) {
            acquire_slots(tables, candidate, i)?;
        }
    }
    Ok(None)
}

/// Whether it is the task's turn at a limit, as far as others are concerned. Who passed its
/// job's line stands before all who wait there.
fn is_first_in_queue(
    tables: &mut dyn Tables,
    candidate: &Candidate,
    need: RequiredLimit,
    limit: &Limit,
) -> Result<bool> {
    if limit.fair_share.is_some() && candidate.new_row.in_job_window {
        return Ok(true);
    }
    Ok(may_enter_window(tables, limit)? && !would_overtake(tables, candidate, need)?)
}

/// Whether somebody stands before the task in the line of a limit it needs.
fn would_overtake(
    tables: &mut dyn Tables,
    candidate: &Candidate,
    need: RequiredLimit,
) -> Result<bool> {
    if candidate
        .current_row
        .is_some_and(|at| at.limit == need.limit && at.wait_reason.may_be_first())
    {
        return Ok(false);
    }
    let Some(head) = tables.first_waiter(need.limit, WaitReason::Reserving, WaitReason::Queued)?
    else {
        return Ok(false);
    };
    let key = queue_key(candidate, need.slot_lifetime);
    let before = head
        .wait_reason
        .cmp(&candidate.new_row.wait_reason.min(WaitReason::Queued))
        .then((head.rank, head.tag, head.admission_seq).cmp(&key));
    Ok(before == Ordering::Less)
}

fn queue_key(candidate: &Candidate, hold: SlotLifetime) -> (i64, i64, i64) {
    match hold {
        SlotLifetime::Task => (0, 0, candidate.new_row.admission_seq),
        SlotLifetime::Attempt => {
            (candidate.rank, candidate.new_row.tag, candidate.new_row.admission_seq)
        }
    }
}

fn acquire_slots(tables: &mut dyn Tables, candidate: &mut Candidate, i: usize) -> Result<()> {
    let need = candidate.required_limits[i];
    let mut limit = require_limit(tables, need.limit)?;
    tables.acquire_slots(candidate.task, need.limit, need.weight)?;
    limit.held += need.weight;
    tables.put_limit(&limit)?;
    candidate.required_limits[i].is_held = true;
    Ok(())
}

/// Takes what is still to be taken and makes the task ready.
fn make_ready(tables: &mut dyn Tables, mut candidate: Candidate) -> Result<Admission> {
    leave_queue(tables, &candidate)?;
    for i in 0..candidate.required_limits.len() {
        if !candidate.required_limits[i].is_held {
            acquire_slots(tables, &mut candidate, i)?;
        }
        let mut limit = require_limit(tables, candidate.required_limits[i].limit)?;
        if limit.reserving_task == Some(candidate.task) {
            limit.reserving_task = None;
            limit.mark_dirty_if_waiting();
            tables.put_limit(&limit)?;
        }
    }
    let counters = tables.counters()?;
    let came_back = candidate.new_row.tag == RETURNED_TASK_TAG;
    let keeps_tag = candidate.new_row.in_job_window || came_back;
    tables.put_ready(ReadyRow {
        lane: candidate.new_row.lane,
        rank: candidate.rank,
        tag: if keeps_tag { candidate.new_row.tag } else { counters.virtual_time },
        task: candidate.task,
        limits_version: counters.limits_version,
        holds_slots: true,
        ready_at: tables.now(),
    })?;
    Ok(Admission::Ready)
}

fn park(
    tables: &mut dyn Tables,
    mut candidate: Candidate,
    at: LimitId,
    class: WaitReason,
) -> Result<Admission> {
    leave_queue(tables, &candidate)?;
    let mut limit = require_limit(tables, at)?;
    // Back in its job's own line a task gives up its place in the window; else those behind
    // it would wait for the window and it for them.
    let opened = candidate.new_row.in_job_window && remove_from_job_window(&mut limit);
    if opened {
        clear_window_entry(&mut candidate);
    }
    let need = candidate.required_limits.iter().find(|need| need.limit == at);
    let (mut rank, tag, place) =
        queue_key(&candidate, need.map_or(SlotLifetime::Attempt, |need| need.slot_lifetime));
    if class == WaitReason::TooHeavy {
        // The lightest first, so that a raised limit finds whom it can help.
        rank = need.map_or(0, |need| i64::from(need.weight));
    }
    tables.put_waiter(WaiterRow {
        limit: at,
        wait_reason: class,
        rank,
        tag,
        admission_seq: place,
        ..candidate.new_row
    })?;
    limit.waiting += 1;
    limit.parked_total += i64::from(class != WaitReason::NoWorker);
    limit.skipped += u32::from(!class.may_be_first());
    limit.schedule_recheck(tables.now());
    // The head of the line may have waited for just that place in the window.
    if opened {
        limit.mark_dirty_if_waiting();
    }
    tables.put_limit(&limit)?;
    Ok(Admission::Parked)
}

/// Takes a task out of the line it stands in.
fn leave_queue(tables: &mut dyn Tables, candidate: &Candidate) -> Result<()> {
    candidate.current_row.map_or(Ok(()), |at| unpark(tables, at))
}

/// Takes a row out of its line. Whoever stood behind it is looked at again.
pub fn unpark(tables: &mut dyn Tables, row: WaiterRow) -> Result<()> {
    tables.remove_waiter(row)?;
    let mut limit = require_limit(tables, row.limit)?;
    limit.waiting = limit.waiting.saturating_sub(1);
    limit.skipped = limit.skipped.saturating_sub(u32::from(!row.wait_reason.may_be_first()));
    limit.mark_dirty_if_waiting();
    tables.put_limit(&limit)
}

fn require_limit(tables: &mut dyn Tables, id: LimitId) -> Result<Limit> {
    tables.locked_limit(id)?.ok_or_else(|| {
        Error::new(ErrorKind::Incompatible, format!("limit {id} is needed and is not there"))
    })
}
