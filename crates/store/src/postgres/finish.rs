//! The one fenced exit out of running, and the hand-over.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::bounds::PAYLOAD_BYTES_MAX;
use tidegate_core::request_stats::{FallbackReason, RequestPath};
use tidegate_core::{
    Claim, Completion, Finish, FinishReply, LimitId, LostAttempt, Outcome, Result, TaskId, Token,
    rules,
};

use super::admission::run_follow_ups_bounded;
use super::call::{self, Verb};
use super::claim::{
    ClaimBatch, ClaimRequest, CommittedClaim, claim_in_tx, lock_limits_version_shared,
};
use super::claim_cursors::first_of_each_lane;
use super::claim_probe::{ClaimProbe, probe};
use super::due::{NewlyReady, admit_expected_due};
use super::error::{TxError, log_after_commit};
use super::finish_failed::{FailedBatch, may_fail_on_fast_path};
use super::hand_off::{HandOffOutcome, hand_off};
use super::lease_expansion::expand_leases;
use super::rows;
use super::transaction::{Params, Tx, in_pipelined_transaction};
use super::working_set::{FollowUp, WorkingSet};
use super::working_set_load::{LoadRequest, lock_and_load};
use super::working_set_write::write_changes_and;
use super::{PostgresInner, claim};

const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");
const LOCK_LEASES_FOR_FINISH: &str = include_str!("queries/lock_leases_for_finish.sql");
const FINISH_FAST: &str = concat!(
    include_str!("queries/finish_fast.sql"),
    include_str!("queries/complete_tasks.sql"),
    include_str!("queries/finish_fast_result.sql")
);

/// Exits in one transaction; a batch above it takes several.
const COMPLETIONS_MAX: usize = 500;

pub(super) async fn finish(store: &PostgresInner, finish: Finish) -> Result<FinishReply> {
    rules::check_finish(&finish)?;
    let mut new = match &finish.claim {
        Some(_) => admit_expected_due(store, finish.completions.len()).await,
        None => NewlyReady::empty(store),
    };
    let finished = finish_and_claim(store, finish, &mut new).await?;
    new.remove_claimed(&finished.claimed);
    Ok(finished)
}

async fn finish_and_claim(
    store: &PostgresInner,
    finish: Finish,
    newly_ready: &mut NewlyReady<'_>,
) -> Result<FinishReply> {
    let told: Vec<_> =
        finish.completions.iter().map(|completion| (completion.task, completion.token)).collect();
    let (mut quick, mut slow) = partition_by_path(finish.completions);
    call::record_path(Verb::Finish, RequestPath::Fast);
    if !slow.is_empty() {
        call::record_fallback(Verb::Finish, FallbackReason::AttemptsNotCompleted);
    }
    // Attempts with rows of their own would keep the others from being handed on.
    let (listed, with_rows, reason) = store.hand_off_cache.split_off_own_rows(quick);
    quick = listed;
    slow.extend(with_rows);
    if let Some(reason) = reason {
        call::record_fallback(Verb::Finish, reason);
    }
    let wanted = finish.claim;
    let mut ends =
        FinishRun { store, reported: &told, lost: Vec::new(), claimed: None, has_new_ready: false };
    let mut has_admitted = false;
    while let Some(claim) = wanted.as_ref().filter(|_| (1..=COMPLETIONS_MAX).contains(&quick.len()))
    {
        // The hand-off comes last: its claim may take the tasks that the general path admits.
        ends.finish_general(std::mem::take(&mut slow), None).await?;
        // In a box, as all that sends statements together.
        match Box::pin(hand_off(store, quick, claim, ends.has_new_ready)).await? {
            HandOffOutcome::Done(claimed) => {
                call::record_path(Verb::Finish, RequestPath::HandOff);
                let claimed = claim::claim_remaining(store, claim.clone(), claimed).await;
                let lost = lost_in_request_order(told.clone(), &ends.lost);
                return Ok(FinishReply { claimed, lost_attempts: lost });
            }
            HandOffOutcome::Remaining { slow: held, quick: others, is_refused } => {
                (slow, quick) = (held, others);
                if !slow.is_empty() {
                    let reason = match is_refused {
                        true => FallbackReason::HandOffRefused,
                        false => FallbackReason::LeaseExpanded,
                    };
                    call::record_fallback(Verb::Finish, reason);
                }
                break;
            }
            HandOffOutcome::NotEligible { failed, others } => {
                call::record_fallback(Verb::Finish, FallbackReason::AttemptsNotCompleted);
                (slow, quick) = (failed, others);
            }
            HandOffOutcome::AdmissionPending { completions, is_due } => {
                let may_admit = is_due && !std::mem::replace(&mut has_admitted, true);
                // Parts of the finish may be committed.
                if may_admit && newly_ready.try_admit_due(completions.len()).await {
                    quick = completions;
                    continue;
                }
                call::record_fallback(Verb::Finish, FallbackReason::AdmissionPending);
                (slow, quick) = (completions, Vec::new());
                break;
            }
        }
    }
    if !quick.is_empty() {
        // Limits are locked for what has to be done under them, and not while a claim looks around.
        ends.finish_general(std::mem::take(&mut slow), None).await?;
    }
    let rest = ends.finish_fast(quick, wanted.as_ref().filter(|_| slow.is_empty())).await?;
    if !rest.is_empty() {
        call::record_fallback(Verb::Finish, store.hand_off_cache.fallback_reason(&rest));
    }
    slow.extend(rest);
    ends.finish_general(slow, wanted.as_ref()).await?;
    let FinishRun { lost, claimed, .. } = ends;
    let lost = lost_in_request_order(told, &lost);
    let claimed = match (wanted, claimed) {
        (None, _) => Vec::new(),
        (Some(wanted), Some(claimed)) => claim::claim_remaining(store, wanted, claimed).await,
        // The exits are committed: a claim that fails now must not make them look undone. The
        // worker's next poll meets the same error.
        (Some(wanted), None) => claim::claim(store, wanted).await.unwrap_or_else(|error| {
            log_after_commit("claim behind a finish", &error);
            Vec::new()
        }),
    };
    Ok(FinishReply { lost_attempts: lost, claimed })
}

/// Exits on their way out, and what came of them.
struct FinishRun<'a> {
    store: &'a PostgresInner,
    /// All of them, as they were told.
    reported: &'a [(TaskId, Token)],
    lost: Vec<LostAttempt>,
    /// None where the claim has to follow.
    claimed: Option<CommittedClaim>,
    /// Tasks have become ready on the general path.
    has_new_ready: bool,
}

impl FinishRun<'_> {
    /// Ends what its lease lists without slots, and claims with the last of it; gives what is not so.
    async fn finish_fast(
        &mut self,
        completions: Vec<Completion>,
        wanted: Option<&Claim>,
    ) -> Result<Vec<Completion>> {
        let store = self.store;
        let mut rest = Vec::new();
        let mut parts = completions.chunks(COMPLETIONS_MAX).peekable();
        while let Some(completions) = parts.next() {
            let claim_request = wanted.filter(|_| rest.is_empty() && parts.peek().is_none());
            let along = claim_request.map(|claim| ClaimRequest::new(store, claim));
            let ended = in_pipelined_transaction!(store, tx => finish_fast_tx(store, &tx, completions, along.as_ref()));
            rest.extend(
                completions.iter().filter(|exit| !ended.tasks.contains(&exit.task)).cloned(),
            );
            if let Some((claimed, windows)) = accept_committed_batch(along, ended.claimed) {
                run_follow_ups_bounded(
                    store,
                    FollowUp { job_windows: windows, ..FollowUp::default() },
                )
                .await;
                self.claimed = Some(claimed);
            }
        }
        Ok(rest)
    }

    /// Ends exits of any kind, in the order in which they were told: one may give back what the next one
    /// takes. Claims with the last of them.
    async fn finish_general(
        &mut self,
        mut exits: Vec<Completion>,
        wanted: Option<&Claim>,
    ) -> Result<()> {
        if exits.is_empty() {
            return Ok(());
        }
        let store = self.store;
        let have_rows = store.hand_off_cache.remove_completed(&exits);
        let told = self.reported.iter().enumerate().rev();
        let places: BTreeMap<_, _> = told.map(|(place, exit)| (*exit, place)).collect();
        exits.sort_by_key(|exit| places.get(&(exit.task, exit.token)).copied());
        if !have_rows {
            expand_completions(store, &exits).await?;
        }
        let mut parts = exits.chunks(COMPLETIONS_MAX).peekable();
        while let Some(exits) = parts.next() {
            let along = wanted.filter(|_| parts.peek().is_none());
            let along = along.map(|claim| ClaimRequest::ignoring_pending_admission(store, claim));
            let mut is_guess = have_rows;
            let mut ended = loop {
                match in_pipelined_transaction!(store, tx => finish_general_tx(store, &tx, exits, along.as_ref(), is_guess))
                {
                    Some(ended) => break ended,
                    None => expand_completions(store, exits).await?,
                }
                is_guess = false;
            };
            self.has_new_ready |= ended.follow_up.notify_others;
            self.lost.extend(ended.lost);
            if let Some((claimed, windows)) = accept_committed_batch(along, ended.claimed) {
                ended.follow_up.job_windows.extend(windows);
                self.claimed = Some(claimed);
            }
            run_follow_ups_bounded(store, ended.follow_up).await;
        }
        Ok(())
    }
}

/// What was claimed along, once it is committed. None where the claim has to follow.
fn accept_committed_batch(
    claim_request: Option<ClaimRequest<'_>>,
    batch: Option<ClaimBatch>,
) -> Option<(CommittedClaim, Vec<LimitId>)> {
    claim_request.zip(batch).map(|(claim_request, batch)| claim_request.accept_batch(batch))
}

/// Exits that are lost as they were told, whichever way they went. Of one that was told several times
/// the first may be good.
fn lost_in_request_order(reported: Vec<(TaskId, Token)>, lost: &[LostAttempt]) -> Vec<LostAttempt> {
    let mut good: BTreeMap<(TaskId, Token), i64> = BTreeMap::new();
    reported.iter().for_each(|exit| *good.entry(*exit).or_default() += 1);
    lost.iter().for_each(|lost| *good.entry((lost.task, lost.token)).or_default() -= 1);
    let mut is_lost = |completion: &(TaskId, Token)| {
        let good = good.entry(*completion).or_default();
        *good -= 1;
        *good < 0
    };
    let lost = reported.into_iter().filter(|exit| is_lost(exit));
    lost.map(|(task, token)| LostAttempt { task, token }).collect()
}

/// Exits that one statement may end, and all others. Whoever tells of a task twice gets the order
/// that it was told in.
fn partition_by_path(exits: Vec<Completion>) -> (Vec<Completion>, Vec<Completion>) {
    let mut told: BTreeMap<TaskId, u32> = BTreeMap::new();
    exits.iter().for_each(|exit| *told.entry(exit.task).or_default() += 1);
    let is_quick = |exit: &Completion| match &exit.outcome {
        _ if told[&exit.task] > 1 => false,
        Outcome::Completed(result) => result.len() <= PAYLOAD_BYTES_MAX,
        _ => may_fail_on_fast_path(exit),
    };
    exits.into_iter().partition(is_quick)
}

/// Attempts that have ended, as columns of a statement, and their leases.
pub(super) struct CompletedBatch {
    pub(super) tasks: Vec<i64>,
    pub(super) tokens: Vec<i64>,
    /// None for an attempt that failed.
    pub(super) results: Vec<Option<Vec<u8>>>,
    pub(super) leases: Vec<i64>,
}

impl CompletedBatch {
    pub(super) fn new(exits: &[Completion]) -> Self {
        let tokens: Vec<i64> = exits.iter().map(|exit| exit.token.0).collect();
        let leases: BTreeSet<i64> = tokens.iter().copied().collect();
        let result = |exit: &'_ Completion| match &exit.outcome {
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

struct FastFinish {
    tasks: BTreeSet<TaskId>,
    /// None where the claim has to follow.
    claimed: Option<ClaimBatch>,
}

/// Ends attempts that their leases list without slots, and claims, in one round trip; in two if some of
/// them failed.
async fn finish_fast_tx(
    store: &PostgresInner,
    tx: &Tx<'_>,
    exits: &[Completion],
    along: Option<&ClaimRequest<'_>>,
) -> Result<FastFinish, TxError> {
    let told = CompletedBatch::new(exits);
    let of_leases: Params<'_> = &[&told.leases];
    if !exits.iter().any(may_fail_on_fast_path) {
        let (_, tasks, claimed, ()) = tokio::try_join!(biased;
            tx.query(LOCK_LEASES_FOR_FINISH, of_leases),
            complete_listed(store, tx, &told),
            claim_in_tx(store, tx, along, &[]),
            tx.commit(),
        )?;
        // A claim that found exits before it has not looked at all.
        let claimed = claimed.filter(|_| tasks.len() == exits.len());
        return Ok(FastFinish { tasks, claimed });
    }
    let (_, failed) = tokio::try_join!(biased;
        tx.query(LOCK_LEASES_FOR_FINISH, of_leases),
        FailedBatch::decide(store, tx, exits),
    )?;
    let (fast, _) = failed.partition_by_path(exits.to_vec());
    let told = CompletedBatch::new(&fast);
    // The claim has to follow the exits that are left.
    let along = along.filter(|_| fast.len() == exits.len());
    let (tasks, (), claimed, ()) = tokio::try_join!(biased;
        complete_listed(store, tx, &told),
        failed.write_decisions(tx),
        claim_in_tx(store, tx, along, &[]),
        tx.commit(),
    )?;
    failed.update_due_hint(store);
    // A claim that found exits before it has not looked at all.
    let claimed = claimed.filter(|_| tasks.len() == exits.len());
    Ok(FastFinish { tasks, claimed })
}

/// Ends those that their leases, which are locked, list without slots; gives which these are.
pub(super) async fn complete_listed(
    store: &PostgresInner,
    tx: &Tx<'_>,
    completed: &CompletedBatch,
) -> Result<BTreeSet<TaskId>, TxError> {
    let CompletedBatch { tasks, tokens, results, leases } = completed;
    let now = store.options.now_override();
    let row = tx.query_one(FINISH_FAST, &[tasks, tokens, results, leases, &now]).await?;
    Ok(row.get::<_, Vec<i64>>("tasks").into_iter().map(TaskId).collect())
}

/// Gives attempts rows of their own.
async fn expand_completions(store: &PostgresInner, exits: &[Completion]) -> Result<()> {
    let tokens: BTreeSet<i64> = exits.iter().map(|exit| exit.token.0).collect();
    let tokens: Vec<i64> = tokens.into_iter().collect();
    let tasks: Vec<i64> = exits.iter().map(|exit| exit.task.0).collect();
    expand_leases(store, &tokens, Some(&tasks)).await
}

struct GeneralFinish {
    lost: Vec<LostAttempt>,
    /// None where the claim has to follow.
    claimed: Option<ClaimBatch>,
    follow_up: FollowUp,
}

/// Ends attempts that have rows of their own. Returns none, and does nothing, if `is_guess` and one of them has no
/// row: it may have to be unpacked first.
async fn finish_general_tx(
    store: &PostgresInner,
    tx: &Tx<'_>,
    exits: &[Completion],
    along: Option<&ClaimRequest<'_>>,
    is_guess: bool,
) -> Result<Option<GeneralFinish>, TxError> {
    let tasks: BTreeSet<i64> = exits.iter().map(|exit| exit.task.0).collect();
    let tasks: Vec<i64> = tasks.into_iter().collect();
    let attempts: Params<'_> = &[&tasks];
    let (_, running, view) = tokio::try_join!(biased;
        lock_limits_version_shared(store, tx),
        tx.query(LOCK_RUNNING, attempts),
        probe(store, tx, along.map(ClaimRequest::claim)),
    )?;
    // A worker that was full for longer than its lease has room again, and must be seen before
    // the slots it gives back are handed on.
    if let Some(claim_request) = along.filter(|_| !view.is_worker_recorded) {
        return Err(TxError::WorkerNotRecorded(claim_request.claim().clone()));
    }
    // Only those that end here are moved; another one's attempt is left alone.
    let running: Vec<_> = running.iter().map(rows::running_row).collect();
    let ending: BTreeSet<_> = exits.iter().map(|exit| (exit.task, exit.token)).collect();
    let ending = |(task, token, _): &(TaskId, Token, _)| ending.contains(&(*task, *token));
    let ending: Vec<_> = running.into_iter().filter(ending).collect();
    if is_guess && ending.len() < tasks.len() {
        return Ok(None);
    }
    let tasks = ending.iter().map(|(task, _, _)| *task).collect();
    // As many as give way to others, and a few that move on to another line.
    let budget = exits.len() as u32 + 2;
    let wanted = LoadRequest { tasks, admission_budget: budget, ..LoadRequest::default() };
    let mut working_set = lock_and_load(store, tx, view.start, wanted).await?;
    for (task, token, running) in ending {
        working_set.set_running(task, token, running);
    }
    working_set.finish_loading();
    let finished =
        rules::finish(&mut working_set, Finish { completions: exits.to_vec(), claim: None })?;
    let mut follow_up = working_set.follow_up();
    let along = along.filter(|_| may_claim_in_tx(&view, &working_set, &follow_up));
    let claim_and_commit = async {
        tokio::try_join!(biased; claim_in_tx(store, tx, along, &follow_up.first_new_ready), tx.commit())
    };
    let (claimed, ()) = write_changes_and(tx, &working_set, claim_and_commit).await?;
    if let Some(batch) = &claimed {
        // Nobody else is called for what this worker takes itself.
        let tasks = batch.task_ids();
        let others = || working_set.newly_ready_rows().filter(|row| !tasks.contains(&row.task));
        follow_up.notify_others = others().next().is_some();
        follow_up.first_new_ready = first_of_each_lane(others());
    }
    Ok(Some(GeneralFinish { lost: finished.lost_attempts, claimed, follow_up }))
}

/// Whether the claim may go along: nothing waits at the gate that would come before.
fn may_claim_in_tx(
    probe_result: &ClaimProbe,
    working_set: &WorkingSet,
    follow_up: &FollowUp,
) -> bool {
    !probe_result.has_admission_work
        && follow_up.dirty_limits.is_empty()
        && working_set.state.inbox.is_empty()
}
