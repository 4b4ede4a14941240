//! The network between the processes and the store, and the nemesis.

use super::coverage::Fault;
use super::event::Event;
use super::message::{Request, Verb};
use super::process::Process;
use super::scenario::DAY_MS;
use super::simulation::Simulation;

impl Simulation {
    /// Hands a request to the network.
    pub(super) fn send(&mut self, process: usize, call: u64, request: Request) {
        let verb = request.verb();
        let (of, now) = (&self.processes[process], self.now);
        let (start, is_cut) = (of.start, of.is_cut(now));
        if of.skew_ms != 0 {
            self.coverage.record(verb, Fault::Skewed);
        }
        if self.fault_occurs(self.world.rates.duplicated) {
            self.coverage.record(verb, Fault::Duplicated);
            let delay = self.rng.between(5, 4 * self.world.lease_ms);
            let request = request.clone();
            let copy = Event::Request { process, start, call, request, reply_lost: true };
            self.schedule(delay, copy);
        }
        if is_cut {
            return self.coverage.record(verb, Fault::Partitioned);
        }
        if self.fault_occurs(self.world.rates.lost) {
            return self.coverage.record(verb, Fault::RequestLost);
        }
        let mut delay = self.rng.between(1, 4);
        if self.fault_occurs(self.world.rates.delayed) {
            self.coverage.record(verb, Fault::Delayed);
            delay = self.rng.between(5, 2 * self.world.lease_ms);
        }
        let reply_lost = self.fault_occurs(self.world.rates.reply_lost);
        self.schedule(delay, Event::Request { process, start, call, request, reply_lost });
    }

    fn fault_occurs(&mut self, per_mille: u32) -> bool {
        !self.is_healing && self.rng.chance(per_mille)
    }

    /// Notes in which state a request finds its sender. False where it does not get through.
    pub(super) fn record_delivery(&mut self, process: usize, start: u64, verb: Verb) -> bool {
        let of = &self.processes[process];
        if of.start != start {
            self.coverage.record(verb, Fault::Killed);
        } else if of.is_cut(self.now) {
            self.coverage.record(verb, Fault::Partitioned);
            return false;
        } else if of.is_paused(self.now) {
            self.coverage.record(verb, Fault::Paused);
        }
        true
    }

    /// One round of bad luck.
    pub(super) fn nemesis(&mut self) {
        if self.is_healing {
            return;
        }
        self.schedule(50, Event::Nemesis);
        let process = self.rng.below(self.processes.len() as u64) as usize;
        let lease_ms = self.world.lease_ms;
        let rates = self.world.rates.clone();
        if self.rng.chance(rates.kill) {
            self.kill(process);
        }
        if self.rng.chance(rates.pause) {
            let until = self.now + self.rng.between(10, 3 * lease_ms);
            self.trace.note(|| format!("p{process} is stopped until {until}"));
            self.processes[process].paused_until = until;
        }
        if self.rng.chance(rates.partition) {
            let until = self.now + self.rng.between(10, 3 * lease_ms);
            self.trace.note(|| format!("p{process} is cut off until {until}"));
            self.processes[process].cut_until = until;
        }
        if self.rng.chance(rates.skew) {
            let skew_ms = self.rng.between(-DAY_MS, DAY_MS);
            self.processes[process].skew_ms = if self.has_skews { skew_ms } else { 0 };
        }
        if self.rng.chance(rates.skew) && self.now >= self.next_clock_jump_at {
            self.advance_store_clock();
        }
        if self.rng.chance(rates.jump) {
            self.pass_hours();
        }
    }

    /// The store's clock is set forward, as a server's may be: by less than what workers leave
    /// of a lease, and not twice within one.
    fn advance_store_clock(&mut self) {
        let by = self.rng.between(1, self.world.lease_ms / 10);
        self.store_clock_ahead_ms += by;
        self.next_clock_jump_at = self.now + self.world.lease_ms;
        self.trace.note(|| format!("the store's clock jumps by {by}"));
    }

    /// The process is gone with all it knew. What it sent stays in flight.
    pub(super) fn kill(&mut self, process: usize) {
        self.starts += 1;
        let start = self.starts;
        let mut next = Process::new(process, start, &self.world, &mut self.rng);
        let down = if self.is_healing { 1 } else { self.rng.between(1, 2 * self.world.lease_ms) };
        next.down_until = self.now + down;
        self.trace.note(|| format!("p{process} is killed and starts again as {start}"));
        self.processes[process] = next;
        self.schedule(down, Event::ProcessStep { process, start });
    }

    /// Hours go by in which nothing happens, on every clock. A handler that runs is stopped by
    /// its own watch over the lease before that.
    fn pass_hours(&mut self) {
        self.now += self.rng.between(1, 30) * DAY_MS / 24;
        let now = self.now;
        self.trace.note(|| format!("hours pass until {now}"));
        for process in self.processes.iter_mut().filter(|process| !process.is_paused(now)) {
            process.handlers.clear();
        }
    }

    /// From now on nothing goes wrong any more.
    pub(super) fn heal(&mut self) {
        self.trace.note(|| "all faults are healed".to_owned());
        for process in &mut self.processes {
            process.paused_until = process.paused_until.min(self.now);
            process.cut_until = 0;
            process.skew_ms = 0;
        }
    }
}
