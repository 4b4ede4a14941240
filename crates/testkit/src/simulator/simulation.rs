//! One seed: an event loop over the store, the processes, and the network between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::bounds::JOB_WINDOW_SIZE;
use tidegate_core::invariants::{Violation, check_idle_store, check_with_job_window};
use tidegate_core::reader::Snapshot;
use tidegate_core::{Claim, Kind, Millis, SetPaused};
use tidegate_store::memory::WorkingState;

use super::coverage::{Coverage, Fault};
use super::event::{Event, Scheduled};
use super::message::{Reply, Request, Verb};
use super::process::{Context, Process, Step};
use super::response_checks::{CheckResult, Responses};
use super::rng::Rng;
use super::scenario::{DAY_MS, Scenario};
use super::state_checks::{self, HeldCeilings};
use super::trace::Trace;
use super::{SimulationOptions, SimulationReport};

/// The first moment of every run; some day in 2026.
const START_MS: Millis = 1_780_000_000_000;

pub(super) struct Simulation {
    pub(super) rng: Rng,
    pub(super) now: Millis,
    /// How far the store's clock is ahead of all others, and when it may jump again.
    pub(super) store_clock_ahead_ms: i64,
    pub(super) next_clock_jump_at: Millis,
    pub(super) world: Scenario,
    pub(super) processes: Vec<Process>,
    pub(super) is_healing: bool,
    pub(super) coverage: Coverage,
    pub(super) trace: Trace,
    pub(super) starts: u64,
    pub(super) has_skews: bool,
    events: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    state: WorkingState,
    pub(super) snapshot: Snapshot,
    responses: Responses,
    ceilings: HeldCeilings,
    report: SimulationReport,
}

impl Simulation {
    pub(super) fn new(seed: u64, options: &SimulationOptions) -> Self {
        let mut rng = Rng::new(seed);
        let world = Scenario::new(&mut rng);
        let processes: Vec<Process> =
            (0..world.processes).map(|index| Process::new(index, 0, &world, &mut rng)).collect();
        let mut state = WorkingState::default();
        state.gate_budget = world.admission_budget;
        state.job_window = world.job_window;
        let mut simulation = Self {
            rng,
            now: START_MS,
            store_clock_ahead_ms: 0,
            next_clock_jump_at: START_MS,
            world,
            processes,
            is_healing: false,
            coverage: Coverage::default(),
            trace: Trace::new(options.is_text),
            starts: 0,
            has_skews: options.has_skews,
            events: BinaryHeap::new(),
            sequence: 0,
            state,
            snapshot: Snapshot::default(),
            responses: Responses::default(),
            ceilings: HeldCeilings::default(),
            report: SimulationReport::default(),
        };
        for process in 0..simulation.processes.len() {
            simulation.schedule(process as i64, Event::ProcessStep { process, start: 0 });
        }
        simulation.schedule(50, Event::Nemesis);
        simulation
    }

    /// Runs until so many transitions are committed, heals every fault, and comes to rest.
    pub(super) fn run(&mut self, transitions: u64) -> CheckResult {
        let verdict = self.run_steps(transitions);
        if verdict.is_err() {
            self.trace.state(&self.snapshot);
        }
        verdict
    }

    fn run_steps(&mut self, transitions: u64) -> CheckResult {
        while self.report.transitions < transitions {
            self.step()?;
        }
        self.come_to_rest()
    }

    pub(super) fn finish(mut self) -> (SimulationReport, String) {
        self.report.coverage = self.coverage;
        self.report.quarantined = self.responses.model.quarantined;
        self.report.released = self.responses.model.released;
        self.report.finished = self.responses.model.finished;
        let (hash, text) = self.trace.finish();
        self.report.trace_hash = hash;
        (self.report, text)
    }

    pub(super) fn schedule(&mut self, delay_ms: i64, event: Event) {
        self.sequence += 1;
        let at = (self.now + delay_ms, self.sequence);
        self.events.push(Reverse(Scheduled { at, event }));
    }

    fn step(&mut self) -> CheckResult {
        let Some(Reverse(Scheduled { at, event })) = self.events.pop() else {
            let found = "the simulation ran out of events".to_owned();
            return Err(Violation { rule: "something always happens", details: found });
        };
        // A night may have passed since the event was made.
        self.now = self.now.max(at.0);
        match event {
            Event::ProcessStep { process, start } => self.run_process(process, start),
            Event::Request { process, start, call, request, reply_lost } => {
                self.deliver_request(process, start, call, &request, reply_lost)
            }
            Event::Reply { process, start, call, answer } => {
                self.deliver_reply(process, start, call, answer)
            }
            Event::Nemesis => {
                self.nemesis();
                Ok(())
            }
        }
    }

    fn run_process(&mut self, process: usize, start: u64) -> CheckResult {
        let of = &self.processes[process];
        if of.start != start {
            return Ok(());
        }
        let resumes_at = of.paused_until.max(of.down_until);
        if resumes_at > self.now {
            self.schedule(resumes_at - self.now, Event::ProcessStep { process, start });
            return Ok(());
        }
        let step = self.with_process(process, |of, context| of.step(context));
        let next = self.rng.between(5, 30);
        self.schedule(next, Event::ProcessStep { process, start });
        self.apply_step(process, step)
    }

    fn deliver_reply(
        &mut self,
        process: usize,
        start: u64,
        call: u64,
        answer: Reply,
    ) -> CheckResult {
        let of = &self.processes[process];
        if of.start != start {
            return Ok(());
        }
        if of.is_paused(self.now) {
            let delay = of.paused_until - self.now;
            self.schedule(delay, Event::Reply { process, start, call, answer });
            return Ok(());
        }
        let step = self.with_process(process, |of, context| of.handle_reply(call, answer, context));
        self.apply_step(process, step)
    }

    fn with_process(
        &mut self,
        process: usize,
        act: impl FnOnce(&mut Process, &mut Context<'_>) -> Step,
    ) -> Step {
        let mut context = Context {
            now: self.now,
            rng: &mut self.rng,
            world: &self.world,
            snapshot: &self.snapshot,
            is_healing: self.is_healing,
        };
        act(&mut self.processes[process], &mut context)
    }

    fn apply_step(&mut self, process: usize, step: Step) -> CheckResult {
        for (call, request) in step.calls {
            self.send(process, call, request);
        }
        if step.died {
            self.kill(process);
        }
        if step.started { self.judge_running() } else { Ok(()) }
    }

    /// What the store's clock shows.
    fn store_now(&self) -> Millis {
        self.now + self.store_clock_ahead_ms
    }

    fn judge_running(&self) -> CheckResult {
        let up = self.processes.iter().filter(|process| !process.is_paused(self.now));
        let running = up
            .flat_map(|process| process.handlers.iter())
            .filter(|(_, handler)| handler.is_running(self.now))
            .map(|(key, _)| *key);
        state_checks::check_running(
            running,
            &self.responses.model,
            &self.ceilings,
            self.store_now(),
        )
    }

    /// A request is at the store: it commits, and is judged.
    fn deliver_request(
        &mut self,
        process: usize,
        start: u64,
        call: u64,
        request: &Request,
        reply_lost: bool,
    ) -> CheckResult {
        if !self.record_delivery(process, start, request.verb()) {
            return Ok(());
        }
        let answer = self.commit(process, request)?;
        if reply_lost {
            self.coverage.record(request.verb(), Fault::ReplyLost);
            return Ok(());
        }
        if self.processes[process].start == start {
            let delay = self.rng.between(1, 4);
            self.schedule(delay, Event::Reply { process, start, call, answer });
        }
        Ok(())
    }

    fn commit(&mut self, process: usize, request: &Request) -> Result<Reply, Violation> {
        let now = self.store_now();
        self.state.now = now;
        let answer = request.execute(&mut self.state);
        let after = self.state.snapshot();
        self.trace.commit(now, process, request, &answer, &after);
        self.report.commits += 1;
        self.responses.observe(now, request, &answer)?;
        if state_checks::differ(&self.snapshot, &after) {
            self.report.transitions += 1;
            for class in state_checks::wait_reasons(&after) {
                self.report.wait_reasons[class as usize] += 1;
            }
            let before = std::mem::replace(&mut self.snapshot, after);
            state_checks::check_changed(request, &answer)?;
            let job_window = self.world.job_window.unwrap_or(JOB_WINDOW_SIZE);
            check_with_job_window(&self.snapshot, job_window)
                .into_iter()
                .next()
                .map_or(Ok(()), Err)?;
            state_checks::check_transition(
                &before,
                &self.snapshot,
                &self.responses.model,
                &mut self.ceilings,
            )?;
            if matches!(request.verb(), Verb::Reap | Verb::Finish | Verb::Heartbeat) {
                self.judge_running()?;
            }
            self.wake_random_process();
        } else {
            self.snapshot.now = now;
            state_checks::check_unchanged(request, &answer)?;
        }
        // A short step of the gate may leave work behind; a full one has no excuse.
        let is_short = self.world.admission_budget.is_some();
        if let Some((claim, given)) = unsatisfied_claim(request, &answer).filter(|_| !is_short) {
            state_checks::check_idle_claim(claim, given, &self.snapshot, &self.responses.model)?;
        }
        Ok(answer)
    }

    /// A hint to one process, which may be the wrong one or come to nothing.
    fn wake_random_process(&mut self) {
        if self.world.sends_wake_hints {
            let process = self.rng.below(self.processes.len() as u64) as usize;
            self.processes[process].wake();
        }
    }

    /// Heals every fault and lets the workers work everything off. Of the keeper's passes
    /// only the reaper runs: no slot may need a repair to be found again.
    fn come_to_rest(&mut self) -> CheckResult {
        self.is_healing = true;
        self.heal();
        // Kinds that are claimed in a part of the day only are open again after half of it.
        let now = self.store_now();
        let closed = |kind: &Kind| kind.day_window.is_some_and(|window| !window.is_open(now));
        if self.world.kinds.iter().any(closed) {
            self.now += DAY_MS / 2;
        }
        let bound = self.report.commits + 20_000;
        while !self.snapshot.tasks.is_empty() {
            self.lift_blocking_limits()?;
            self.step()?;
            if self.report.commits > bound {
                let found = format!("left are {:?}", self.snapshot.tasks);
                return Err(Violation { rule: "in the end everything finishes", details: found });
            }
        }
        check_idle_store(&self.snapshot).into_iter().next().map_or(Ok(()), Err)
    }

    /// The operator lifts limits under which a task could never run.
    fn lift_blocking_limits(&mut self) -> CheckResult {
        for name in state_checks::unsatisfiable_limits(&self.snapshot) {
            let request = super::scenario::relief_request(&name, &mut self.rng);
            self.commit(0, &request)?;
        }
        let halted = self.snapshot.limits.iter().filter(|limit| limit.paused_by.is_some());
        for name in halted.map(|limit| limit.name.clone()).collect::<Vec<_>>() {
            let what = super::scenario::pausable_of_limit(&name);
            self.commit(0, &Request::Pause(SetPaused { target: what, paused: false }))?;
        }
        Ok(())
    }
}

/// The claim of a worker that was given less than it asked for, and how much that was.
fn unsatisfied_claim<'a>(request: &'a Request, answer: &Reply) -> Option<(&'a Claim, usize)> {
    let (claim, given) = match (request, answer) {
        (Request::Claim(claim), Reply::Claim(Ok(attempts))) => (claim, attempts.len()),
        (Request::Finish(finish), Reply::Finish(Ok(finished))) => {
            (finish.claim.as_ref()?, finished.claimed.len())
        }
        _ => return None,
    };
    (given < claim.tasks_max as usize).then_some((claim, given))
}
