//! Tasks that collect their slots one after another, and how somebody gives way.

use super::{Verdict, Waiter, admit, free, is_in_turn, locked, may_pass, park, pass, take};
use crate::tables::{Class, Tables};
use crate::{Hold, LimitId, Result};

/// Collects the attempt slots in ascending order of limit and keeps each while waiting for
/// the next. Only the holder of the seat of the lowest limit may do so, and slots are always
/// collected upwards, so no two reservers wait for each other.
pub(super) fn reserve(tables: &mut dyn Tables, mut waiter: Waiter) -> Result<Verdict> {
    if let Some(paused) = paused(tables, &waiter)? {
        // It would keep the slots it has for as long as the pause lasts.
        give_back(tables, &mut waiter)?;
        waiter.row.class = Class::Waiting;
        return park(tables, waiter, paused, Class::Waiting);
    }
    if let Some(job) = shut(tables, &waiter)? {
        // Those in the window may wait for the very slots it would keep.
        give_back(tables, &mut waiter)?;
        waiter.row.class = Class::Waiting;
        return park(tables, waiter, job, Class::Waiting);
    }
    let mut ascending: Vec<usize> =
        (0..waiter.needs.len()).filter(|i| waiter.needs[*i].hold == Hold::Attempt).collect();
    ascending.sort_by_key(|i| waiter.needs[*i].limit);
    let seat = waiter.needs[ascending[0]].limit;
    let mut limit = locked(tables, seat)?;
    if limit.reserver.is_some_and(|task| task != waiter.task) {
        return park(tables, waiter, seat, Class::Seat);
    }
    if limit.reserver.is_none() {
        limit.reserver = Some(waiter.task);
        tables.put_limit(&limit)?;
    }
    waiter.row.class = Class::Reserving;
    for i in ascending {
        let need = waiter.needs[i];
        if need.taken {
            continue;
        }
        let limit = locked(tables, need.limit)?;
        if !limit.fits(need.weight) || !is_in_turn(tables, &waiter, need, &limit)? {
            return park(tables, waiter, need.limit, Class::Reserving);
        }
        pass(tables, &mut waiter, limit)?;
        take(tables, &mut waiter, i)?;
    }
    admit(tables, waiter)
}

/// An attempt limit the task still needs that lets nobody through.
fn paused(tables: &mut dyn Tables, waiter: &Waiter) -> Result<Option<LimitId>> {
    for need in &waiter.needs {
        if need.hold == Hold::Attempt && !need.taken && locked(tables, need.limit)?.is_paused() {
            return Ok(Some(need.limit));
        }
    }
    Ok(None)
}

/// The job whose line the task has not passed and may not pass now.
fn shut(tables: &mut dyn Tables, waiter: &Waiter) -> Result<Option<LimitId>> {
    if waiter.row.passed {
        return Ok(None);
    }
    for need in waiter.needs.iter().filter(|need| !need.taken) {
        let limit = locked(tables, need.limit)?;
        if !may_pass(tables, &limit)? {
            return Ok(Some(need.limit));
        }
    }
    Ok(None)
}

/// A reserver that cannot go on lets go of its slots and its seat.
pub(super) fn give_back(tables: &mut dyn Tables, waiter: &mut Waiter) -> Result<()> {
    for i in 0..waiter.needs.len() {
        let need = waiter.needs[i];
        let mut limit = locked(tables, need.limit)?;
        if need.hold == Hold::Attempt && need.taken {
            free(tables, waiter.task, &mut limit)?;
            waiter.needs[i].taken = false;
        }
        if limit.reserver == Some(waiter.task) {
            limit.reserver = None;
            limit.disturb();
        }
        tables.put_limit(&limit)?;
    }
    Ok(())
}
