//! The one fenced exit out of running, and the hand-over.

use std::collections::BTreeSet;

use tidegate_core::bounds::BATCH_MAX;
use tidegate_core::{Error, Exit, Finish, Finished, LimitId, Result, TaskId, rules};

use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::rows;
use super::session::Tx;
use super::{Inner, claim, transact};

const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

/// Exits in one transaction; a batch above it takes several.
const EXITS_MAX: usize = 500;

pub(super) async fn finish(store: &Inner, finish: Finish) -> Result<Finished> {
    if finish.exits.len() > BATCH_MAX {
        return Err(Error::invalid(format!("at most {BATCH_MAX} attempts can end at once")));
    }
    finish.claim.as_ref().map_or(Ok(()), |claim| claim.check())?;
    let mut finished = Finished::default();
    for exits in finish.exits.chunks(EXITS_MAX) {
        let (lost, left) = transact!(store, tx => end(store, &tx, exits));
        finished.lost.extend(lost.lost);
        follow(store, left).await?;
    }
    if let Some(wanted) = finish.claim {
        // The exits are committed: a claim that fails now must not make them look undone. The
        // worker's next poll meets the same error.
        finished.claimed = claim::claim(store, wanted).await.unwrap_or_default();
    }
    Ok(finished)
}

async fn end(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
) -> Result<(Finished, Vec<LimitId>), Fault> {
    let tasks: BTreeSet<i64> = exits.iter().map(|exit| exit.task.0).collect();
    let tasks: Vec<i64> = tasks.into_iter().collect();
    let running = tx.query(LOCK_RUNNING, &[&tasks]).await?;
    let moment = moment(store, tx).await?;
    // Only those that end here are moved; another one's attempt is left alone.
    let running: Vec<_> = running.iter().map(rows::running).collect();
    let ending =
        |task: &TaskId, token| exits.iter().any(|exit| (exit.task, exit.token) == (*task, token));
    let ending: Vec<_> = running.into_iter().filter(|(t, token, _)| ending(t, *token)).collect();
    let tasks = ending.iter().map(|(task, _, _)| *task).collect();
    let budget = BUDGET + exits.len() as u32;
    let wanted = Wanted { tasks, budget, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    for (task, token, running) in ending {
        draft.run(task, token, running);
    }
    draft.seal();
    let finished = rules::finish(&mut draft, Finish { exits: exits.to_vec(), claim: None })?;
    flush(tx, &draft).await?;
    Ok((finished, draft.dirty()))
}
