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

mod job;
mod recall;
mod reserve;

use std::cmp::Ordering;

pub use job::claimed;
use job::{fall_back, leave_window, make_way, may_pass, pass, promote, step_back};
pub use recall::is_recalled;
use recall::{let_go, recall};
use reserve::{give_back, reserve};

use crate::bounds::MOVES_BEFORE_RESERVING;
use crate::order::TAG_OF_RETURN;
use crate::planted::{Bug, is_planted};
use crate::tables::{Class, LineRow, ReadyRow, Tables, Tags};
use crate::{
    Error, ErrorKind, Halt, Hold, Limit, LimitId, OnFailure, Result, Scope, Source, TaskId,
    ready_rank,
};

/// A slot (or several) of one limit that a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The limit.
    pub limit: LimitId,
    /// How many slots.
    pub weight: u32,
    /// For how long.
    pub hold: Hold,
    /// Whether the task holds them already.
    pub taken: bool,
}

/// What became of a task at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was admitted and is ready.
    Ready,
    /// It stands in a line.
    Parked,
    /// It was not touched: this transaction does not hold the lock of this limit.
    Unlocked(LimitId),
}

/// A task in front of the gate.
#[derive(Debug, Clone)]
struct Waiter {
    task: TaskId,
    /// How it would stand in a line.
    row: LineRow,
    /// How it stands in a line now, if it does.
    at: Option<LineRow>,
    needs: Vec<Need>,
    /// Its priority, raised since it became due. Decides in its job's own line.
    arrival_rank: i64,
    /// Its priority, raised since it passed its job's line, if it has a job. Decides against
    /// tasks of other jobs; otherwise a job with an old backlog would go before all others
    /// until the backlog is worked off, whatever the weights.
    rank: i64,
}

enum Obstacle {
    Full(LimitId),
    TooHeavy(LimitId),
}

/// Returns the limits that apply to a task, lifetime first, then its job's, then its group's. It changes
/// nothing: the limit of a workflow that does not exist yet is left out. No task holds a slot of it.
pub fn needs(tables: &mut dyn Tables, tags: &Tags) -> Result<Vec<Need>> {
    let mut needs = Vec::new();
    let mut need = |limit, weight, hold| {
        needs.push(Need { limit, weight, hold, taken: false });
    };
    if let Some(workflow) = &tags.workflow
        && let Some(limit) = tables.limit_named(&Scope::Workflow.name(workflow))?
    {
        let hold = if is_planted(Bug::WorkflowPerAttempt) { Hold::Attempt } else { Hold::Lifetime };
        need(limit, 1, hold);
    }
    if let Some(job) = &tags.job
        && let Some(limit) = tables.limit_named(&Scope::Job.name(job))?
    {
        need(limit, 1, Hold::Attempt);
    }
    let group = tags.group.as_ref().unwrap_or(&tags.kind);
    if let Some(limit) = tables.limit_named(&Scope::Group.name(group))? {
        need(limit, tags.weight, Hold::Attempt);
    }
    if needs.is_empty() {
        return Ok(needs);
    }
    for (limit, _) in tables.slots_of(tags.task)? {
        if let Some(need) = needs.iter_mut().find(|need| need.limit == limit) {
            need.taken = true;
        }
    }
    Ok(needs)
}

/// Returns the same for a task that is to be admitted, and creates the limit of its workflow if it is
/// missing: without it the steps of the workflow would run side by side.
fn ensure_needs(tables: &mut dyn Tables, tags: &Tags) -> Result<Vec<Need>> {
    if let Some(workflow) = &tags.workflow {
        let name = Scope::Workflow.name(workflow);
        if tables.limit_named(&name)?.is_none() {
            tables.make_limit(&name, Some(1), Source::Unset, 0, None)?;
        }
    }
    needs(tables, tags)
}

/// Brings a task that stands nowhere to the gate. On `Unlocked` it still stands nowhere.
pub fn arrive(tables: &mut dyn Tables, tags: &Tags) -> Result<Verdict> {
    // Beside tasks of jobs a task without one has the tag of a job that just came; with none it
    // would go before every one of them.
    let tag = tables.counters()?.virtual_time;
    enter(tables, tags, tag)
}

/// The same with a task that was through the gate and whose worker died or gave it back. It goes
/// before all others of its rank: those that still stand in line had not got as far.
pub fn come_back(tables: &mut dyn Tables, tags: &Tags) -> Result<Verdict> {
    enter(tables, tags, TAG_OF_RETURN)
}

/// The rank counts from when the task became due, not from when somebody looked.
fn enter(tables: &mut dyn Tables, tags: &Tags, tag: i64) -> Result<Verdict> {
    let needs = ensure_needs(tables, tags)?;
    let mut counters = tables.counters()?;
    let rank = ready_rank(tags.arrival, tags.priority);
    if needs.is_empty() {
        let since = tables.now();
        tables.put_ready(ReadyRow {
            lane: tags.lane,
            rank,
            tag,
            task: tags.task,
            stamp: counters.limits_version,
            gated: false,
            since,
        })?;
        return Ok(Verdict::Ready);
    }
    if let Some(limit) = unlocked(tables, &needs)? {
        return Ok(Verdict::Unlocked(limit));
    }
    counters.place += 1;
    tables.set_counters(counters)?;
    let row = LineRow {
        limit: needs[0].limit,
        class: Class::Waiting,
        rank,
        tag: if tags.job.is_some() { tag.min(0) } else { tag },
        place: counters.place,
        task: tags.task,
        lane: tags.lane,
        moves: 0,
        passed: false,
        since: tags.arrival,
    };
    let waiter = Waiter { task: tags.task, row, at: None, needs, arrival_rank: rank, rank };
    consider(tables, waiter)
}

/// Considers a task that stands in a line again.
pub fn reconsider(tables: &mut dyn Tables, row: LineRow) -> Result<Verdict> {
    match waiter(tables, row)? {
        Some(waiter) => consider(tables, waiter),
        None => Ok(Verdict::Parked),
    }
}

/// Admits from the line of a limit while the head fits, for at most `budget` tasks; where more slots
/// are held than may be, sends back those who have not begun.
pub fn drain(tables: &mut dyn Tables, id: LimitId, budget: &mut u32) -> Result<Verdict> {
    if !recall(tables, id, budget)? {
        return Ok(Verdict::Parked);
    }
    loop {
        let Some(mut limit) = tables.limit(id)? else {
            return Ok(Verdict::Unlocked(id));
        };
        let next = next_in_turn(tables, &limit)?;
        let Some(waiter) = next else {
            if *budget > 0 && promote(tables, &limit)? {
                *budget -= 1;
                continue;
            }
            let before = (limit.dirty, limit.look_at);
            limit.looked_at(tables.now());
            if before != (limit.dirty, limit.look_at) {
                tables.put_limit(&limit)?;
            }
            return Ok(Verdict::Parked);
        };
        if *budget == 0 {
            return Ok(Verdict::Parked);
        }
        *budget -= 1;
        if let Verdict::Unlocked(other) = consider(tables, waiter)? {
            return Ok(Verdict::Unlocked(other));
        }
    }
}

/// Drains every dirty limit this transaction may touch. True when some are left.
pub fn settle(tables: &mut dyn Tables, budget: &mut u32) -> Result<bool> {
    // Who is to get a slot of its job's reserve comes to the lines of other limits before they are
    // looked at.
    settle_where(tables, budget, |limit| limit.is_reserved(0))?;
    settle_where(tables, budget, |_| true)
}

fn settle_where(
    tables: &mut dyn Tables,
    budget: &mut u32,
    is_meant: fn(&Limit) -> bool,
) -> Result<bool> {
    // Draining one limit may disturb one with a lower id, so passes are made until one of
    // them settles nothing.
    loop {
        let (mut after, mut settled, mut left) = (LimitId(0), false, false);
        while let Some(id) = tables.next_dirty(after)? {
            if *budget == 0 {
                return Ok(true);
            }
            after = id;
            if tables.limit(id)?.is_some_and(|limit| !is_meant(&limit)) {
                continue;
            }
            drain(tables, id, budget)?;
            match tables.limit(id)? {
                Some(limit) if !limit.is_due(tables.now()) => settled = true,
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
pub fn release(tables: &mut dyn Tables, tags: &Tags, ending: bool, ahead: bool) -> Result<()> {
    for need in needs(tables, tags)? {
        let mut limit = locked(tables, need.limit)?;
        if ending || need.hold == Hold::Attempt {
            free(tables, tags.task, &mut limit)?;
        }
        if limit.reserver == Some(tags.task) {
            limit.reserver = None;
            limit.disturb();
        }
        if ahead && leave_window(&mut limit) {
            limit.disturb();
        }
        tables.put_limit(&limit)?;
    }
    Ok(())
}

/// Halts the workflow of a step that failed for good, unless the step said that it goes on.
pub fn halt(tables: &mut dyn Tables, tags: &Tags) -> Result<()> {
    let Some(workflow) = tags.workflow.as_ref().filter(|_| tags.on_failure == OnFailure::Halt)
    else {
        return Ok(());
    };
    if let Some(id) = tables.limit_named(&Scope::Workflow.name(workflow))? {
        let mut limit = locked(tables, id)?;
        limit.halt = Some(Halt::Step(tags.task));
        tables.put_limit(&limit)?;
    }
    Ok(())
}

fn free(tables: &mut dyn Tables, task: TaskId, limit: &mut Limit) -> Result<()> {
    let freed = tables.free_slots(task, limit.id)?;
    limit.held = limit.held.saturating_sub(freed);
    if freed > 0 && !is_planted(Bug::LostWake) {
        limit.disturb();
    }
    if is_planted(Bug::CountedRelease) && freed == 0 {
        limit.held = limit.held.saturating_sub(1);
    }
    Ok(())
}

fn waiter(tables: &mut dyn Tables, row: LineRow) -> Result<Option<Waiter>> {
    let Some(tags) = tables.tags(row.task)? else {
        return Ok(None);
    };
    let needs = ensure_needs(tables, &tags)?;
    let arrival_rank = ready_rank(row.since, tags.priority);
    let rank = if row.passed { row.rank } else { arrival_rank };
    let mut next = row;
    let by_arrival = |need: &Need| need.limit == row.limit && need.hold == Hold::Lifetime;
    if tags.job.is_none() && needs.iter().any(by_arrival) {
        next.tag = tables.counters()?.virtual_time;
    }
    Ok(Some(Waiter { task: row.task, row: next, at: Some(row), needs, arrival_rank, rank }))
}

/// The task whose turn it is in the line of a limit, if there is room for it.
fn next_in_turn(tables: &mut dyn Tables, limit: &Limit) -> Result<Option<Waiter>> {
    if limit.waiting == 0 {
        return Ok(None);
    }
    if limit.aside > 0
        && let Some(row) = next_aside(tables, limit)?
    {
        return waiter(tables, row);
    }
    let Some(row) = tables.line_first(limit.id, Class::Reserving, Class::Waiting)? else {
        return Ok(None);
    };
    let Some(waiter) = waiter(tables, row)? else {
        return Ok(None);
    };
    let weight = waiter.needs.iter().find(|need| need.limit == limit.id).map(|need| need.weight);
    // A limit that no longer applies holds nobody back.
    let Some(weight) = weight else {
        return Ok(Some(waiter));
    };
    let may_pass = row.passed || may_pass(tables, limit)?;
    // Who reserves at a limit that was paused or whose window is full has slots of others to
    // give back.
    let room = limit.is_too_small_for(weight)
        || (row.class == Class::Reserving && (limit.is_paused() || !may_pass))
        || (limit.fits(weight) && may_pass);
    Ok(room.then_some(waiter))
}

/// A task set aside in the line whose reason is gone: the seat is free, or it is no longer
/// too heavy. Those without a worker are looked at when a worker comes.
fn next_aside(tables: &mut dyn Tables, limit: &Limit) -> Result<Option<LineRow>> {
    if limit.reserver.is_none()
        && let Some(row) = tables.line_first(limit.id, Class::Seat, Class::Seat)?
    {
        return Ok(Some(row));
    }
    let lightest = tables.line_first(limit.id, Class::TooHeavy, Class::TooHeavy)?;
    Ok(lightest.filter(|row| limit.capacity.is_none_or(|capacity| row.rank <= i64::from(capacity))))
}

fn unlocked(tables: &mut dyn Tables, needs: &[Need]) -> Result<Option<LimitId>> {
    for need in needs {
        if tables.limit(need.limit)?.is_none() {
            return Ok(Some(need.limit));
        }
    }
    Ok(None)
}

fn consider(tables: &mut dyn Tables, mut waiter: Waiter) -> Result<Verdict> {
    if let Some(limit) = unlocked(tables, &waiter.needs)? {
        return Ok(Verdict::Unlocked(limit));
    }
    if let Some(full) = take_lifetime(tables, &mut waiter)? {
        return park(tables, waiter, full, Class::Waiting);
    }
    fall_back(tables, &mut waiter)?;
    let_go(tables, &mut waiter)?;
    if waiter.row.since > tables.now() {
        // It is its turn in its workflow, and not yet its time.
        leave_line(tables, &waiter)?;
        tables.put_scheduled(waiter.task, waiter.row.since)?;
        return Ok(Verdict::Parked);
    }
    let first_attempt = waiter.needs.iter().find(|need| need.hold == Hold::Attempt);
    let Some(first_attempt) = first_attempt.map(|need| need.limit) else {
        return admit(tables, waiter);
    };
    if !tables.is_served(waiter.row.lane)? {
        give_back(tables, &mut waiter)?;
        return park(tables, waiter, first_attempt, Class::NoWorker);
    }
    match obstacle(tables, &mut waiter)? {
        None => admit(tables, waiter),
        Some(Obstacle::TooHeavy(limit)) => {
            give_back(tables, &mut waiter)?;
            make_way(tables, &mut waiter)?;
            park(tables, waiter, limit, Class::TooHeavy)
        }
        Some(Obstacle::Full(limit)) => {
            if waiter.at.is_some_and(|at| at.limit != limit && attempt_limit(&waiter, at.limit)) {
                waiter.row.moves += 1;
            }
            if waiter.row.moves >= MOVES_BEFORE_RESERVING {
                reserve(tables, waiter)
            } else {
                park(tables, waiter, limit, Class::Waiting)
            }
        }
    }
}

fn attempt_limit(waiter: &Waiter, limit: LimitId) -> bool {
    waiter.needs.iter().any(|need| need.limit == limit && need.hold == Hold::Attempt)
}

/// Takes the lifetime slots one after another; returns the first limit that is full.
fn take_lifetime(tables: &mut dyn Tables, waiter: &mut Waiter) -> Result<Option<LimitId>> {
    for i in 0..waiter.needs.len() {
        let need = waiter.needs[i];
        if need.hold == Hold::Attempt || need.taken {
            continue;
        }
        let mut limit = locked(tables, need.limit)?;
        if limit.halt == Some(Halt::Step(waiter.task)) {
            limit.halt = None;
            tables.put_limit(&limit)?;
        } else if !limit.fits(need.weight) || overtakes(tables, waiter, need)? {
            return Ok(Some(need.limit));
        }
        take(tables, waiter, i)?;
    }
    Ok(None)
}

/// The first attempt limit that stops the task. A task of a job that finds room at its job
/// passes the job's line here, even if another limit stops it then.
fn obstacle(tables: &mut dyn Tables, waiter: &mut Waiter) -> Result<Option<Obstacle>> {
    // Before all else: a limit that is too small stays so, and the drain of its line looks at a
    // head that is too heavy until it is set aside.
    for need in waiter.needs.iter().filter(|need| !need.taken) {
        if locked(tables, need.limit)?.is_too_small_for(need.weight) {
            return Ok(Some(Obstacle::TooHeavy(need.limit)));
        }
    }
    for i in 0..waiter.needs.len() {
        let need = waiter.needs[i];
        if need.hold == Hold::Lifetime || need.taken {
            continue;
        }
        let limit = locked(tables, need.limit)?;
        let fits = limit.fits(need.weight)
            || (is_planted(Bug::CheckThenAct) && limit.fits(need.weight.saturating_sub(1)));
        if !fits || !is_in_turn(tables, waiter, need, &limit)? {
            return Ok(Some(Obstacle::Full(need.limit)));
        }
        pass(tables, waiter, limit)?;
        if is_planted(Bug::TakeThenPark) {
            take(tables, waiter, i)?;
        }
    }
    Ok(None)
}

/// Whether it is the task's turn at a limit, as far as others are concerned. Who passed its
/// job's line stands before all who wait there.
fn is_in_turn(tables: &mut dyn Tables, waiter: &Waiter, need: Need, limit: &Limit) -> Result<bool> {
    if limit.share.is_some() && waiter.row.passed {
        return Ok(true);
    }
    Ok(may_pass(tables, limit)? && !overtakes(tables, waiter, need)?)
}

/// Whether somebody stands before the task in the line of a limit it needs.
fn overtakes(tables: &mut dyn Tables, waiter: &Waiter, need: Need) -> Result<bool> {
    if waiter.at.is_some_and(|at| at.limit == need.limit && at.class.is_in_turn()) {
        return Ok(false);
    }
    let Some(head) = tables.line_first(need.limit, Class::Reserving, Class::Waiting)? else {
        return Ok(false);
    };
    let key = line_key(waiter, need.hold);
    let before = head
        .class
        .cmp(&waiter.row.class.min(Class::Waiting))
        .then((head.rank, head.tag, head.place).cmp(&key));
    Ok(before == Ordering::Less)
}

fn line_key(waiter: &Waiter, hold: Hold) -> (i64, i64, i64) {
    match hold {
        Hold::Lifetime => (0, 0, waiter.row.place),
        Hold::Attempt => (waiter.rank, waiter.row.tag, waiter.row.place),
    }
}

fn take(tables: &mut dyn Tables, waiter: &mut Waiter, i: usize) -> Result<()> {
    let need = waiter.needs[i];
    let mut limit = locked(tables, need.limit)?;
    tables.take_slots(waiter.task, need.limit, need.weight)?;
    limit.held += need.weight;
    tables.put_limit(&limit)?;
    waiter.needs[i].taken = true;
    Ok(())
}

/// Takes what is still to be taken and makes the task ready.
fn admit(tables: &mut dyn Tables, mut waiter: Waiter) -> Result<Verdict> {
    leave_line(tables, &waiter)?;
    for i in 0..waiter.needs.len() {
        if !waiter.needs[i].taken {
            take(tables, &mut waiter, i)?;
        }
        let mut limit = locked(tables, waiter.needs[i].limit)?;
        if limit.reserver == Some(waiter.task) {
            limit.reserver = None;
            limit.disturb();
            tables.put_limit(&limit)?;
        }
    }
    let counters = tables.counters()?;
    let came_back = waiter.row.tag == TAG_OF_RETURN;
    let keeps_tag = waiter.row.passed || came_back;
    tables.put_ready(ReadyRow {
        lane: waiter.row.lane,
        rank: waiter.rank,
        tag: if keeps_tag { waiter.row.tag } else { counters.virtual_time },
        task: waiter.task,
        stamp: counters.limits_version,
        gated: true,
        since: tables.now(),
    })?;
    Ok(Verdict::Ready)
}

fn park(tables: &mut dyn Tables, mut waiter: Waiter, at: LimitId, class: Class) -> Result<Verdict> {
    leave_line(tables, &waiter)?;
    let mut limit = locked(tables, at)?;
    // Back in its job's own line a task gives up its place in the window; else those behind
    // it would wait for the window and it for them.
    let opened = waiter.row.passed && leave_window(&mut limit);
    if opened {
        step_back(&mut waiter);
    }
    let need = waiter.needs.iter().find(|need| need.limit == at);
    let (mut rank, tag, place) = line_key(&waiter, need.map_or(Hold::Attempt, |need| need.hold));
    if class == Class::TooHeavy {
        // The lightest first, so that a raised limit finds whom it can help.
        rank = need.map_or(0, |need| i64::from(need.weight));
    }
    tables.put_line(LineRow { limit: at, class, rank, tag, place, ..waiter.row })?;
    limit.waiting += 1;
    limit.refused += i64::from(class != Class::NoWorker);
    limit.aside += u32::from(!class.is_in_turn());
    limit.await_next(tables.now());
    // The head of the line may have waited for just that place in the window.
    if opened {
        limit.disturb();
    }
    tables.put_limit(&limit)?;
    Ok(Verdict::Parked)
}

/// Takes a task out of the line it stands in.
fn leave_line(tables: &mut dyn Tables, waiter: &Waiter) -> Result<()> {
    waiter.at.map_or(Ok(()), |at| unpark(tables, at))
}

/// Takes a row out of its line. Whoever stood behind it is looked at again.
pub fn unpark(tables: &mut dyn Tables, row: LineRow) -> Result<()> {
    tables.take_line(row)?;
    let mut limit = locked(tables, row.limit)?;
    limit.waiting = limit.waiting.saturating_sub(1);
    limit.aside = limit.aside.saturating_sub(u32::from(!row.class.is_in_turn()));
    limit.disturb();
    tables.put_limit(&limit)
}

fn locked(tables: &mut dyn Tables, id: LimitId) -> Result<Limit> {
    tables.limit(id)?.ok_or_else(|| {
        Error::new(ErrorKind::Incompatible, format!("limit {id} is needed and is not there"))
    })
}
