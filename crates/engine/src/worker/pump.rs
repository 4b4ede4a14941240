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

use super::board::Started;
use super::call::{Answer, call};
use super::outbox::Done;
use super::pace::{self, Pace};
use super::rooms::{Plan, Rooms, Turn};
use super::running::StopReason;
use super::wake::Wake;
use super::{Reason, Shared, Summary, attempt};
use crate::time::{self, Pauses};
use crate::{Ended, Phase, Shutdown};

/// A worker asks a store that fails at least this often, give or take a quarter: work goes on within
/// two seconds of the store's return, however long it was away.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Between two claims of its own where few permits are free: each takes one task, and batches wait until
/// more are free.
const FEW_INTERVAL: Duration = Duration::from_millis(10);

/// How soon a worker that is held back looks again whether it still is.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Between two tasks that a worker takes on beyond what memory or latency leave it: it does not stand still
/// where it has permits, unless its memory is all but full.
const BEYOND_INTERVAL: Duration = Duration::from_secs(1);

/// Times the pump lets handlers run before it tells how some have ended.
const GATHER_ROUNDS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Pump {
    shared: Arc<Shared>,
    rooms: Rooms,
    wake: Wake,
    calls: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// Permits that nobody holds: no handler and no claim under way.
    permits: u32,
    /// Permits of claims under way.
    asked: u32,
    /// Tasks that one claim may ask for now.
    room: u32,
    /// When to look again whether there is more room, where something holds the worker back.
    look_at: Option<Instant>,
    /// Since when few permits are free, or the last task was taken on with one of them.
    few_since: Option<Instant>,
    /// Since when the worker has permits that the brakes leave unused and no others, or took on the last
    /// task beyond.
    beyond_since: Option<Instant>,
    pace: Pace,
    /// Handlers that run.
    running: u32,
    /// Attempts whose handlers are gone and that are in no call.
    exits: Vec<Done>,
    /// The limits whose slots a call under way gives back.
    releasing: HashSet<LimitId>,
    /// The leases whose attempts a call under way ends.
    ending: HashSet<Token>,
    /// Calls under way that claim.
    asking: u32,
    /// Which claim is worth sending.
    hungry: [bool; 2],
    last_turn: Turn,
    phase: Phase,
    /// When a drain becomes a stop, and a stop an end.
    phase_ends_at: Option<Instant>,
    /// The store failed; no call before this.
    retry_at: Option<Instant>,
    pauses: Pauses,
    summary: Summary,
    failed: Option<Error>,
}

impl Pump {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let kinds = shared
            .handlers
            .iter()
            .map(|handler| (handler.options.kind.name.clone(), handler.options.max_running));
        let longest = (shared.options.lease / 6).min(PAUSE_MAX);
        Self {
            rooms: Rooms::new(kinds),
            wake: Wake::new(shared.store.clone(), shared.options.poll_interval),
            calls: FuturesUnordered::new(),
            permits: shared.options.concurrency,
            asked: 0,
            room: 0,
            look_at: None,
            few_since: None,
            beyond_since: None,
            pace: Pace::new(),
            running: 0,
            exits: Vec::new(),
            releasing: HashSet::new(),
            ending: HashSet::new(),
            asking: 0,
            hungry: [true; 2],
            last_turn: Turn::Narrow,
            phase: Phase::Running,
            phase_ends_at: None,
            retry_at: None,
            pauses: Pauses::new(Duration::from_millis(20).min(longest), longest),
            summary: Summary::default(),
            failed: None,
            shared,
        }
    }

    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> Result<Summary> {
        loop {
            self.collect();
            self.look();
            while self.may_call() && self.send().await {
                self.look();
            }
            if self.is_over() {
                return self.failed.take().map_or(Ok(self.summary), Err);
            }
            self.wait(shutdown).await;
        }
    }

    /// Waits for whatever comes first.
    async fn wait(&mut self, shutdown: &Shutdown) {
        let next = match self.phase {
            Phase::Running => Phase::Draining,
            _ => Phase::Stopping,
        };
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = shutdown.reached(next), if self.phase < Phase::Stopping => {
                self.enter_phase(shutdown.phase());
            }
            Some(answer) = self.calls.next() => self.learn(answer),
            () = shared.outbox.filled() => {}
            () = maybe_until(self.retry_at), if self.retry_at.is_some() => self.retry_at = None,
            () = maybe_until(self.look_at), if self.is_held_back() => {}
            () = shared.controller.freed(), if self.is_held_back() => {}
            () = maybe_until(self.phase_ends_at), if self.phase_ends_at.is_some() => {
                self.end_phase();
            }
            () = self.wake.time_to_ask(), if self.permits > 0 && self.phase == Phase::Running => {
                self.hungry = [true; 2];
                self.wake.asking();
            }
        }
    }

    // Room

    /// Looks how many tasks a claim may ask for now.
    fn look(&mut self) {
        let now = time::now();
        let batch = self.shared.options.claim_batch;
        let (brakes, readings) = self.shared.controller.judge();
        let wanted = self.permits.min(batch);
        self.shared.free.store(self.permits + self.asked, Ordering::Relaxed);
        self.room = brakes.claim(&readings, batch).min(wanted);
        // Permits that other workers of the process have are none.
        let may_go_beyond = wanted > 0 && !readings.is_full() && !brakes.memory_hard;
        if self.room > 0 || !may_go_beyond {
            self.beyond_since = None;
        } else if now >= *self.beyond_since.get_or_insert(now) + BEYOND_INTERVAL {
            self.room = 1;
        }
        self.look_at = (self.room < wanted).then(|| now + LOOK_INTERVAL);
        if self.shared.peers.load(Ordering::Relaxed) > 0 {
            let in_flight = self.shared.options.concurrency - self.permits;
            let room = self.pace.room(in_flight, self.exits.len() as u32, now);
            self.hold_back(room, now + pace::TICK);
        }
        if !brakes.permits || self.has_exits() || !self.is_hungry() {
            self.few_since = None;
        } else {
            let next = *self.few_since.get_or_insert(now) + FEW_INTERVAL;
            if now < next {
                self.hold_back(0, next);
            } else {
                self.hold_back(1, now + LOOK_INTERVAL);
            }
        }
    }

    fn hold_back(&mut self, room: u32, until: Instant) {
        if room < self.room {
            self.room = room;
            self.look_at = Some(self.look_at.map_or(until, |at| at.min(until)));
        }
    }

    fn is_held_back(&self) -> bool {
        self.look_at.is_some() && self.is_hungry()
    }

    fn is_hungry(&self) -> bool {
        self.phase == Phase::Running && self.hungry.contains(&true)
    }

    // Calls

    fn may_call(&self) -> bool {
        self.retry_at.is_none()
            && self.calls.len() < self.shared.options.calls
            && (self.has_exits() || self.may_ask() && self.plan().is_some())
    }

    /// Slots of a limit are given back by one call after another, and attempts of a lease are ended
    /// so: a second call might wait for the limit or the lease behind the first, and what gathers
    /// meanwhile shares its step.
    fn may_send(&self, done: &Done) -> bool {
        let Attempt { token, slots, .. } = &done.running.attempt;
        !self.ending.contains(token)
            && !slots.iter().any(|slot| self.releasing.contains(&slot.limit))
    }

    /// A claim goes along with exits that are held back, unless none is under way.
    fn may_ask(&self) -> bool {
        self.exits.is_empty() || self.asking == 0
    }

    fn has_exits(&self) -> bool {
        self.exits.iter().any(|done| self.may_send(done))
    }

    /// Sends what there is to tell and takes the permits for what it asks for. False where that is nothing:
    /// others of the process were quicker.
    async fn send(&mut self) -> bool {
        if !self.exits.is_empty() {
            self.gather().await;
            self.look();
        }
        let plan = self.plan().and_then(|plan| self.reserve(plan));
        let exits = self.next_exits();
        if plan.is_none() && exits.is_empty() {
            return false;
        }
        self.releasing.extend(limits_of(&exits));
        self.ending.extend(exits.iter().map(|done| done.running.attempt.token));
        self.calls.push(Box::pin(call(self.shared.clone(), exits, plan)));
        true
    }

    /// Takes the permits of a claim, or as many as other workers of the process have left.
    fn reserve(&mut self, mut plan: Plan) -> Option<Plan> {
        plan.tasks_max = self.shared.controller.ask(plan.tasks_max);
        if plan.tasks_max == 0 {
            self.hold_back(0, time::now() + LOOK_INTERVAL);
            return None;
        }
        self.wake.asking();
        self.pace.asks(plan.tasks_max, self.exits.len() as u32, time::now());
        self.permits -= plan.tasks_max;
        self.asked += plan.tasks_max;
        self.rooms.reserve(&plan);
        self.hungry[plan.turn as usize] = false;
        self.last_turn = plan.turn;
        self.asking += 1;
        self.few_since = None;
        self.beyond_since = self.beyond_since.map(|_| time::now());
        Some(plan)
    }

    /// A claim that asked for so many permits is answered, and so many of them have a handler.
    fn settle(&mut self, asked: u32, started: u32) {
        self.asked -= asked;
        self.permits += asked.saturating_sub(started);
        self.shared.controller.answered(asked, started);
    }

    /// Handlers that are done but not yet polled hand in their exits first, for a few rounds and as long
    /// as each brings more. This turns bursts of short tasks into batches.
    async fn gather(&mut self) {
        let enough = self.shared.options.claim_batch as usize;
        for _ in 0..GATHER_ROUNDS {
            let before = self.exits.len();
            tokio::task::yield_now().await;
            self.collect();
            if self.exits.len() == before || self.exits.len() >= enough {
                return;
            }
        }
    }

    /// The exits of one call, the oldest first: the store refuses more than so many at once.
    fn next_exits(&mut self) -> Vec<Done> {
        let exits = std::mem::take(&mut self.exits);
        let (mut next, mut rest): (Vec<_>, Vec<_>) =
            exits.into_iter().partition(|done| self.may_send(done));
        rest.extend(next.drain(next.len().min(BATCH_MAX)..));
        self.exits = rest;
        next
    }

    /// What to ask for now. The two sorts of claim take turns.
    fn plan(&self) -> Option<Plan> {
        if self.phase != Phase::Running {
            return None;
        }
        let turns = match self.last_turn {
            Turn::Wide => [Turn::Narrow, Turn::Wide],
            Turn::Narrow => [Turn::Wide, Turn::Narrow],
        };
        let hungry = turns.into_iter().filter(|turn| self.hungry[*turn as usize]);
        hungry.filter_map(|turn| self.rooms.plan(turn, self.room)).next()
    }

    fn learn(&mut self, answer: Answer) {
        let reserved = answer.plan.as_ref().map_or(0, |plan| plan.tasks_max);
        if let Some(plan) = &answer.plan {
            self.rooms.unreserve(plan);
            self.asking -= 1;
        }
        for limit in limits_of(&answer.exits) {
            self.releasing.remove(&limit);
        }
        for done in &answer.exits {
            self.ending.remove(&done.running.attempt.token);
        }
        match answer.result {
            Ok(finished) => {
                self.pauses.reset();
                let lost = finished.lost.iter().map(|lost| (lost.task, lost.token)).collect();
                self.close(&answer.exits, &lost);
                if let Some(plan) = &answer.plan {
                    let found = finished.claimed.len();
                    // A call that ended attempts was worth making, whatever it found.
                    self.wake.answered(found > 0 || !answer.exits.is_empty());
                    if found == plan.tasks_max as usize {
                        self.hungry[plan.turn as usize] = true;
                        let waited = waited(&finished.claimed, self.shared.options.lease);
                        self.pace.found_all(waited, time::now());
                    } else {
                        self.pace.found_few();
                    }
                }
                let started = self.start(finished.claimed, answer.sent_at);
                self.settle(reserved, started);
            }
            Err(error) => {
                self.settle(reserved, 0);
                self.fail(error, answer.exits, answer.plan);
            }
        }
    }

    /// A call failed. It may have happened, so its exits are told again: those that were taken
    /// come back as stale.
    fn fail(&mut self, error: Error, exits: Vec<Done>, plan: Option<Plan>) {
        self.exits.extend(exits.into_iter().map(|done| Done { resent: true, ..done }));
        if let Some(plan) = plan {
            self.hungry[plan.turn as usize] = true;
        }
        let pause = self.pauses.pause();
        self.retry_at = Some(time::now() + pause);
        if error.is_retryable() {
            tracing::warn!(%error, ?pause, "the store failed, the worker tries again");
        } else {
            tracing::error!(%error, "the store refuses the worker, it stops");
            self.failed.get_or_insert(error);
            self.enter_phase(Phase::Stopping);
        }
    }

    // Attempts

    /// Starts handlers, each with a permit of the claim's. Tells how many.
    fn start(&mut self, claimed: Vec<Attempt>, sent_at: Instant) -> u32 {
        if claimed.is_empty() {
            return 0;
        }
        let shared = self.shared.clone();
        let served = claimed.into_iter().filter_map(|attempt| {
            let handler = *shared.by_kind.get(&attempt.kind)?;
            Some((attempt, handler))
        });
        let now = time::now();
        if now - sent_at > shared.options.heartbeat_interval() {
            // The heartbeat reckons with leases that are younger than its interval.
            shared.old_lease.notify_one();
        }
        let all = shared.board.put_up(served.collect(), sent_at, shared.options.lease);
        let started = all.len() as u32;
        for Started { running, payload } in all {
            self.rooms.take(running.handler, 1);
            self.running += 1;
            if self.phase == Phase::Running && now < running.lease.give_up_at() {
                tokio::spawn(attempt::run(shared.clone(), running, payload));
            } else {
                // Claimed just before the drain began, or the answer was so long on its way
                // that the lease is all but over: it goes back before it has begun.
                let outcome = Outcome::Released;
                shared.outbox.put(Done { running, outcome, entered: false, resent: false });
            }
        }
        started
    }

    /// Takes over the attempts whose handlers are gone. Their permits are free from here on.
    fn collect(&mut self) {
        let before = self.exits.len();
        self.shared.outbox.collect(&mut self.exits);
        let new = &self.exits[before..];
        if new.is_empty() {
            return;
        }
        self.shared.board.take_down(new.iter().map(|done| &done.running));
        for done in new {
            self.rooms.give_back(done.running.handler, 1);
        }
        let ended = new.len() as u32;
        self.permits += ended;
        self.shared.controller.give_back(ended);
        self.running = self.running.saturating_sub(ended);
        self.hungry = [true; 2];
        self.drop_lost();
    }

    /// The store has said that these leases are gone: there is nothing to tell.
    fn drop_lost(&mut self) {
        let is_lost = |done: &Done| done.running.stop_reason() == Some(StopReason::Lost);
        if !self.exits.iter().any(is_lost) {
            return;
        }
        let (lost, exits) = std::mem::take(&mut self.exits).into_iter().partition(is_lost);
        self.exits = exits;
        let tokens = lost.iter().map(|done: &Done| key(done)).collect();
        self.close(&lost, &tokens);
    }

    /// The store knows about these exits; `lost` are those it did not take.
    fn close(&mut self, exits: &[Done], lost: &HashSet<(TaskId, Token)>) {
        self.shared.board.close(exits.iter().map(|done| &done.running));
        for done in exits {
            let is_lost = !lost.is_empty() && lost.contains(&key(done));
            if is_lost && done.resent {
                continue;
            }
            let attempt = &done.running.attempt;
            let ended = if is_lost { Ended::Lost } else { Ended::of(attempt, &done.outcome) };
            if is_lost {
                tracing::warn!(task = %attempt.task, token = %attempt.token, "the lease was gone");
            }
            self.summary.count(ended);
            if done.entered {
                self.shared.observers.iter().for_each(|observer| observer.exit(attempt, ended));
            }
        }
    }

    // Shutdown

    fn enter_phase(&mut self, phase: Phase) {
        if phase <= self.phase {
            return;
        }
        self.phase = phase;
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.begun.iter().for_each(|begun| begun.accepts(false, Reason::Stopping));
        let grace = match phase {
            Phase::Stopping => {
                self.shared.board.abort_all();
                Some(self.shared.options.release_grace)
            }
            _ => self.shared.options.shutdown_grace,
        };
        self.phase_ends_at = grace.map(|grace| time::now() + grace);
        tracing::info!(?phase, running = self.running, "the worker shuts down");
    }

    fn end_phase(&mut self) {
        if self.phase == Phase::Draining {
            return self.enter_phase(Phase::Stopping);
        }
        tracing::error!(
            running = self.running,
            untold = self.exits.len(),
            "the worker ends; what is left comes back when its leases run out"
        );
        self.running = 0;
        self.exits.clear();
        self.calls.clear();
    }

    fn is_over(&self) -> bool {
        self.phase != Phase::Running
            && self.running == 0
            && self.exits.is_empty()
            && self.calls.is_empty()
    }
}

/// What other workers share comes back, however the pump ends.
impl Drop for Pump {
    fn drop(&mut self) {
        let held = self.shared.options.concurrency - self.permits;
        self.shared.controller.give_back(held - self.asked);
        self.shared.controller.answered(self.asked, 0);
    }
}

/// The limits whose slots these give back.
fn limits_of(exits: &[Done]) -> impl Iterator<Item = LimitId> {
    exits.iter().flat_map(|done| &done.running.attempt.slots).map(|slot| slot.limit)
}

/// For how long all of them were ready, by the store's clock. One that was for longer is no backlog.
fn waited(claimed: &[Attempt], lease: Duration) -> Duration {
    let waited = |one: &Attempt| one.expires_at - time::millis(lease) - one.ready_at;
    let shortest = claimed.iter().map(waited).min().unwrap_or_default();
    Duration::from_millis(u64::try_from(shortest).unwrap_or_default())
}

fn key(done: &Done) -> (TaskId, Token) {
    (done.running.attempt.task, done.running.attempt.token)
}

async fn maybe_until(at: Option<Instant>) {
    if let Some(at) = at {
        time::sleep_until(at).await;
    }
}
