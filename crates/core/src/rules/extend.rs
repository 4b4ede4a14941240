use std::collections::HashSet;

use super::finish::{kind_of, move_on};
use super::gate;
use crate::bounds::{PROGRESS_BYTES_MAX, RELEASED_LEASES_MAX, STEP_ATTEMPTS_MAX};
use crate::planted::{Bug, is_planted};
use crate::tables::Tables;
use crate::{Error, Extend, Extended, Outcome, Progress, Result, TaskId, Token, after_exit};

/// Renews leases, writes progress, releases expired leases that the worker does not list, and
/// returns which attempts were lost or should stop.
pub fn extend(tables: &mut dyn Tables, extend: &Extend) -> Result<Extended> {
    extend.check()?;
    extend.progress.iter().try_for_each(|(_, _, progress)| check(progress))?;
    let expires_at = tables.now() + extend.lease_ms;
    let mut extended = Extended::default();
    if extend.leaves() {
        tables.forget_worker(&extend.worker)?;
    } else {
        let (worker, report) = (&extend.worker, extend.report.as_ref());
        extended.peers = tables.put_heartbeat(worker, extend.lease_ms, report)?;
    }
    for token in &extend.tokens {
        if !tables.renew_lease(*token, &extend.worker, expires_at)? {
            extended.lost.push(*token);
        }
    }
    for (task, token, progress) in &extend.progress {
        tables.put_progress(*task, *token, progress)?;
    }
    for ran in &extend.ran {
        let pace = tables.pace(&ran.group)?.unwrap_or_default().add(ran.tasks, ran.total_ms);
        tables.put_pace(&ran.group, pace)?;
    }
    extended.cancelled = tables.cancel_requests(&extend.tokens)?;
    extended.released = release_unlisted(tables, extend)?;
    Ok(extended)
}

/// Releases the expired leases of a worker that its heartbeat does not list: the answer to their
/// claim was lost, or the worker has stopped their handlers because it could not renew. The
/// attempts are not spent and not counted as crashes. Returns how many there were. One step takes a bounded
/// number of leases and attempts, and may leave a part of a lease to the next one.
///
/// A claim whose answer is still on its way is safe: its lease has not expired, and a worker that
/// gets the answer later than that starts no handler.
pub fn release_unlisted(tables: &mut dyn Tables, extend: &Extend) -> Result<u32> {
    if is_planted(Bug::UnlistedStay) {
        return Ok(0);
    }
    let leases_max = RELEASED_LEASES_MAX.saturating_add(extend.tokens.len() as u32);
    let mut expired = tables.expired_leases(tables.now(), &extend.worker, leases_max)?;
    let listed: HashSet<Token> = extend.tokens.iter().copied().collect();
    expired.retain(|token| !listed.contains(token));
    expired.truncate(RELEASED_LEASES_MAX as usize);
    if expired.is_empty() {
        return Ok(0);
    }
    let (mut released, mut left) = (0, STEP_ATTEMPTS_MAX as usize);
    for token in expired {
        let tasks = tables.running_under(token)?;
        for task in tasks.iter().take(left) {
            released += u32::from(release_attempt(tables, *task, token)?);
        }
        if tasks.len() > left {
            break;
        }
        left -= tasks.len();
        tables.drop_lease(token)?;
    }
    let mut budget = tables.gate_budget();
    gate::settle(tables, &mut budget)?;
    Ok(released)
}

fn release_attempt(tables: &mut dyn Tables, task: TaskId, token: Token) -> Result<bool> {
    let Some(stopped) = tables.stop(task, token)? else {
        return Ok(false);
    };
    let Some(tags) = tables.tags(task)? else {
        return Ok(false);
    };
    let (kind, now) = (kind_of(tables, &tags)?, tables.now());
    move_on(tables, &tags, &kind, stopped, |ledger| {
        after_exit(Outcome::Released, ledger, task, kind.backoff, now)
    })?;
    Ok(true)
}

fn check(progress: &Progress) -> Result<()> {
    let is_text = !progress.message.contains('\0');
    if progress.percent > 100 || progress.message.len() > PROGRESS_BYTES_MAX || !is_text {
        return Err(Error::invalid(format!(
            "progress is between 0 and 100 percent with a message of at most \
             {PROGRESS_BYTES_MAX} bytes, none of them zero"
        )));
    }
    Ok(())
}
