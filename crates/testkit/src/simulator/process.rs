//! A simulated process: a worker that also submits, cancels, operates and keeps. It knows
//! what it was told and nothing else, and every verb it calls may or may not have happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::fault_injection::{InjectedBug, is_injected};
use tidegate_core::reader::Snapshot;
use tidegate_core::{
    Attempt, Claim, Completion, Finish, Heartbeat, Millis, Progress, TaskId, Token, WorkerId,
};

use super::handler::{Handler, HandlerEnd};
use super::message::{Reply, Request};
use super::rng::Rng;
use super::scenario::Scenario;

/// How wrong the clocks may be by which processes measure durations, in a thousand.
const DRIFT_MAX: i64 = 50;

/// What a process sees of the rest of the world in one step.
pub(super) struct Context<'a> {
    pub(super) now: Millis,
    pub(super) rng: &'a mut Rng,
    pub(super) world: &'a Scenario,
    /// The store's last state; used to choose whom to cancel and when to submit.
    pub(super) snapshot: &'a Snapshot,
    /// At the end only claim, extend, finish and reap are left.
    pub(super) is_healing: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Process {
    /// New for every start, so that a reply to the dead is not taken for one's own.
    pub(super) start: u64,
    id: WorkerId,
    registered: bool,
    pub(super) down_until: Millis,
    pub(super) paused_until: Millis,
    pub(super) cut_until: Millis,
    /// How wrong its wall clock is. It measures durations by another clock and sends no time,
    /// so nothing depends on it.
    pub(super) skew_ms: i64,
    /// How much faster the clock by which it measures durations runs, in a thousand.
    drift: i64,
    pub(super) handlers: BTreeMap<(Token, TaskId), Handler>,
    /// Ended attempts the store has not confirmed and that are not under way.
    completions: Vec<Completion>,
    pending: Vec<PendingCall>,
    queues: Arc<[Arc<str>]>,
    kinds: Arc<[Arc<str>]>,
    heartbeat_at: Millis,
    poll_at: Millis,
    next_call: u64,
}

/// A call without an answer yet.
#[derive(Debug, Clone)]
struct PendingCall {
    call: u64,
    sent_at: Millis,
    /// From then on the answer is not waited for, and ignored if it comes.
    until: Millis,
    kind: CallKind,
}

#[derive(Debug, Clone)]
enum CallKind {
    Register,
    Claim,
    Heartbeat(Vec<Token>),
    Finish(Finish),
    /// Sent again after a while if it carries what makes that safe, or sometimes anyway.
    Submit(Request),
    Other,
}

/// What a step of a process leads to.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) calls: Vec<(u64, Request)>,
    /// A handler took the process down.
    pub(super) died: bool,
    /// Handlers were started.
    pub(super) started: bool,
}

impl Process {
    pub(super) fn new(index: usize, start: u64, world: &Scenario, rng: &mut Rng) -> Self {
        let mut kinds: Vec<Arc<str>> = world.kinds.iter().map(|kind| kind.name.clone()).collect();
        // The first process serves everything, the others have a part.
        if index > 0 && kinds.len() > 1 && rng.chance(500) {
            kinds.remove(rng.below(kinds.len() as u64) as usize);
        }
        Self {
            start,
            id: WorkerId(format!("p{index}.{start}").into()),
            registered: false,
            down_until: 0,
            paused_until: 0,
            cut_until: 0,
            skew_ms: 0,
            drift: rng.between(-DRIFT_MAX, DRIFT_MAX),
            handlers: BTreeMap::new(),
            completions: Vec::new(),
            pending: Vec::new(),
            queues: world.queues.clone().into(),
            kinds: kinds.into(),
            heartbeat_at: 0,
            poll_at: 0,
            next_call: 0,
        }
    }

    pub(super) fn is_paused(&self, now: Millis) -> bool {
        now < self.paused_until
    }

    pub(super) fn is_cut(&self, now: Millis) -> bool {
        now < self.cut_until
    }

    /// A hint that there may be work.
    pub(super) fn wake(&mut self) {
        self.poll_at = 0;
    }

    /// One turn of the process's loop.
    pub(super) fn step(&mut self, context: &mut Context<'_>) -> Step {
        let mut step = Step::default();
        self.expire_calls(context, &mut step);
        if !self.registered {
            self.register(context, &mut step);
            return step;
        }
        // After a pause the handler's thread may be faster than the watch over the lease.
        if context.rng.chance(500) {
            self.stop_fenced(context.now);
        }
        step.died = self.collect_ended(context.now);
        self.stop_fenced(context.now);
        if step.died {
            return step;
        }
        self.finish(context, &mut step);
        self.heartbeat(context, &mut step);
        self.claim(context, &mut step);
        self.other_calls(context, &mut step);
        step
    }

    /// Takes an answer in. Ignored when it was given up.
    pub(super) fn handle_reply(
        &mut self,
        call: u64,
        answer: Reply,
        context: &mut Context<'_>,
    ) -> Step {
        let mut step = Step::default();
        let Some(at) = self.pending.iter().position(|waiting| waiting.call == call) else {
            return step;
        };
        if self.pending[at].until <= context.now {
            return step;
        }
        let waiting = self.pending.swap_remove(at);
        let fence_at = self.fence_at(waiting.sent_at, context.world);
        match (waiting.kind, answer) {
            (CallKind::Register, Reply::Register(Ok(_))) => self.registered = true,
            (_, Reply::Claim(Ok(attempts))) => {
                step.started = self.start_handlers(&attempts, fence_at, context);
            }
            (CallKind::Finish(_), Reply::Finish(Ok(finished))) => {
                step.started = self.start_handlers(&finished.claimed, fence_at, context);
            }
            (CallKind::Heartbeat(tokens), Reply::Heartbeat(Ok(extended))) => {
                self.extend_fences(&tokens, &extended.lost_leases, fence_at);
                for key in &extended.attempts_to_stop {
                    if let Some(handler) = self.handlers.get_mut(&(key.1, key.0)) {
                        handler.cancel(context.rng, context.now);
                    }
                }
            }
            _ => {}
        }
        step
    }

    /// When handlers stop unless their lease is renewed by a later call than this one: after
    /// three quarters of it by the process's own clock, which may be slow, and the store's may
    /// jump.
    fn fence_at(&self, sent_at: Millis, world: &Scenario) -> Millis {
        sent_at + world.lease_ms * 3 / 4 * 1000 / (1000 + self.drift)
    }

    fn extend_fences(&mut self, tokens: &[Token], lost: &[Token], fence_at: Millis) {
        self.handlers.retain(|(token, _), handler| {
            if tokens.contains(token) {
                handler.fence_at = handler.fence_at.max(fence_at);
            }
            !lost.contains(token)
        });
    }

    fn start_handlers(
        &mut self,
        attempts: &[Attempt],
        fence_at: Millis,
        context: &mut Context<'_>,
    ) -> bool {
        let (now, world) = (context.now, context.world);
        for attempt in attempts {
            let by_wall_clock = attempt.expires_at - self.skew_ms;
            let wrong = is_injected(InjectedBug::LeaseExpiryByWallClock);
            let fence_at = if wrong { by_wall_clock } else { fence_at };
            let handler =
                Handler::new(context.rng, world, attempt, now, fence_at, context.is_healing);
            self.handlers.insert((attempt.token, attempt.task), handler);
        }
        if !attempts.is_empty() {
            self.poll_at = 0;
        }
        !attempts.is_empty()
    }

    fn send_call(
        &mut self,
        step: &mut Step,
        context: &Context<'_>,
        what: CallKind,
        request: Request,
    ) {
        self.next_call += 1;
        let until = context.now + context.world.lease_ms / 2;
        let (call, sent_at) = (self.next_call, context.now);
        self.pending.push(PendingCall { call, sent_at, until, kind: what });
        step.calls.push((call, request));
    }

    fn has_pending(&self, is: impl Fn(&CallKind) -> bool) -> bool {
        self.pending.iter().any(|waiting| is(&waiting.kind))
    }

    /// Calls that took too long may have happened. Exits are sent again with their token, a
    /// submit with its keys. The lease of a claim is not known, so heartbeats do not list it.
    fn expire_calls(&mut self, context: &mut Context<'_>, step: &mut Step) {
        if self.pending.iter().all(|waiting| waiting.until > context.now) {
            return;
        }
        let all = std::mem::take(&mut self.pending);
        let (late, waiting) = all.into_iter().partition(|waiting| waiting.until <= context.now);
        self.pending = waiting;
        let late: Vec<PendingCall> = late;
        for waiting in late {
            match waiting.kind {
                CallKind::Finish(finish) => self.completions.extend(finish.completions),
                CallKind::Submit(request) if !context.is_healing && context.rng.chance(500) => {
                    self.send_call(step, context, CallKind::Submit(request.clone()), request);
                }
                _ => {}
            }
        }
    }

    fn register(&mut self, context: &mut Context<'_>, step: &mut Step) {
        if !self.has_pending(|what| matches!(what, CallKind::Register)) {
            let registration = context.world.registration(context.rng);
            self.send_call(step, context, CallKind::Register, Request::Register(registration));
        }
    }

    /// Handlers whose lease could not be renewed in time are stopped; nothing is reported.
    fn stop_fenced(&mut self, now: Millis) {
        self.handlers.retain(|_, handler| handler.fence_at > now);
    }

    fn collect_ended(&mut self, now: Millis) -> bool {
        let mut died = false;
        let exits = &mut self.completions;
        self.handlers.retain(|(token, task), handler| {
            if handler.ends_at > now {
                return true;
            }
            match &handler.end {
                HandlerEnd::Reports(outcome) => {
                    exits.push(Completion { task: *task, token: *token, outcome: outcome.clone() });
                }
                HandlerEnd::Aborts => died = true,
            }
            false
        });
        died
    }

    fn free_concurrency(&self, world: &Scenario) -> u32 {
        world.worker_concurrency.saturating_sub(self.handlers.len() as u32)
    }

    fn finish(&mut self, context: &mut Context<'_>, step: &mut Step) {
        if self.completions.is_empty() {
            return;
        }
        let claim = (context.rng.chance(500) && !self.is_claiming())
            .then(|| self.claim_request(context.world))
            .filter(|claim| claim.tasks_max > 0);
        let finish = Finish { completions: std::mem::take(&mut self.completions), claim };
        self.send_call(step, context, CallKind::Finish(finish.clone()), Request::Finish(finish));
    }

    fn is_claiming(&self) -> bool {
        self.has_pending(|what| match what {
            CallKind::Claim => true,
            CallKind::Finish(finish) => finish.claim.is_some(),
            _ => false,
        })
    }

    fn claim_request(&self, world: &Scenario) -> Claim {
        Claim {
            worker: self.id.clone(),
            queues: self.queues.clone(),
            kinds: self.kinds.clone(),
            tasks_max: self.free_concurrency(world),
            lease_ms: world.lease_ms,
            poll_interval_ms: 1000,
        }
    }

    fn heartbeat(&mut self, context: &mut Context<'_>, step: &mut Step) {
        // An idle process sends heartbeats too: it may have leases that it does not know.
        let is_due = context.now >= self.heartbeat_at;
        if !is_due || self.has_pending(|what| matches!(what, CallKind::Heartbeat(_))) {
            return;
        }
        self.heartbeat_at = context.now + context.world.lease_ms / 3;
        let mut tokens: Vec<Token> = self.handlers.keys().map(|(token, _)| *token).collect();
        tokens.dedup();
        let first = self.handlers.keys().next().filter(|_| context.rng.chance(100));
        let progress = Progress { percent: 50, message: String::new() };
        let request = Request::Heartbeat(Heartbeat {
            worker: self.id.clone(),
            tokens: tokens.clone(),
            lease_ms: context.world.lease_ms,
            progress: first.map(|(token, task)| (*task, *token, progress)).into_iter().collect(),
            run_times: vec![],
            report: None,
        });
        self.send_call(step, context, CallKind::Heartbeat(tokens), request);
    }

    fn claim(&mut self, context: &mut Context<'_>, step: &mut Step) {
        let free = self.free_concurrency(context.world);
        if free == 0 || context.now < self.poll_at || self.is_claiming() {
            return;
        }
        self.poll_at = context.now + context.rng.between(20, 100);
        let claim = self.claim_request(context.world);
        self.send_call(step, context, CallKind::Claim, Request::Claim(claim));
    }

    /// What any process may do besides working.
    fn other_calls(&mut self, context: &mut Context<'_>, step: &mut Step) {
        let room = context.world.tasks_max.saturating_sub(context.snapshot.tasks.len());
        let duty = context.rng.below(1000);
        let request = match duty {
            0..=59 => Request::Reap,
            _ if context.is_healing => return,
            60..=499 if room > 0 => {
                let submission = context.world.submission(context.rng, context.now, room);
                let request = Request::Submit(submission);
                self.send_call(step, context, CallKind::Submit(request.clone()), request);
                return;
            }
            500..=559 => Request::Cancel(cancel_targets(context)),
            560..=584 => Request::SetLimit(context.world.set_limit(context.rng)),
            585..=634 => Request::Admit,
            635..=654 => Request::Prune,
            661..=680 => Request::Pause(context.world.pause(context.rng)),
            681..=690 => Request::SetJob(context.world.set_job(context.rng)),
            655..=660 => Request::Register(context.world.registration(context.rng)),
            _ => return,
        };
        self.send_call(step, context, CallKind::Other, request);
    }
}

/// Whom to cancel: somebody unfinished, or an id that ended long ago or never was.
fn cancel_targets(context: &mut Context<'_>) -> Vec<TaskId> {
    let tasks = &context.snapshot.tasks;
    if tasks.is_empty() || context.rng.chance(100) {
        return vec![TaskId(context.rng.between(1, 1000))];
    }
    (0..context.rng.between(1, 2)).map(|_| context.rng.pick(tasks).id).collect()
}
