//! The one fenced exit out of running, and the hand-over.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::requests::{FallbackReason, RequestPath};
use tidegate_core::{
    Claim, Exit, Finish, Finished, LimitId, Lost, Outcome, Result, TaskId, Token, rules,
};

use super::call::{self, Verb};
use super::claim::{Batch, Claimed, Pick, share_version, take_along};
use super::draft::{Draft, Left};
use super::due::{NewlyReady, admit_expected};
use super::error::{Fault, log_behind_commit};
use super::failed::{FailedBatch, may_be_fast};
use super::floors::first_of_lanes;
use super::flush::flush_and;
use super::gate::follow_briefly;
use super::load::{Wanted, gather};
use super::look::{View, look};
use super::relay::{Relay, relay};
use super::rows;
use super::session::{Params, Tx, at_once};
use super::unpack::unpack;
use super::{Inner, claim};

const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");
const HOLD: &str = include_str!("queries/lock_leases_for_finish.sql");
const FINISH: &str = concat!(
    include_str!("queries/finish_fast.sql"),
    include_str!("queries/complete_tasks.sql"),
    include_str!("queries/finish_fast_result.sql")
);

/// Exits in one transaction; a batch above it takes several.
const EXITS_MAX: usize = 500;

pub(super) async fn finish(store: &Inner, finish: Finish) -> Result<Finished> {
    rules::check_finish(&finish)?;
    let mut new = match &finish.claim {
        Some(_) => admit_expected(store, finish.exits.len()).await,
        None => NewlyReady::none(store),
    };
    let finished = finish_and_claim(store, finish, &mut new).await?;
    new.claimed(&finished.claimed);
    Ok(finished)
}

async fn finish_and_claim(
    store: &Inner,
    finish: Finish,
    new: &mut NewlyReady<'_>,
) -> Result<Finished> {
    let told: Vec<_> = finish.exits.iter().map(|exit| (exit.task, exit.token)).collect();
    let (mut quick, mut slow) = sort(finish.exits);
    call::note_path(Verb::Finish, RequestPath::Fast);
    if !slow.is_empty() {
        call::note_fallback(Verb::Finish, FallbackReason::AttemptsNotCompleted);
    }
    // Attempts with rows of their own would keep the others from being handed on.
    let (listed, with_rows, reason) = store.holding.split_off_rows(quick);
    quick = listed;
    slow.extend(with_rows);
    if let Some(reason) = reason {
        call::note_fallback(Verb::Finish, reason);
    }
    let wanted = finish.claim;
    let mut ends =
        Ends { store, told: &told, lost: Vec::new(), claimed: None, has_new_ready: false };
    let mut has_admitted = false;
    while let Some(claim) = wanted.as_ref().filter(|_| (1..=EXITS_MAX).contains(&quick.len())) {
        // The hand-off comes last: its claim may take the tasks that the general path admits.
        ends.slowly(std::mem::take(&mut slow), None).await?;
        // In a box, as all that sends statements together.
        match Box::pin(relay(store, quick, claim, ends.has_new_ready)).await? {
            Relay::Done(claimed) => {
                call::note_path(Verb::Finish, RequestPath::HandOff);
                let claimed = claim::fill_up(store, claim.clone(), claimed).await;
                let lost = in_order(told.clone(), &ends.lost);
                return Ok(Finished { claimed, lost });
            }
            Relay::Left { slow: held, quick: others, is_refused } => {
                (slow, quick) = (held, others);
                if !slow.is_empty() {
                    let reason = match is_refused {
                        true => FallbackReason::HandOffRefused,
                        false => FallbackReason::LeaseExpanded,
                    };
                    call::note_fallback(Verb::Finish, reason);
                }
                break;
            }
            Relay::NotEligible { failed, others } => {
                call::note_fallback(Verb::Finish, FallbackReason::AttemptsNotCompleted);
                (slow, quick) = (failed, others);
            }
            Relay::AdmissionPending { exits, is_due } => {
                let may_admit = is_due && !std::mem::replace(&mut has_admitted, true);
                // Parts of the finish may be committed.
                if may_admit && new.try_admit_due(exits.len()).await {
                    quick = exits;
                    continue;
                }
                call::note_fallback(Verb::Finish, FallbackReason::AdmissionPending);
                (slow, quick) = (exits, Vec::new());
                break;
            }
        }
    }
    if !quick.is_empty() {
        // Limits are locked for what has to be done under them, and not while a claim looks around.
        ends.slowly(std::mem::take(&mut slow), None).await?;
    }
    let rest = ends.quickly(quick, wanted.as_ref().filter(|_| slow.is_empty())).await?;
    if !rest.is_empty() {
        call::note_fallback(Verb::Finish, store.holding.reason(&rest));
    }
    slow.extend(rest);
    ends.slowly(slow, wanted.as_ref()).await?;
    let Ends { lost, claimed, .. } = ends;
    let lost = in_order(told, &lost);
    let claimed = match (wanted, claimed) {
        (None, _) => Vec::new(),
        (Some(wanted), Some(claimed)) => claim::fill_up(store, wanted, claimed).await,
        // The exits are committed: a claim that fails now must not make them look undone. The
        // worker's next poll meets the same error.
        (Some(wanted), None) => claim::claim(store, wanted).await.unwrap_or_else(|error| {
            log_behind_commit("claim behind a finish", &error);
            Vec::new()
        }),
    };
    Ok(Finished { lost, claimed })
}

/// Exits on their way out, and what came of them.
struct Ends<'a> {
    store: &'a Inner,
    /// All of them, as they were told.
    told: &'a [(TaskId, Token)],
    lost: Vec<Lost>,
    /// None where the claim has to follow.
    claimed: Option<Claimed>,
    /// Tasks have become ready on the general path.
    has_new_ready: bool,
}

impl Ends<'_> {
    /// Ends what its lease lists without slots, and claims with the last of it; gives what is not so.
    async fn quickly(&mut self, exits: Vec<Exit>, wanted: Option<&Claim>) -> Result<Vec<Exit>> {
        let store = self.store;
        let mut rest = Vec::new();
        let mut parts = exits.chunks(EXITS_MAX).peekable();
        while let Some(exits) = parts.next() {
            let along = wanted.filter(|_| rest.is_empty() && parts.peek().is_none());
            let along = along.map(|claim| Pick::new(store, claim));
            let ended = at_once!(store, tx => end_quickly(store, &tx, exits, along.as_ref()));
            rest.extend(exits.iter().filter(|exit| !ended.tasks.contains(&exit.task)).cloned());
            if let Some((claimed, windows)) = settled(along, ended.claimed) {
                follow_briefly(store, Left { windows, ..Left::default() }).await;
                self.claimed = Some(claimed);
            }
        }
        Ok(rest)
    }

    /// Ends exits of any kind, in the order in which they were told: one may give back what the next one
    /// takes. Claims with the last of them.
    async fn slowly(&mut self, mut exits: Vec<Exit>, wanted: Option<&Claim>) -> Result<()> {
        if exits.is_empty() {
            return Ok(());
        }
        let store = self.store;
        let have_rows = store.holding.forget(&exits);
        let told = self.told.iter().enumerate().rev();
        let places: BTreeMap<_, _> = told.map(|(place, exit)| (*exit, place)).collect();
        exits.sort_by_key(|exit| places.get(&(exit.task, exit.token)).copied());
        if !have_rows {
            unpack_exits(store, &exits).await?;
        }
        let mut parts = exits.chunks(EXITS_MAX).peekable();
        while let Some(exits) = parts.next() {
            let along = wanted.filter(|_| parts.peek().is_none());
            let along = along.map(|claim| Pick::told_to(store, claim));
            let mut is_guess = have_rows;
            let mut ended = loop {
                match at_once!(store, tx => end(store, &tx, exits, along.as_ref(), is_guess)) {
                    Some(ended) => break ended,
                    None => unpack_exits(store, exits).await?,
                }
                is_guess = false;
            };
            self.has_new_ready |= ended.left.ready;
            self.lost.extend(ended.lost);
            if let Some((claimed, windows)) = settled(along, ended.claimed) {
                ended.left.windows.extend(windows);
                self.claimed = Some(claimed);
            }
            follow_briefly(store, ended.left).await;
        }
        Ok(())
    }
}

/// What was claimed along, once it is committed. None where the claim has to follow.
fn settled(along: Option<Pick<'_>>, batch: Option<Batch>) -> Option<(Claimed, Vec<LimitId>)> {
    along.zip(batch).map(|(pick, batch)| pick.settle(batch))
}

/// Exits that are lost as they were told, whichever way they went. Of one that was told several times
/// the first may be good.
fn in_order(told: Vec<(TaskId, Token)>, lost: &[Lost]) -> Vec<Lost> {
    let mut good: BTreeMap<(TaskId, Token), i64> = BTreeMap::new();
    told.iter().for_each(|exit| *good.entry(*exit).or_default() += 1);
    lost.iter().for_each(|lost| *good.entry((lost.task, lost.token)).or_default() -= 1);
    let mut is_lost = |exit: &(TaskId, Token)| {
        let good = good.entry(*exit).or_default();
        *good -= 1;
        *good < 0
    };
    let lost = told.into_iter().filter(|exit| is_lost(exit));
    lost.map(|(task, token)| Lost { task, token }).collect()
}

/// Exits that one statement may end, and all others. Whoever tells of a task twice gets the order
/// that it was told in.
fn sort(exits: Vec<Exit>) -> (Vec<Exit>, Vec<Exit>) {
    let mut told: BTreeMap<TaskId, u32> = BTreeMap::new();
    exits.iter().for_each(|exit| *told.entry(exit.task).or_default() += 1);
    let is_quick = |exit: &Exit| match &exit.outcome {
        _ if told[&exit.task] > 1 => false,
        Outcome::Completed(result) => result.len() <= PAYLOAD_BYTES_MAX,
        _ => may_be_fast(exit),
    };
    exits.into_iter().partition(is_quick)
}

/// Attempts that have ended, as columns of a statement, and their leases.
pub(super) struct Told {
    pub(super) tasks: Vec<i64>,
    pub(super) tokens: Vec<i64>,
    /// None for an attempt that failed.
    pub(super) results: Vec<Option<Vec<u8>>>,
    pub(super) leases: Vec<i64>,
}

impl Told {
    pub(super) fn new(exits: &[Exit]) -> Self {
        let tokens: Vec<i64> = exits.iter().map(|exit| exit.token.0).collect();
        let leases: BTreeSet<i64> = tokens.iter().copied().collect();
        let result = |exit: &'_ Exit| match &exit.outcome {
            Outcome::Completed(result) => Some(result.clone()),
            _ => None,
        };
        Self {
            tasks: exits.iter().map(|exit| exit.task.0).collect(),
            tokens,
            results: exits.iter().map(result).collect(),
            leases: leases.into_iter().collect(),
        }
    }
}

struct EndedQuickly {
    tasks: BTreeSet<TaskId>,
    /// None where the claim has to follow.
    claimed: Option<Batch>,
}

/// Ends attempts that their leases list without slots, and claims, in one round trip; in two if some of
/// them failed.
async fn end_quickly(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
    along: Option<&Pick<'_>>,
) -> Result<EndedQuickly, Fault> {
    let told = Told::new(exits);
    let of_leases: Params<'_> = &[&told.leases];
    if !exits.iter().any(may_be_fast) {
        let (_, tasks, claimed, ()) = tokio::try_join!(biased;
            tx.query(HOLD, of_leases),
            end_told(store, tx, &told),
            take_along(store, tx, along, &[]),
            tx.commit(),
        )?;
        // A claim that found exits before it has not looked at all.
        let claimed = claimed.filter(|_| tasks.len() == exits.len());
        return Ok(EndedQuickly { tasks, claimed });
    }
    let (_, failed) = tokio::try_join!(biased;
        tx.query(HOLD, of_leases),
        FailedBatch::decide(store, tx, exits),
    )?;
    let (fast, _) = failed.partition(exits.to_vec());
    let told = Told::new(&fast);
    // The claim has to follow the exits that are left.
    let along = along.filter(|_| fast.len() == exits.len());
    let (tasks, (), claimed, ()) = tokio::try_join!(biased;
        end_told(store, tx, &told),
        failed.write(tx),
        take_along(store, tx, along, &[]),
        tx.commit(),
    )?;
    failed.note_due(store);
    // A claim that found exits before it has not looked at all.
    let claimed = claimed.filter(|_| tasks.len() == exits.len());
    Ok(EndedQuickly { tasks, claimed })
}

/// Ends those that their leases, which are locked, list without slots; gives which these are.
pub(super) async fn end_told(
    store: &Inner,
    tx: &Tx<'_>,
    told: &Told,
) -> Result<BTreeSet<TaskId>, Fault> {
    let Told { tasks, tokens, results, leases } = told;
    let now = store.options.now();
    let row = tx.one(FINISH, &[tasks, tokens, results, leases, &now]).await?;
    Ok(row.get::<_, Vec<i64>>("tasks").into_iter().map(TaskId).collect())
}

/// Gives attempts rows of their own.
async fn unpack_exits(store: &Inner, exits: &[Exit]) -> Result<()> {
    let tokens: BTreeSet<i64> = exits.iter().map(|exit| exit.token.0).collect();
    let tokens: Vec<i64> = tokens.into_iter().collect();
    let tasks: Vec<i64> = exits.iter().map(|exit| exit.task.0).collect();
    unpack(store, &tokens, Some(&tasks)).await
}

struct Ended {
    lost: Vec<Lost>,
    /// None where the claim has to follow.
    claimed: Option<Batch>,
    left: Left,
}

/// Ends attempts that have rows of their own. Returns none, and does nothing, if `is_guess` and one of them has no
/// row: it may have to be unpacked first.
async fn end(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
    along: Option<&Pick<'_>>,
    is_guess: bool,
) -> Result<Option<Ended>, Fault> {
    let tasks: BTreeSet<i64> = exits.iter().map(|exit| exit.task.0).collect();
    let tasks: Vec<i64> = tasks.into_iter().collect();
    let attempts: Params<'_> = &[&tasks];
    let (_, running, view) = tokio::try_join!(biased;
        share_version(store, tx),
        tx.query(LOCK_RUNNING, attempts),
        look(store, tx, along.map(Pick::claim)),
    )?;
    // A worker that was full for longer than its lease has room again, and must be seen before
    // the slots it gives back are handed on.
    if let Some(pick) = along.filter(|_| !view.is_noted) {
        return Err(Fault::Unnoted(pick.claim().clone()));
    }
    // Only those that end here are moved; another one's attempt is left alone.
    let running: Vec<_> = running.iter().map(rows::running).collect();
    let ending: BTreeSet<_> = exits.iter().map(|exit| (exit.task, exit.token)).collect();
    let ending = |(task, token, _): &(TaskId, Token, _)| ending.contains(&(*task, *token));
    let ending: Vec<_> = running.into_iter().filter(ending).collect();
    if is_guess && ending.len() < tasks.len() {
        return Ok(None);
    }
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
    let claim_and_commit =
        async { tokio::try_join!(biased; take_along(store, tx, along, &left.new), tx.commit()) };
    let (claimed, ()) = flush_and(tx, &draft, claim_and_commit).await?;
    if let Some(batch) = &claimed {
        // Nobody else is called for what this worker takes itself.
        let tasks = batch.tasks();
        let others = || draft.new_ready().filter(|row| !tasks.contains(&row.task));
        left.ready = others().next().is_some();
        left.new = first_of_lanes(others());
    }
    Ok(Some(Ended { lost: finished.lost, claimed, left }))
}

/// Whether the claim may go along: nothing waits at the gate that would come before.
fn can_go_along(view: &View, draft: &Draft, left: &Left) -> bool {
    !view.has_gate_work && left.dirty.is_empty() && draft.state.arrived.is_empty()
}
