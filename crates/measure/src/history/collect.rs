//! Gathers records into attempts, with names replaced by small numbers: a history has millions
//! of records and few names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use tidegate_core::LimitScope;

use super::violation::{Violation, Violations};
use super::{
    CompletionRecord, HandlerEndRecord, HeldSlots, LimitRecord, Outcome, Process, Record,
    SignalRecord, StartRecord,
};

/// Everything a set of history files says.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) records: u64,
    pub(super) attempts: Vec<Attempt>,
    pub(super) processes: Vec<ProcessHistory>,
    pub(super) limits: Names,
    pub(super) workflows: Names,
    pub(super) limits_seen: Vec<LimitRecord>,
    pub(super) violations: Violations,
    holds: Vec<AppliedLimit>,
    process_ids: HashMap<Process, usize>,
    running: HashMap<(i64, i64), usize>,
    signals: Vec<(SignalKind, SignalRecord)>,
}

/// One attempt, as far as its own process wrote it down.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) task: i64,
    pub(super) process: usize,
    pub(super) workflow: Option<usize>,
    pub(super) enter_ns: u64,
    pub(super) leave_ns: Option<u64>,
    pub(super) outcome: Option<Outcome>,
    exited: bool,
    holds: Range<usize>,
}

/// One limit that applies to an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct AppliedLimit {
    pub(super) limit: usize,
    /// Slots the task takes by what it is: these count, whatever the store says.
    pub(super) needed: u32,
    /// Slots the store gave it.
    pub(super) given: u32,
}

/// The life of one process.
#[derive(Debug)]
pub(super) struct ProcessHistory {
    pid: u32,
    first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) kill_ns: Option<u64>,
    /// In the order of time.
    pub(super) stops_ns: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalKind {
    Kill,
    Stop,
}

/// Names and their numbers.
#[derive(Debug, Default)]
pub(super) struct Names {
    numbers: HashMap<String, usize>,
    names: Vec<String>,
}

impl Names {
    pub(super) fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.known(name) {
            return number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    pub(super) fn known(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    pub(super) fn all(&self) -> &[String] {
        &self.names
    }
}

impl History {
    pub(super) fn add_record(&mut self, record: Record) {
        self.records += 1;
        match record {
            Record::Enter(enter) => self.enter(enter),
            Record::Leave(leave) => self.leave(leave),
            Record::Exit(exit) => self.exit(exit),
            Record::Claim(claim) => _ = self.process(claim.process, claim.t_ns),
            Record::Limit(seen) => self.limit(seen),
            Record::Kill(signal) => self.signals.push((SignalKind::Kill, signal)),
            Record::Stop(signal) => self.signals.push((SignalKind::Stop, signal)),
            // Whatever a paused process does next it writes itself.
            Record::Cont(_) => {}
        }
    }

    /// To be called when all files are read: a signal may stand in a file read before the one of
    /// the process it was sent to.
    pub(super) fn finish(&mut self) {
        self.signals.sort_by_key(|(_, signal)| signal.t_ns);
        for (sent, signal) in std::mem::take(&mut self.signals) {
            if let Some(process) = self.process_of_signal(&signal) {
                self.processes[process].signal(sent, signal.t_ns);
            }
        }
    }

    /// The limits that apply to an attempt or of which it holds slots.
    pub(super) fn limits_of(&self, attempt: &Attempt) -> &[AppliedLimit] {
        &self.holds[attempt.holds.clone()]
    }

    fn enter(&mut self, enter: StartRecord) {
        let holds = self.collect_limits(&enter);
        let process = self.process(enter.process, enter.t_ns);
        let workflow = enter.workflow.as_deref().map(|name| self.workflows.number(name));
        if self.running.insert((enter.task, enter.token), self.attempts.len()).is_some() {
            let (task, token, t_ns) = (enter.task, enter.token, enter.t_ns);
            self.violations.add(Violation::TokenReused { task, token, t_ns });
        }
        self.attempts.push(Attempt {
            task: enter.task,
            process,
            workflow,
            enter_ns: enter.t_ns,
            leave_ns: None,
            outcome: None,
            exited: false,
            holds,
        });
    }

    fn leave(&mut self, leave: HandlerEndRecord) {
        let process = self.process(leave.process, leave.t_ns);
        match self.attempt(process, leave.task, leave.token) {
            Some(attempt) if attempt.leave_ns.is_none() => attempt.leave_ns = Some(leave.t_ns),
            _ => self.report_stray_end(leave.task, leave.token, leave.t_ns),
        }
    }

    fn exit(&mut self, exit: CompletionRecord) {
        let process = self.process(exit.process, exit.t_ns);
        match self.attempt(process, exit.task, exit.token) {
            Some(attempt) if !attempt.exited => {
                attempt.exited = true;
                attempt.outcome = Some(exit.outcome);
                attempt.leave_ns.get_or_insert(exit.t_ns);
            }
            _ => self.report_stray_end(exit.task, exit.token, exit.t_ns),
        }
    }

    fn limit(&mut self, seen: LimitRecord) {
        self.process(seen.process.clone(), seen.t_ns);
        self.limits.number(&seen.name);
        self.limits_seen.push(seen);
    }

    fn attempt(&mut self, process: usize, task: i64, token: i64) -> Option<&mut Attempt> {
        let number = *self.running.get(&(task, token))?;
        Some(&mut self.attempts[number]).filter(|attempt| attempt.process == process)
    }

    fn report_stray_end(&mut self, task: i64, token: i64, t_ns: u64) {
        self.violations.add(Violation::StrayEnd { task, token, t_ns });
    }

    /// What the task itself says comes first. The slots are only compared with it: a task that
    /// ran past the gate holds none, and must be seen all the same.
    fn collect_limits(&mut self, enter: &StartRecord) -> Range<usize> {
        let first = self.holds.len();
        for (name, needed) in required_limits(enter) {
            let limit = self.limits.number(&name);
            self.holds.push(AppliedLimit { limit, needed, given: 0 });
        }
        for HeldSlots { name, weight } in &enter.limits {
            let limit = self.limits.number(name);
            match self.holds[first..].iter_mut().find(|held| held.limit == limit) {
                Some(held) => held.given += weight,
                None => self.holds.push(AppliedLimit { limit, needed: 0, given: *weight }),
            }
        }
        first..self.holds.len()
    }

    fn process(&mut self, process: Process, t_ns: u64) -> usize {
        let pid = process.pid;
        let number = match self.process_ids.entry(process) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.processes.push(ProcessHistory {
                    pid,
                    first_ns: t_ns,
                    last_ns: t_ns,
                    kill_ns: None,
                    stops_ns: Vec::new(),
                });
                *new.insert(self.processes.len() - 1)
            }
        };
        let life = &mut self.processes[number];
        life.first_ns = life.first_ns.min(t_ns);
        life.last_ns = life.last_ns.max(t_ns);
        number
    }

    fn process_of_signal(&self, signal: &SignalRecord) -> Option<usize> {
        if !signal.process.start.is_empty() {
            return self.process_ids.get(&signal.process).copied();
        }
        let begun =
            |life: &ProcessHistory| life.pid == signal.process.pid && life.first_ns <= signal.t_ns;
        (0..self.processes.len())
            .filter(|number| begun(&self.processes[*number]))
            .max_by_key(|number| self.processes[*number].first_ns)
    }
}

/// The limits that apply to a task, where they exist, and the slots it takes of each.
fn required_limits(enter: &StartRecord) -> impl Iterator<Item = (String, u32)> {
    let once = |scope: LimitScope, of: Option<&str>| of.map(|of| (scope.limit_name(of), 1));
    let group = enter.group.as_deref().unwrap_or(&enter.kind);
    let group = (LimitScope::Group.limit_name(group), enter.weight);
    let workflow = once(LimitScope::Workflow, enter.workflow.as_deref());
    workflow.into_iter().chain(once(LimitScope::Job, enter.job.as_deref())).chain([group])
}

impl ProcessHistory {
    fn signal(&mut self, sent: SignalKind, t_ns: u64) {
        match sent {
            SignalKind::Kill => _ = self.kill_ns.get_or_insert(t_ns),
            SignalKind::Stop => self.stops_ns.push(t_ns),
        }
    }
}
