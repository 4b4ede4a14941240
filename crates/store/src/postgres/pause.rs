//! Pauses queues, jobs and workflows, and lets them go on.

use tidegate_core::{Pausable, Pause, Result, Scope, rules};

use super::draft::{Draft, Left};
use super::error::Fault;
use super::gate::follow;
use super::load::moment;
use super::session::Tx;
use super::set_limit::{named, set};
use super::{Inner, transact};

const PAUSE_QUEUE: &str = include_str!("queries/pause_queue.sql");
const RESUME_QUEUE: &str = include_str!("queries/resume_queue.sql");

pub(super) async fn pause(store: &Inner, pause: Pause) -> Result<bool> {
    rules::check_pause(&pause)?;
    let name = match &pause.what {
        Pausable::Queue(queue) => return pause_queue(store, queue, pause.paused).await,
        Pausable::Job(job) => Scope::Job.name(job),
        Pausable::Workflow(workflow) => Scope::Workflow.name(workflow),
    };
    let (changed, left) = transact!(store, tx => halt(store, &tx, &pause, &name));
    follow(store, left).await?;
    Ok(changed)
}

async fn halt(
    store: &Inner,
    tx: &Tx<'_>,
    pause: &Pause,
    name: &str,
) -> Result<(bool, Left), Fault> {
    let names = [name.to_owned()];
    let is_known = !named(tx, &names).await?.is_empty();
    match &pause.what {
        Pausable::Workflow(_) if !is_known && !pause.paused => Ok((false, Left::default())),
        // It is made first, in a transaction of its own, as by the gate.
        Pausable::Workflow(_) if !is_known => Err(Fault::NoLimit(names.into())),
        _ => set(store, tx, &names, &[], |draft: &mut Draft| rules::pause(draft, pause)).await,
    }
}

async fn pause_queue(store: &Inner, queue: &str, paused: bool) -> Result<bool> {
    let changed = transact!(store, tx => write(store, &tx, queue, paused));
    if changed {
        store.changed.tell();
    }
    Ok(changed)
}

async fn write(store: &Inner, tx: &Tx<'_>, queue: &str, paused: bool) -> Result<bool, Fault> {
    let now = moment(store, tx).await?.now;
    let rows = match paused {
        true => tx.execute(PAUSE_QUEUE, &[&queue, &now]).await?,
        false => tx.execute(RESUME_QUEUE, &[&queue]).await?,
    };
    Ok(rows > 0)
}
