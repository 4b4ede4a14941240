//! Takes a slot away from the attempt that holds it.

use tidegate_core::tables::Tables;
use tidegate_core::{LimitId, Release, ReleaseOutcome, Result, TaskId, rules};

use super::claim::share_version;
use super::draft::Left;
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::rows;
use super::session::Tx;
use super::unpack::unpack_tasks;
use super::{Inner, transact};

const LIMITS_NAMED: &str = include_str!("queries/limits_by_name.sql");
const SLOT_HOLDER: &str = include_str!("queries/slot_holder.sql");
const IS_RUNNING: &str = include_str!("queries/is_task_running.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

pub(super) async fn release(store: &Inner, release: Release) -> Result<ReleaseOutcome> {
    // No limit has such a name, and the server cannot be asked for it.
    if release.limit.contains('\0') {
        return Ok(ReleaseOutcome::NoLimit);
    }
    loop {
        let released = transact!(store, tx => release_one(store, &tx, &release));
        match released {
            Released::Done(outcome, left) => {
                follow(store, left).await?;
                return Ok(outcome);
            }
            Released::Packed(task) => unpack_tasks(store, &[task]).await?,
        }
    }
}

enum Released {
    Done(ReleaseOutcome, Left),
    /// A lease lists the holder, and has to be unpacked first.
    Packed(TaskId),
}

/// The holder is looked up without a lock, its attempt is locked, and then the limits.
async fn release_one(store: &Inner, tx: &Tx<'_>, release: &Release) -> Result<Released, Fault> {
    share_version(store, tx).await?;
    let names = std::slice::from_ref(&release.limit);
    let limit = tx.query(LIMITS_NAMED, &[&names]).await?.first().map(rows::limit).transpose()?;
    let Some(limit) = limit else {
        return Ok(Released::Done(ReleaseOutcome::NoLimit, Left::default()));
    };
    let Some(task) = holder(tx, limit.id, release.slot).await? else {
        return Ok(Released::Done(ReleaseOutcome::Free, Left::default()));
    };
    let running = tx.query(LOCK_RUNNING, &[&vec![task.0]]).await?;
    if running.is_empty() && is_running(tx, task).await? {
        return Ok(Released::Packed(task));
    }
    let moment = moment(store, tx).await?;
    let (tasks, limits) = (vec![task], vec![limit.id]);
    let wanted = Wanted { tasks, limits, in_line: 1, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    // It may have changed hands before the lock, or begun to run.
    let is_other = draft.holder(limit.id, release.slot)? != Some(task);
    if is_other || running.is_empty() && is_running(tx, task).await? {
        return Err(Fault::Again);
    }
    for row in &running {
        let (task, token, running) = rows::running(row);
        draft.run(task, token, running);
    }
    draft.seal();
    let outcome = rules::release(&mut draft, release)?;
    flush(tx, &draft).await?;
    Ok(Released::Done(outcome, draft.left()))
}

async fn is_running(tx: &Tx<'_>, task: TaskId) -> Result<bool, Fault> {
    Ok(tx.one(IS_RUNNING, &[&task.0]).await?.get("is_running"))
}

async fn holder(tx: &Tx<'_>, limit: LimitId, slot: u32) -> Result<Option<TaskId>, Fault> {
    let rows = tx.query(SLOT_HOLDER, &[&limit.0, &i64::from(slot)]).await?;
    Ok(rows.first().map(|row| TaskId(row.get("task"))))
}
