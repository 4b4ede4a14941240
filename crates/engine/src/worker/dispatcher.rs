//! The pump: the one loop that talks to the store about work.
//!
//! It takes permits, claims, starts handlers, collects the attempts whose handlers are gone,
//! and sends them with the next claim in one round trip. Batches form by themselves: whatever
//! has finished while calls were under way goes out with the next one, and nothing is held
//! back for a timer, because others may wait for its slot.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tidegate_core::bounds::BATCH_MAX;
use tidegate_core::{Attempt, Error, LimitId, Outcome, Result, TaskId, Token};

use super::burst_ramp::{self, BurstRamp};
use super::claim_planner::{ClaimPlan, ClaimPlanner, ClaimScope};
use super::completion_queue::PendingCompletion;
use super::in_flight::StartedAttempt;
use super::poll_timer::PollTimer;
use super::running_attempt::StopReason;
use super::store_request::{StoreReply, send_store_request};
use super::{BackpressureReason, WorkerShared, WorkerSummary, attempt};
use crate::time::{self, Backoff};
use crate::{AttemptOutcome, Shutdown, ShutdownPhase};

/// A worker asks a store that fails at least this often, give or take a quarter: work goes on within
/// two seconds of the store's return, however long it was away.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// Between two claims of its own where few permits are free: each takes one task, and batches wait until
/// more are free.
const LOW_CAPACITY_CLAIM_INTERVAL: Duration = Duration::from_millis(10);

/// How soon a worker that is held back looks again whether it still is.
const BUDGET_RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Between two tasks that a worker takes on beyond what memory or latency leave it: it does not stand still
/// where it has permits, unless its memory is all but full.
const TRICKLE_INTERVAL: Duration = Duration::from_secs(1);

/// Times the pump lets handlers run before it tells how some have ended.
const GATHER_ROUNDS_MAX: u32 = 3;

#[derive(Debug)]
pub(crate) struct Dispatcher {
    shared: Arc<WorkerShared>,
    planner: ClaimPlanner,
    poll_timer: PollTimer,
    requests: FuturesUnordered<BoxFuture<'static, StoreReply>>,
    /// Permits that nobody holds: no handler and no claim under way.
    free: u32,
    /// Permits of claims under way.
    reserved: u32,
    /// Tasks that one claim may ask for now.
    claim_budget: u32,
    /// When to look again whether there is more room, where something holds the worker back.
    recheck_at: Option<Instant>,
    /// Since when few permits are free, or the last task was taken on with one of them.
    low_capacity_since: Option<Instant>,
    /// Since when the worker has permits that the brakes leave unused and no others, or took on the last
    /// task beyond.
    trickle_since: Option<Instant>,
    burst_ramp: BurstRamp,
    /// Handlers that run.
    in_flight: u32,
    /// Attempts whose handlers are gone and that are in no call.
    completions: Vec<PendingCompletion>,
    /// The limits whose slots a call under way gives back.
    limits_in_flight: HashSet<LimitId>,
    /// The leases whose attempts a call under way ends.
    leases_in_flight: HashSet<Token>,
    /// Calls under way that claim.
    claims_in_flight: u32,
    /// Which claim is worth sending.
    claimable_scopes: [bool; 2],
    last_scope: ClaimScope,
    phase: ShutdownPhase,
    /// When a drain becomes a stop, and a stop an end.
    phase_ends_at: Option<Instant>,
    /// The store failed; no call before this.
    retry_at: Option<Instant>,
    backoff: Backoff,
    summary: WorkerSummary,
    fatal_error: Option<Error>,
}

impl Dispatcher {
    pub(crate) fn new(shared: Arc<WorkerShared>) -> Self {
        let kinds = shared
            .handlers
            .iter()
            .map(|handler| (handler.config.kind.name.clone(), handler.config.kind_concurrency));
        let longest = (shared.config.lease / 6).min(RETRY_DELAY_MAX);
        Self {
            planner: ClaimPlanner::new(kinds),
            poll_timer: PollTimer::new(shared.store.clone(), shared.config.poll_interval),
            requests: FuturesUnordered::new(),
            free: shared.config.concurrency,
            reserved: 0,
            claim_budget: 0,
            recheck_at: None,
            low_capacity_since: None,
            trickle_since: None,
            burst_ramp: BurstRamp::new(),
            in_flight: 0,
            completions: Vec::new(),
            limits_in_flight: HashSet::new(),
            leases_in_flight: HashSet::new(),
            claims_in_flight: 0,
            claimable_scopes: [true; 2],
            last_scope: ClaimScope::CappedKinds,
            phase: ShutdownPhase::Running,
            phase_ends_at: None,
            retry_at: None,
            backoff: Backoff::new(Duration::from_millis(20).min(longest), longest),
            summary: WorkerSummary::default(),
            fatal_error: None,
            shared,
        }
    }

    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> Result<WorkerSummary> {
        loop {
            self.drain_completions();
            self.update_claim_budget();
            while self.may_send_request() && self.send_request().await {
                self.update_claim_budget();
            }
            if self.is_shut_down() {
                return self.fatal_error.take().map_or(Ok(self.summary), Err);
            }
            self.wait_for_event(shutdown).await;
        }
    }

    /// Waits for whatever comes first.
    async fn wait_for_event(&mut self, shutdown: &Shutdown) {
        let next = match self.phase {
            ShutdownPhase::Running => ShutdownPhase::Draining,
            _ => ShutdownPhase::Stopping,
        };
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = shutdown.wait_for_phase(next), if self.phase < ShutdownPhase::Stopping => {
                self.enter_phase(shutdown.phase());
            }
            Some(answer) = self.requests.next() => self.on_reply(answer),
            () = shared.completion_queue.wait_until_filled() => {}
            () = sleep_until_if_set(self.retry_at), if self.retry_at.is_some() => self.retry_at = None,
            () = sleep_until_if_set(self.recheck_at), if self.is_claim_budget_restricted() => {}
            () = shared.worker_pool.wait_for_free_capacity(), if self.is_claim_budget_restricted() => {}
            () = sleep_until_if_set(self.phase_ends_at), if self.phase_ends_at.is_some() => {
                self.on_phase_timeout();
            }
            () = self.poll_timer.wait_until_due(), if self.free > 0 && self.phase == ShutdownPhase::Running => {
                self.claimable_scopes = [true; 2];
                self.poll_timer.on_claim_sent();
            }
        }
    }

    // Room

    /// Looks how many tasks a claim may ask for now.
    fn update_claim_budget(&mut self) {
        let now = time::now();
        let batch = self.shared.config.claim_batch_size;
        let (brakes, readings) = self.shared.worker_pool.update_backpressure();
        let wanted = self.free.min(batch);
        self.shared.free.store(self.free + self.reserved, Ordering::Relaxed);
        self.claim_budget = brakes.claim_budget(&readings, batch).min(wanted);
        // Permits that other workers of the process have are none.
        let may_go_beyond = wanted > 0 && !readings.is_full() && !brakes.is_memory_critical;
        if self.claim_budget > 0 || !may_go_beyond {
            self.trickle_since = None;
        } else if now >= *self.trickle_since.get_or_insert(now) + TRICKLE_INTERVAL {
            self.claim_budget = 1;
        }
        self.recheck_at = (self.claim_budget < wanted).then(|| now + BUDGET_RECHECK_INTERVAL);
        if self.shared.peers_with_capacity.load(Ordering::Relaxed) > 0 {
            let in_flight = self.shared.config.concurrency - self.free;
            let room = self.burst_ramp.claim_budget(in_flight, self.completions.len() as u32, now);
            self.restrict_claim_budget(room, now + burst_ramp::RAMP_INTERVAL);
        }
        if !brakes.is_capacity_low || self.has_sendable_completions() || !self.has_claimable_scope()
        {
            self.low_capacity_since = None;
        } else {
            let next = *self.low_capacity_since.get_or_insert(now) + LOW_CAPACITY_CLAIM_INTERVAL;
            if now < next {
                self.restrict_claim_budget(0, next);
            } else {
                self.restrict_claim_budget(1, now + BUDGET_RECHECK_INTERVAL);
            }
        }
    }

    fn restrict_claim_budget(&mut self, max_tasks: u32, until: Instant) {
        if max_tasks < self.claim_budget {
            self.claim_budget = max_tasks;
            self.recheck_at = Some(self.recheck_at.map_or(until, |at| at.min(until)));
        }
    }

    fn is_claim_budget_restricted(&self) -> bool {
        self.recheck_at.is_some() && self.has_claimable_scope()
    }

    fn has_claimable_scope(&self) -> bool {
        self.phase == ShutdownPhase::Running && self.claimable_scopes.contains(&true)
    }

    // Calls

    fn may_send_request(&self) -> bool {
        self.retry_at.is_none()
            && self.requests.len() < self.shared.config.max_store_requests
            && (self.has_sendable_completions() || self.may_claim() && self.plan_claim().is_some())
    }

    /// Slots of a limit are given back by one call after another, and attempts of a lease are ended
    /// so: a second call might wait for the limit or the lease behind the first, and what gathers
    /// meanwhile shares its step.
    fn may_send_completion(&self, completion: &PendingCompletion) -> bool {
        let Attempt { token, slots, .. } = &completion.running.attempt;
        !self.leases_in_flight.contains(token)
            && !slots.iter().any(|slot| self.limits_in_flight.contains(&slot.limit))
    }

    /// A claim goes along with exits that are held back, unless none is under way.
    fn may_claim(&self) -> bool {
        self.completions.is_empty() || self.claims_in_flight == 0
    }

    fn has_sendable_completions(&self) -> bool {
        self.completions.iter().any(|done| self.may_send_completion(done))
    }

    /// Sends what there is to tell and takes the permits for what it asks for. False where that is nothing:
    /// others of the process were quicker.
    async fn send_request(&mut self) -> bool {
        if !self.completions.is_empty() {
            self.gather_completions().await;
            self.update_claim_budget();
        }
        let plan = self.plan_claim().and_then(|plan| self.reserve_capacity(plan));
        let exits = self.take_completion_batch();
        if plan.is_none() && exits.is_empty() {
            return false;
        }
        self.limits_in_flight.extend(limits_to_release(&exits));
        self.leases_in_flight.extend(exits.iter().map(|done| done.running.attempt.token));
        self.requests.push(Box::pin(send_store_request(self.shared.clone(), exits, plan)));
        true
    }

    /// Takes the permits of a claim, or as many as other workers of the process have left.
    fn reserve_capacity(&mut self, mut plan: ClaimPlan) -> Option<ClaimPlan> {
        plan.tasks_max = self.shared.worker_pool.reserve(plan.tasks_max);
        if plan.tasks_max == 0 {
            self.restrict_claim_budget(0, time::now() + BUDGET_RECHECK_INTERVAL);
            return None;
        }
        self.poll_timer.on_claim_sent();
        self.burst_ramp.on_claim_sent(plan.tasks_max, self.completions.len() as u32, time::now());
        self.free -= plan.tasks_max;
        self.reserved += plan.tasks_max;
        self.planner.reserve(&plan);
        self.claimable_scopes[plan.scope as usize] = false;
        self.last_scope = plan.scope;
        self.claims_in_flight += 1;
        self.low_capacity_since = None;
        self.trickle_since = self.trickle_since.map(|_| time::now());
        Some(plan)
    }

    /// A claim that asked for so many permits is answered, and so many of them have a handler.
    fn release_reservation(&mut self, reserved: u32, started: u32) {
        self.reserved -= reserved;
        self.free += reserved.saturating_sub(started);
        self.shared.worker_pool.settle_reservation(reserved, started);
    }

    /// Handlers that are done but not yet polled hand in their exits first, for a few rounds and as long
    /// as each brings more. This turns bursts of short tasks into batches.
    async fn gather_completions(&mut self) {
        let enough = self.shared.config.claim_batch_size as usize;
        for _ in 0..GATHER_ROUNDS_MAX {
            let before = self.completions.len();
            tokio::task::yield_now().await;
            self.drain_completions();
            if self.completions.len() == before || self.completions.len() >= enough {
                return;
            }
        }
    }

    /// The exits of one call, the oldest first: the store refuses more than so many at once.
    fn take_completion_batch(&mut self) -> Vec<PendingCompletion> {
        let exits = std::mem::take(&mut self.completions);
        let (mut next, mut rest): (Vec<_>, Vec<_>) =
            exits.into_iter().partition(|done| self.may_send_completion(done));
        rest.extend(next.drain(next.len().min(BATCH_MAX)..));
        self.completions = rest;
        next
    }

    /// What to ask for now. The two sorts of claim take turns.
    fn plan_claim(&self) -> Option<ClaimPlan> {
        if self.phase != ShutdownPhase::Running {
            return None;
        }
        let turns = match self.last_scope {
            ClaimScope::AnyKind => [ClaimScope::CappedKinds, ClaimScope::AnyKind],
            ClaimScope::CappedKinds => [ClaimScope::AnyKind, ClaimScope::CappedKinds],
        };
        let hungry = turns.into_iter().filter(|turn| self.claimable_scopes[*turn as usize]);
        hungry.filter_map(|turn| self.planner.plan(turn, self.claim_budget)).next()
    }

    fn on_reply(&mut self, reply: StoreReply) {
        let reserved = reply.plan.as_ref().map_or(0, |plan| plan.tasks_max);
        if let Some(plan) = &reply.plan {
            self.planner.release_reservation(plan);
            self.claims_in_flight -= 1;
        }
        for limit in limits_to_release(&reply.completions) {
            self.limits_in_flight.remove(&limit);
        }
        for done in &reply.completions {
            self.leases_in_flight.remove(&done.running.attempt.token);
        }
        match reply.result {
            Ok(finished) => {
                self.backoff.reset();
                let lost =
                    finished.lost_attempts.iter().map(|lost| (lost.task, lost.token)).collect();
                self.acknowledge(&reply.completions, &lost);
                if let Some(plan) = &reply.plan {
                    let found = finished.claimed.len();
                    // A call that ended attempts was worth making, whatever it found.
                    self.poll_timer.on_claim_reply(found > 0 || !reply.completions.is_empty());
                    if found == plan.tasks_max as usize {
                        self.claimable_scopes[plan.scope as usize] = true;
                        let waited =
                            shortest_time_ready(&finished.claimed, self.shared.config.lease);
                        self.burst_ramp.on_full_claim(waited, time::now());
                    } else {
                        self.burst_ramp.on_partial_claim();
                    }
                }
                let started = self.start_attempts(finished.claimed, reply.sent_at);
                self.release_reservation(reserved, started);
            }
            Err(error) => {
                self.release_reservation(reserved, 0);
                self.on_request_failed(error, reply.completions, reply.plan);
            }
        }
    }

    /// A call failed. It may have happened, so its exits are told again: those that were taken
    /// come back as stale.
    fn on_request_failed(
        &mut self,
        error: Error,
        completions: Vec<PendingCompletion>,
        plan: Option<ClaimPlan>,
    ) {
        self.completions.extend(
            completions.into_iter().map(|done| PendingCompletion { is_resent: true, ..done }),
        );
        if let Some(plan) = plan {
            self.claimable_scopes[plan.scope as usize] = true;
        }
        let pause = self.backoff.next_delay();
        self.retry_at = Some(time::now() + pause);
        if error.is_retryable() {
            tracing::warn!(%error, ?pause, "the store failed, the worker tries again");
        } else {
            tracing::error!(%error, "the store refuses the worker, it stops");
            self.fatal_error.get_or_insert(error);
            self.enter_phase(ShutdownPhase::Stopping);
        }
    }

    // Attempts

    /// Starts handlers, each with a permit of the claim's. Tells how many.
    fn start_attempts(&mut self, claimed: Vec<Attempt>, sent_at: Instant) -> u32 {
        if claimed.is_empty() {
            return 0;
        }
        let shared = self.shared.clone();
        let served = claimed.into_iter().filter_map(|attempt| {
            let handler = *shared.handlers_by_kind.get(&attempt.kind)?;
            Some((attempt, handler))
        });
        let now = time::now();
        if now - sent_at > shared.config.heartbeat_interval() {
            // The heartbeat reckons with leases that are younger than its interval.
            shared.old_lease_claimed.notify_one();
        }
        let all = shared.in_flight.insert(served.collect(), sent_at, shared.config.lease);
        let started = all.len() as u32;
        for StartedAttempt { running, payload } in all {
            self.planner.acquire(running.handler_index, 1);
            self.in_flight += 1;
            if self.phase == ShutdownPhase::Running && now < running.lease.give_up_at() {
                tokio::spawn(attempt::run(shared.clone(), running, payload));
            } else {
                // Claimed just before the drain began, or the answer was so long on its way
                // that the lease is all but over: it goes back before it has begun.
                let outcome = Outcome::Released;
                shared.completion_queue.push(PendingCompletion {
                    running,
                    outcome,
                    has_started: false,
                    is_resent: false,
                });
            }
        }
        started
    }

    /// Takes over the attempts whose handlers are gone. Their permits are free from here on.
    fn drain_completions(&mut self) {
        let before = self.completions.len();
        self.shared.completion_queue.drain_into(&mut self.completions);
        let new = &self.completions[before..];
        if new.is_empty() {
            return;
        }
        self.shared.in_flight.remove(new.iter().map(|done| &done.running));
        for done in new {
            self.planner.release(done.running.handler_index, 1);
        }
        let ended = new.len() as u32;
        self.free += ended;
        self.shared.worker_pool.release(ended);
        self.in_flight = self.in_flight.saturating_sub(ended);
        self.claimable_scopes = [true; 2];
        self.discard_lost_completions();
    }

    /// The store has said that these leases are gone: there is nothing to tell.
    fn discard_lost_completions(&mut self) {
        let is_lost =
            |done: &PendingCompletion| done.running.stop_reason() == Some(StopReason::LeaseLost);
        if !self.completions.iter().any(is_lost) {
            return;
        }
        let (lost, exits) = std::mem::take(&mut self.completions).into_iter().partition(is_lost);
        self.completions = exits;
        let tokens = lost.iter().map(|done: &PendingCompletion| attempt_key(done)).collect();
        self.acknowledge(&lost, &tokens);
    }

    /// The store knows about these exits; `lost` are those it did not take.
    fn acknowledge(&mut self, completions: &[PendingCompletion], lost: &HashSet<(TaskId, Token)>) {
        self.shared.in_flight.acknowledge(completions.iter().map(|done| &done.running));
        for done in completions {
            let is_lost = !lost.is_empty() && lost.contains(&attempt_key(done));
            if is_lost && done.is_resent {
                continue;
            }
            let attempt = &done.running.attempt;
            let ended = if is_lost {
                AttemptOutcome::Lost
            } else {
                AttemptOutcome::from_outcome(attempt, &done.outcome)
            };
            if is_lost {
                tracing::warn!(task = %attempt.task, token = %attempt.token, "the lease was gone");
            }
            self.summary.count(ended);
            if done.has_started {
                self.shared
                    .observers
                    .iter()
                    .for_each(|observer| observer.on_acknowledged(attempt, ended));
            }
        }
    }

    // Shutdown

    fn enter_phase(&mut self, phase: ShutdownPhase) {
        if phase <= self.phase {
            return;
        }
        self.phase = phase;
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared
            .metrics_guard
            .iter()
            .for_each(|begun| begun.set_accepting(false, BackpressureReason::Stopping));
        let grace = match phase {
            ShutdownPhase::Stopping => {
                self.shared.in_flight.abort_all();
                Some(self.shared.config.release_grace)
            }
            _ => self.shared.config.shutdown_grace,
        };
        self.phase_ends_at = grace.map(|grace| time::now() + grace);
        tracing::info!(?phase, running = self.in_flight, "the worker shuts down");
    }

    fn on_phase_timeout(&mut self) {
        if self.phase == ShutdownPhase::Draining {
            return self.enter_phase(ShutdownPhase::Stopping);
        }
        tracing::error!(
            running = self.in_flight,
            unreported = self.completions.len(),
            "the worker ends; what is left comes back when its leases run out"
        );
        self.in_flight = 0;
        self.completions.clear();
        self.requests.clear();
    }

    fn is_shut_down(&self) -> bool {
        self.phase != ShutdownPhase::Running
            && self.in_flight == 0
            && self.completions.is_empty()
            && self.requests.is_empty()
    }
}

/// What other workers share comes back, however the pump ends.
impl Drop for Dispatcher {
    fn drop(&mut self) {
        let held = self.shared.config.concurrency - self.free;
        self.shared.worker_pool.release(held - self.reserved);
        self.shared.worker_pool.settle_reservation(self.reserved, 0);
    }
}

/// The limits whose slots these give back.
fn limits_to_release(completions: &[PendingCompletion]) -> impl Iterator<Item = LimitId> {
    completions.iter().flat_map(|done| &done.running.attempt.slots).map(|slot| slot.limit)
}

/// For how long all of them were ready, by the store's clock. One that was for longer is no backlog.
fn shortest_time_ready(claimed: &[Attempt], lease: Duration) -> Duration {
    let waited = |one: &Attempt| one.expires_at - time::millis(lease) - one.ready_at;
    let shortest = claimed.iter().map(waited).min().unwrap_or_default();
    Duration::from_millis(u64::try_from(shortest).unwrap_or_default())
}

fn attempt_key(completion: &PendingCompletion) -> (TaskId, Token) {
    (completion.running.attempt.task, completion.running.attempt.token)
}

async fn sleep_until_if_set(deadline: Option<Instant>) {
    if let Some(at) = deadline {
        time::sleep_until(at).await;
    }
}
