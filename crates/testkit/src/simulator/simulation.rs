//! One seed: an event loop over the store, the processes, and the network between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::bounds::JOB_WINDOW;
use tidegate_core::check::{Violation, check_at_rest, check_within};
use tidegate_core::inspect::Snapshot;
use tidegate_core::{Claim, Kind, Millis, Pause};
use tidegate_store::memory::State;

use super::auditor::{Auditor, Verdict};
use super::coverage::{Coverage, Fault};
use super::event::{Event, Scheduled};
use super::evidence::{self, Ceilings};
use super::message::{Answer, Request, Verb};
use super::process::{Context, Process, Step};
use super::rng::Rng;
use super::trace::Trace;
use super::world::{DAY_MS, World};
use super::{Options, Report};

/// The first moment of every run; some day in 2026.
const START_MS: Millis = 1_780_000_000_000;

pub(super) struct Simulation {
    pub(super) rng: Rng,
    pub(super) now: Millis,
    /// How far the store's clock is ahead of all others, and when it may jump again.
    pub(super) ahead_ms: i64,
    pub(super) jumps_at: Millis,
    pub(super) world: World,
    pub(super) processes: Vec<Process>,
    pub(super) calm: bool,
    pub(super) coverage: Coverage,
    pub(super) trace: Trace,
    pub(super) starts: u64,
    pub(super) skews: bool,
    events: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    state: State,
    pub(super) snapshot: Snapshot,
    auditor: Auditor,
    ceilings: Ceilings,
    report: Report,
}

impl Simulation {
    pub(super) fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed);
        let world = World::new(&mut rng);
        let processes: Vec<Process> =
            (0..world.processes).map(|index| Process::new(index, 0, &world, &mut rng)).collect();
        let mut state = State::default();
        state.gate_budget = world.gate_budget;
        state.job_window = world.job_window;
        let mut simulation = Self {
            rng,
            now: START_MS,
            ahead_ms: 0,
            jumps_at: START_MS,
            world,
            processes,
            calm: false,
            coverage: Coverage::default(),
            trace: Trace::new(options.is_text),
            starts: 0,
            skews: options.has_skews,
            events: BinaryHeap::new(),
            sequence: 0,
            state,
            snapshot: Snapshot::default(),
            auditor: Auditor::default(),
            ceilings: Ceilings::default(),
            report: Report::default(),
        };
        for process in 0..simulation.processes.len() {
            simulation.after(process as i64, Event::Turn { process, start: 0 });
        }
        simulation.after(50, Event::Nemesis);
        simulation
    }

    /// Runs until so many transitions are committed, heals every fault, and comes to rest.
    pub(super) fn run(&mut self, transitions: u64) -> Verdict {
        let verdict = self.run_steps(transitions);
        if verdict.is_err() {
            self.trace.state(&self.snapshot);
        }
        verdict
    }

    fn run_steps(&mut self, transitions: u64) -> Verdict {
        while self.report.transitions < transitions {
            self.step()?;
        }
        self.come_to_rest()
    }

    pub(super) fn finish(mut self) -> (Report, String) {
        self.report.coverage = self.coverage;
        self.report.quarantined = self.auditor.books.quarantined;
        self.report.released = self.auditor.books.released;
        self.report.ended = self.auditor.books.ended;
        let (hash, text) = self.trace.finish();
        self.report.trace_hash = hash;
        (self.report, text)
    }

    pub(super) fn after(&mut self, delay_ms: i64, event: Event) {
        self.sequence += 1;
        let at = (self.now + delay_ms, self.sequence);
        self.events.push(Reverse(Scheduled { at, event }));
    }

    fn step(&mut self) -> Verdict {
        let Some(Reverse(Scheduled { at, event })) = self.events.pop() else {
            let found = "the simulation ran out of events".to_owned();
            return Err(Violation { rule: "something always happens", found });
        };
        // A night may have passed since the event was made.
        self.now = self.now.max(at.0);
        match event {
            Event::Turn { process, start } => self.turn(process, start),
            Event::Request { process, start, call, request, reply_lost } => {
                self.arrive(process, start, call, &request, reply_lost)
            }
            Event::Reply { process, start, call, answer } => {
                self.reply(process, start, call, answer)
            }
            Event::Nemesis => {
                self.nemesis();
                Ok(())
            }
        }
    }

    fn turn(&mut self, process: usize, start: u64) -> Verdict {
        let of = &self.processes[process];
        if of.start != start {
            return Ok(());
        }
        let resumes_at = of.paused_until.max(of.down_until);
        if resumes_at > self.now {
            self.after(resumes_at - self.now, Event::Turn { process, start });
            return Ok(());
        }
        let step = self.with(process, |of, context| of.turn(context));
        let next = self.rng.between(5, 30);
        self.after(next, Event::Turn { process, start });
        self.follow(process, step)
    }

    fn reply(&mut self, process: usize, start: u64, call: u64, answer: Answer) -> Verdict {
        let of = &self.processes[process];
        if of.start != start {
            return Ok(());
        }
        if of.is_paused(self.now) {
            let delay = of.paused_until - self.now;
            self.after(delay, Event::Reply { process, start, call, answer });
            return Ok(());
        }
        let step = self.with(process, |of, context| of.answer(call, answer, context));
        self.follow(process, step)
    }

    fn with(
        &mut self,
        process: usize,
        act: impl FnOnce(&mut Process, &mut Context<'_>) -> Step,
    ) -> Step {
        let mut context = Context {
            now: self.now,
            rng: &mut self.rng,
            world: &self.world,
            snapshot: &self.snapshot,
            calm: self.calm,
        };
        act(&mut self.processes[process], &mut context)
    }

    fn follow(&mut self, process: usize, step: Step) -> Verdict {
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
        self.now + self.ahead_ms
    }

    fn judge_running(&self) -> Verdict {
        let up = self.processes.iter().filter(|process| !process.is_paused(self.now));
        let running = up
            .flat_map(|process| process.handlers.iter())
            .filter(|(_, handler)| handler.is_running(self.now))
            .map(|(key, _)| *key);
        evidence::judge_running(running, &self.auditor.books, &self.ceilings, self.store_now())
    }

    /// A request is at the store: it commits, and is judged.
    fn arrive(
        &mut self,
        process: usize,
        start: u64,
        call: u64,
        request: &Request,
        reply_lost: bool,
    ) -> Verdict {
        if !self.note_arrival(process, start, request.verb()) {
            return Ok(());
        }
        let answer = self.commit(process, request)?;
        if reply_lost {
            self.coverage.note(request.verb(), Fault::ReplyLost);
            return Ok(());
        }
        if self.processes[process].start == start {
            let delay = self.rng.between(1, 4);
            self.after(delay, Event::Reply { process, start, call, answer });
        }
        Ok(())
    }

    fn commit(&mut self, process: usize, request: &Request) -> Result<Answer, Violation> {
        let now = self.store_now();
        self.state.now = now;
        let answer = request.execute(&mut self.state);
        let after = self.state.snapshot();
        self.trace.commit(now, process, request, &answer, &after);
        self.report.commits += 1;
        self.auditor.observe(now, request, &answer)?;
        if evidence::differ(&self.snapshot, &after) {
            self.report.transitions += 1;
            for class in evidence::classes(&after) {
                self.report.waited[class as usize] += 1;
            }
            let before = std::mem::replace(&mut self.snapshot, after);
            evidence::judge_changed(request, &answer)?;
            let job_window = self.world.job_window.unwrap_or(JOB_WINDOW);
            check_within(&self.snapshot, job_window).into_iter().next().map_or(Ok(()), Err)?;
            evidence::judge(&before, &self.snapshot, &self.auditor.books, &mut self.ceilings)?;
            if matches!(request.verb(), Verb::Reap | Verb::Finish | Verb::Extend) {
                self.judge_running()?;
            }
            self.wake_somebody();
        } else {
            self.snapshot.now = now;
            evidence::judge_unchanged(request, &answer)?;
        }
        // A short step of the gate may leave work behind; a full one has no excuse.
        let is_short = self.world.gate_budget.is_some();
        if let Some((claim, given)) = left_hungry(request, &answer).filter(|_| !is_short) {
            evidence::judge_idle(claim, given, &self.snapshot, &self.auditor.books)?;
        }
        Ok(answer)
    }

    /// A hint to one process, which may be the wrong one or come to nothing.
    fn wake_somebody(&mut self) {
        if self.world.wakes {
            let process = self.rng.below(self.processes.len() as u64) as usize;
            self.processes[process].wake();
        }
    }

    /// Heals every fault and lets the workers work everything off. Of the keeper's passes
    /// only the reaper runs: no slot may need a repair to be found again.
    fn come_to_rest(&mut self) -> Verdict {
        self.calm = true;
        self.heal();
        // Kinds that are claimed in a part of the day only are open again after half of it.
        let now = self.store_now();
        let closed = |kind: &Kind| kind.window.is_some_and(|window| !window.is_open(now));
        if self.world.kinds.iter().any(closed) {
            self.now += DAY_MS / 2;
        }
        let bound = self.report.commits + 20_000;
        while !self.snapshot.tasks.is_empty() {
            self.relieve()?;
            self.step()?;
            if self.report.commits > bound {
                let found = format!("left are {:?}", self.snapshot.tasks);
                return Err(Violation { rule: "in the end everything finishes", found });
            }
        }
        check_at_rest(&self.snapshot).into_iter().next().map_or(Ok(()), Err)
    }

    /// The operator lifts limits under which a task could never run.
    fn relieve(&mut self) -> Verdict {
        for name in evidence::hopeless(&self.snapshot) {
            let request = super::world::relief(&name, &mut self.rng);
            self.commit(0, &request)?;
        }
        let halted = self.snapshot.limits.iter().filter(|limit| limit.halt.is_some());
        for name in halted.map(|limit| limit.name.clone()).collect::<Vec<_>>() {
            let what = super::world::pausable(&name);
            self.commit(0, &Request::Pause(Pause { what, paused: false }))?;
        }
        Ok(())
    }
}

/// The claim of a worker that was given less than it asked for, and how much that was.
fn left_hungry<'a>(request: &'a Request, answer: &Answer) -> Option<(&'a Claim, usize)> {
    let (claim, given) = match (request, answer) {
        (Request::Claim(claim), Answer::Claim(Ok(attempts))) => (claim, attempts.len()),
        (Request::Finish(finish), Answer::Finish(Ok(finished))) => {
            (finish.claim.as_ref()?, finished.claimed.len())
        }
        _ => return None,
    };
    (given < claim.tasks_max as usize).then_some((claim, given))
}
