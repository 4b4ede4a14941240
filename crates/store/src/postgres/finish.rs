//! The one fenced exit out of running, and the hand-over.

use std::collections::BTreeSet;

use tidegate_core::{Attempt, Claim, Exit, Finish, Finished, Lost, Result, TaskId, Token, rules};

use super::claim::{View, look, share_version, take_along};
use super::draft::{Draft, Left};
use super::error::Fault;
use super::flush::flush;
use super::gate::follow_briefly;
use super::load::{Wanted, gather};
use super::rows;
use super::session::{Params, Tx};
use super::{Inner, claim, transact};

const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

/// Exits in one transaction; a batch above it takes several.
const EXITS_MAX: usize = 500;

pub(super) async fn finish(store: &Inner, finish: Finish) -> Result<Finished> {
    rules::check_finish(&finish)?;
    let mut finished = Finished::default();
    let mut parts = finish.exits.chunks(EXITS_MAX).peekable();
    let mut wanted = finish.claim;
    while let Some(exits) = parts.next() {
        let along = wanted.as_ref().filter(|_| parts.peek().is_none());
        let ended = transact!(store, tx => end(store, &tx, exits, along));
        finished.lost.extend(ended.lost);
        follow_briefly(store, ended.left).await;
        if let Some(claimed) = ended.claimed {
            finished.claimed = claimed;
            wanted = None;
        }
    }
    if let Some(wanted) = wanted {
        // The exits are committed: a claim that fails now must not make them look undone. The
        // worker's next poll meets the same error.
        finished.claimed = claim::claim(store, wanted).await.unwrap_or_default();
    }
    Ok(finished)
}

struct Ended {
    lost: Vec<Lost>,
    /// None where the claim has to follow.
    claimed: Option<Vec<Attempt>>,
    left: Left,
}

async fn end(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
    along: Option<&Claim>,
) -> Result<Ended, Fault> {
    let tasks: BTreeSet<i64> = exits.iter().map(|exit| exit.task.0).collect();
    let tasks: Vec<i64> = tasks.into_iter().collect();
    let attempts: Params<'_> = &[&tasks];
    let (_, running, view) = tokio::try_join!(biased;
        share_version(store, tx),
        tx.query(LOCK_RUNNING, attempts),
        look(store, tx, along),
    )?;
    // A worker that was full for longer than its lease has room again, and must be seen before
    // the slots it gives back are handed on.
    if let Some(claim) = along.filter(|_| !view.is_noted) {
        return Err(Fault::Unnoted(claim.clone()));
    }
    // Only those that end here are moved; another one's attempt is left alone.
    let running: Vec<_> = running.iter().map(rows::running).collect();
    let ending: BTreeSet<_> = exits.iter().map(|exit| (exit.task, exit.token)).collect();
    let ending = |(task, token, _): &(TaskId, Token, _)| ending.contains(&(*task, *token));
    let ending: Vec<_> = running.into_iter().filter(ending).collect();
    let tasks = ending.iter().map(|(task, _, _)| *task).collect();
    // As many as give way to others, and a few that move on to another line.
    let budget = exits.len() as u32 + 2;
    let wanted = Wanted { tasks, budget, ..Wanted::default() };
    let mut draft = gather(store, tx, view.moment, wanted).await?;
    for (task, token, running) in ending {
        draft.run(task, token, running);
    }
    draft.seal();
    let finished = rules::finish(&mut draft, Finish { exits: exits.to_vec(), claim: None })?;
    let mut left = draft.left();
    let along = along.filter(|_| can_go_along(&view, &draft, &left));
    let ((), claimed) =
        tokio::try_join!(biased; flush(tx, &draft), take_along(store, tx, along, &view))?;
    let claimed = claimed.map(|(claimed, windows)| {
        left.windows.extend(windows);
        let tasks: BTreeSet<TaskId> = claimed.iter().map(|attempt| attempt.task).collect();
        // Nobody else is called for what this worker takes itself.
        left.ready = draft.new_ready().any(|row| !tasks.contains(&row.task));
        claimed
    });
    Ok(Ended { lost: finished.lost, claimed, left })
}

/// Whether the claim may go along: nothing waits at the gate that would come before.
fn can_go_along(view: &View, draft: &Draft, left: &Left) -> bool {
    !view.has_gate_work() && left.dirty.is_empty() && draft.state.arrived.is_empty()
}
