//! Pauses queues and lets them go on.

use tidegate_core::{Pause, Result, name};

use super::error::Fault;
use super::load::moment;
use super::session::Tx;
use super::{Inner, transact};

const PAUSE_QUEUE: &str = include_str!("queries/pause_queue.sql");
const RESUME_QUEUE: &str = include_str!("queries/resume_queue.sql");

pub(super) async fn pause(store: &Inner, pause: Pause) -> Result<bool> {
    name::check("queue", &pause.queue)?;
    let changed = transact!(store, tx => write(store, &tx, &pause));
    if changed {
        store.changed.tell();
    }
    Ok(changed)
}

async fn write(store: &Inner, tx: &Tx<'_>, pause: &Pause) -> Result<bool, Fault> {
    let now = moment(store, tx).await?.now;
    let rows = match pause.paused {
        true => tx.execute(PAUSE_QUEUE, &[&pause.queue, &now]).await?,
        false => tx.execute(RESUME_QUEUE, &[&pause.queue]).await?,
    };
    Ok(rows > 0)
}
