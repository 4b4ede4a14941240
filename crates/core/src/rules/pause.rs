use crate::tables::Tables;
use crate::{Pause, Result, name};

/// Pauses a queue or lets it go on. Its lanes are closed to claims, so what it has admitted and
/// not started gives its slots back after a lease, as where no worker serves it.
pub fn pause(tables: &mut dyn Tables, pause: &Pause) -> Result<bool> {
    name::check("queue", &pause.queue)?;
    let changes = tables.is_paused(&pause.queue)? != pause.paused;
    if changes {
        tables.set_paused(&pause.queue, pause.paused)?;
        // Who waits for work looks again.
        tables.leave_more();
    }
    Ok(changes)
}
