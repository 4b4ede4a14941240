use std::collections::HashSet;

use super::admission;
use super::finish::{apply_transition, kind_of_task};
use crate::bounds::{PROGRESS_MESSAGE_BYTES_MAX, RELEASED_LEASES_MAX, STEP_ATTEMPTS_MAX};
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::Tables;
use crate::{
    Error, Heartbeat, HeartbeatReply, Outcome, Progress, Result, TaskId, Token,
    transition_after_completion,
};

/// Records the heartbeat of the worker and the run times, renews leases, writes progress, and releases expired
/// leases that the worker does not list. A worker that deregisters is removed instead of recorded. Returns the
/// listed leases that are lost and the attempts that should stop.
pub fn heartbeat(tables: &mut dyn Tables, heartbeat: &Heartbeat) -> Result<HeartbeatReply> {
    heartbeat.check()?;
    heartbeat.progress.iter().try_for_each(|(_, _, progress)| check_progress(progress))?;
    let expires_at = tables.now() + heartbeat.lease_ms;
    let mut extended = HeartbeatReply::default();
    if heartbeat.is_deregistration() {
        tables.delete_worker(&heartbeat.worker)?;
    } else {
        let (worker, report) = (&heartbeat.worker, heartbeat.report.as_ref());
        extended.peers_with_capacity =
            tables.record_heartbeat(worker, heartbeat.lease_ms, report)?;
    }
    for token in &heartbeat.tokens {
        if !tables.renew_lease(*token, &heartbeat.worker, expires_at)? {
            extended.lost_leases.push(*token);
        }
    }
    for (task, token, progress) in &heartbeat.progress {
        tables.put_progress(*task, *token, progress)?;
    }
    for ran in &heartbeat.run_times {
        let pace = tables
            .run_time_stats(&ran.group)?
            .unwrap_or_default()
            .with_finished_tasks(ran.tasks, ran.total_ms);
        tables.put_run_time_stats(&ran.group, pace)?;
    }
    extended.attempts_to_stop = tables.attempts_to_stop(&heartbeat.tokens)?;
    extended.released_attempts = release_unlisted_leases(tables, heartbeat)?;
    Ok(extended)
}

/// Releases the expired leases of a worker that its heartbeat does not list: the answer to their
/// claim was lost, or the worker has stopped their handlers because it could not renew. The
/// attempts are not spent and not counted as crashes. Returns how many there were. One step takes a bounded
/// number of leases and attempts, and may leave a part of a lease to the next one.
///
/// A claim whose answer is still on its way is safe: its lease has not expired, and a worker that
/// gets the answer later than that starts no handler.
pub fn release_unlisted_leases(tables: &mut dyn Tables, heartbeat: &Heartbeat) -> Result<u32> {
    if is_injected(InjectedBug::UnlistedLeasesKept) {
        return Ok(0);
    }
    let leases_max = RELEASED_LEASES_MAX.saturating_add(heartbeat.tokens.len() as u32);
    let mut expired =
        tables.expired_leases_of_worker(tables.now(), &heartbeat.worker, leases_max)?;
    let listed: HashSet<Token> = heartbeat.tokens.iter().copied().collect();
    expired.retain(|token| !listed.contains(token));
    expired.truncate(RELEASED_LEASES_MAX as usize);
    if expired.is_empty() {
        return Ok(0);
    }
    let (mut released, mut left) = (0, STEP_ATTEMPTS_MAX as usize);
    for token in expired {
        let tasks = tables.running_tasks_of_lease(token)?;
        for task in tasks.iter().take(left) {
            released += u32::from(release_attempt(tables, *task, token)?);
        }
        if tasks.len() > left {
            break;
        }
        left -= tasks.len();
        tables.delete_lease(token)?;
    }
    let mut budget = tables.admission_budget();
    admission::admit_from_dirty_limits(tables, &mut budget)?;
    Ok(released)
}

fn release_attempt(tables: &mut dyn Tables, task: TaskId, token: Token) -> Result<bool> {
    let Some(stopped) = tables.remove_running(task, token)? else {
        return Ok(false);
    };
    let Some(tags) = tables.task_info(task)? else {
        return Ok(false);
    };
    let (kind, now) = (kind_of_task(tables, &tags)?, tables.now());
    apply_transition(tables, &tags, &kind, stopped, |ledger| {
        transition_after_completion(Outcome::Released, ledger, task, kind.backoff, now)
    })?;
    Ok(true)
}

fn check_progress(progress: &Progress) -> Result<()> {
    let is_text = !progress.message.contains('\0');
    if progress.percent > 100 || progress.message.len() > PROGRESS_MESSAGE_BYTES_MAX || !is_text {
        return Err(Error::invalid(format!(
            "progress is between 0 and 100 percent with a message of at most \
             {PROGRESS_MESSAGE_BYTES_MAX} bytes, none of them zero"
        )));
    }
    Ok(())
}
