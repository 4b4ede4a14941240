//! Limits: a name and a capacity, kept once in the store.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bounds::CAPACITY_MAX;
use crate::{Error, LimitId, Millis, Result, SHARE_SCALE, TaskId};

/// What a limit belongs to. It is the prefix of the limit's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Tasks of one group; a task's group is its kind unless it says otherwise.
    Group,
    /// Tasks of one job.
    Job,
    /// The steps of one workflow: capacity 1, in order of arrival.
    Workflow,
}

impl Scope {
    /// The limit's whole name, such as `group:mail`.
    pub fn name(self, of: &str) -> String {
        format!("{}{of}", self.prefix())
    }

    /// The scope of a limit's name.
    pub fn of(limit_name: &str) -> Option<Self> {
        [Self::Group, Self::Job, Self::Workflow]
            .into_iter()
            .find(|scope| limit_name.starts_with(scope.prefix()))
    }

    /// How long a slot of such a limit is held.
    pub fn hold(self) -> Hold {
        match self {
            Self::Group | Self::Job => Hold::Attempt,
            Self::Workflow => Hold::Lifetime,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Group => "group:",
            Self::Job => "job:",
            Self::Workflow => "workflow:",
        }
    }
}

/// How long a slot is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// Until the task is finished for good: through retry, snooze and reap. It belongs to the
    /// task and is taken before any attempt slot.
    Lifetime,
    /// Until the attempt ends, however it ends.
    Attempt,
}

/// Who set a capacity. A later one wins over an earlier one of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Nobody: the limit is unlimited and goes away when nobody holds or awaits it.
    Unset,
    /// A submit; counts only where nothing is set.
    Submit,
    /// A worker's registration.
    Registration,
    /// The configuration file.
    Configuration,
    /// An operator's `concurrency set`; outlives deploys until `unset`.
    Operator,
}

impl Source {
    /// Every source, weakest first.
    pub const ALL: [Self; 5] =
        [Self::Unset, Self::Submit, Self::Registration, Self::Configuration, Self::Operator];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unset => "unset",
            Self::Submit => "submit",
            Self::Registration => "registration",
            Self::Configuration => "configuration",
            Self::Operator => "operator",
        }
    }

    /// Reads the word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == word)
    }

    /// Whether a capacity from this source replaces one from `old`. Equal sources replace each
    /// other, except submits: the first one counts.
    pub fn replaces(self, old: Self) -> bool {
        self > old || (self == old && self != Self::Submit)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why nobody is let through a limit, whatever its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Halt {
    /// An operator paused the job or the workflow.
    Operator,
    /// This step of the workflow failed for good.
    Step(TaskId),
}

impl Halt {
    /// As a number that a store keeps. Ids of tasks begin with 1.
    pub fn code(self) -> i64 {
        match self {
            Self::Operator => 0,
            Self::Step(task) => task.0,
        }
    }

    /// Reads the number.
    pub fn of(code: i64) -> Self {
        if code == 0 { Self::Operator } else { Self::Step(TaskId(code)) }
    }
}

/// A job's share of what is scarce. Kept on the job's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Starts per round, relative to other jobs.
    pub weight: u32,
    /// The fair tag of the task that last passed the job's line.
    pub last_tag: i64,
    /// Tasks that passed the job's line and are not yet claimed.
    pub ahead: u32,
    /// Slots with numbers below this are the job's reserve: who is to get one goes before the tasks
    /// of all others.
    pub min_concurrency: u32,
    /// Added to the priority of its tasks as they pass its line.
    pub priority: i32,
    /// The least time from one start to the next.
    pub delay_ms: i64,
    /// When the next may start: the last start and the time between two. Without such a time it stops nobody.
    pub next_at: Millis,
}

impl Share {
    /// Of a job of which nothing more is said.
    pub fn new(weight: u32) -> Self {
        Self {
            weight,
            last_tag: 0,
            ahead: 0,
            min_concurrency: 0,
            priority: 0,
            delay_ms: 0,
            next_at: 0,
        }
    }

    /// Lets one task past the job's line and returns its fair tag.
    pub fn pass(&mut self, virtual_time: i64) -> i64 {
        self.ahead += 1;
        self.last_tag = virtual_time.max(self.last_tag + self.step());
        self.last_tag
    }

    /// A task that passed the line was claimed at this time.
    pub fn start(&mut self, at: Millis) {
        self.ahead = self.ahead.saturating_sub(1);
        self.next_at = self.next_at.max(at.saturating_add(self.delay_ms));
    }

    /// A task that passed the line leaves the window without a start and gives its step of the
    /// fair tag back: a cancelled backlog or a task that moves between lines does not set its
    /// job back.
    pub fn step_back(&mut self) {
        self.ahead = self.ahead.saturating_sub(1);
        self.last_tag = (self.last_tag - self.step()).max(0);
    }

    fn step(&self) -> i64 {
        SHARE_SCALE / i64::from(self.weight.max(1))
    }

    /// Whether as many are past the line and not yet claimed as may be. The time between two
    /// starts counts from the first, so the second passes behind it.
    fn is_full(&self, window: u32) -> bool {
        self.ahead >= if self.delay_ms > 0 { 1 } else { window }
    }

    fn is_early(&self, now: Millis) -> bool {
        self.delay_ms > 0 && self.next_at > now
    }

    /// How many may be about to begin, where the time between two starts bounds them.
    fn ready_max(&self, now: Millis) -> Option<u32> {
        (self.delay_ms > 0).then(|| u32::from(!self.is_early(now)))
    }

    /// Whether one more may pass. Who is to get a slot of the reserve does not wait behind those
    /// who are past the line and get none.
    fn may_pass(&self, window: u32, now: Millis, gets_reserve: bool) -> bool {
        let has_room = !self.is_full(window)
            || gets_reserve && !self.is_full(window.saturating_add(self.min_concurrency));
        has_room && !self.is_early(now)
    }
}

/// A limit as the gate sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Its id; limits are locked in ascending order of id.
    pub id: LimitId,
    /// Its whole name, such as `group:mail`.
    pub name: Arc<str>,
    /// Slots in all; none means unlimited, 0 means paused.
    pub capacity: Option<u32>,
    /// Who set the capacity.
    pub source: Source,
    /// What holds again when an operator's setting is unset.
    pub base: Option<(u32, Source)>,
    /// Raised by one with every change of the capacity.
    pub version: i64,
    /// The store's limits version at which this limit began to apply. A task that was made
    /// ready under an older version has not been through this limit's gate.
    pub since: i64,
    /// Slots held. The slots themselves are the evidence; this equals their number in every
    /// committed state.
    pub held: u32,
    /// How often it stopped a task since it was made.
    pub refused: i64,
    /// Tasks in the line, of every class.
    pub waiting: u32,
    /// Those of them that are passed over: too heavy, without a worker, or waiting to reserve.
    pub aside: u32,
    /// The one task that may collect slots of several limits here.
    pub reserver: Option<TaskId>,
    /// Set while the head of the line may have room and nobody has looked yet; or while tasks that have
    /// not begun may have to go back to the line.
    pub dirty: bool,
    /// When somebody should look at the line: its head waits for this time.
    pub look_at: Option<Millis>,
    /// Set while nobody is let through, whatever the capacity.
    pub halt: Option<Halt>,
    /// Present on the limit of a job.
    pub share: Option<Share>,
}

impl Limit {
    /// A limit that nobody holds or awaits. What was not set by an operator holds again when an
    /// operator's word is taken back.
    pub fn new(
        id: LimitId,
        name: &str,
        capacity: Option<u32>,
        source: Source,
        since: i64,
        share: Option<Share>,
    ) -> Self {
        let base = capacity.filter(|_| !matches!(source, Source::Operator | Source::Unset));
        Self {
            id,
            name: name.into(),
            capacity,
            source,
            base: base.map(|capacity| (capacity, source)),
            version: 1,
            since,
            held: 0,
            refused: 0,
            waiting: 0,
            aside: 0,
            reserver: None,
            dirty: false,
            look_at: None,
            halt: None,
            share,
        }
    }

    /// Its scope, from its name.
    pub fn scope(&self) -> Scope {
        Scope::of(&self.name).unwrap_or(Scope::Group)
    }

    /// What workers registered, whether it is in force or somebody stronger has set another.
    pub fn registered(&self) -> Option<u32> {
        self.base
            .filter(|(_, source)| *source == Source::Registration)
            .map(|(capacity, _)| capacity)
    }

    /// Whether `weight` more slots can be taken.
    pub fn fits(&self, weight: u32) -> bool {
        self.halt.is_none()
            && self.capacity.is_none_or(|capacity| self.held.saturating_add(weight) <= capacity)
    }

    /// Whether `weight` slots would not fit even if nobody held any. A paused limit is full,
    /// not too small.
    pub fn is_too_small_for(&self, weight: u32) -> bool {
        self.capacity.is_some_and(|capacity| capacity > 0 && weight > capacity)
    }

    /// Whether nobody is let through at all.
    pub fn is_paused(&self) -> bool {
        self.capacity == Some(0) || self.halt.is_some()
    }

    /// Whether more slots are held than may be: it was lowered or paused. Who holds one and has not
    /// begun goes back to the line. A slot for life stays with its task, whatever becomes of the limit.
    pub fn is_over(&self) -> bool {
        let most = if self.halt.is_some() { Some(0) } else { self.capacity };
        most.is_some_and(|most| self.held > most) && self.scope().hold() == Hold::Attempt
    }

    /// How many tasks of a job may be about to begin, where it has a delay: one, and none before its time.
    pub fn ready_max(&self, now: Millis) -> Option<u32> {
        self.share.and_then(|share| share.ready_max(now))
    }

    /// Whether more tasks are past the line of a job than its delay allows: it has got the delay since.
    pub fn is_hasty(&self, now: Millis) -> bool {
        let ahead = self.share.map_or(0, |share| share.ahead);
        self.ready_max(now).is_some_and(|most| ahead > most)
    }

    /// Whether tasks that have not begun may have to go back to the line.
    pub fn recalls(&self, now: Millis) -> bool {
        self.is_over() || self.is_hasty(now)
    }

    /// Whether as many tasks are past the line of a job and not yet claimed as may be, where
    /// `window` of them may.
    pub fn is_window_full(&self, window: u32) -> bool {
        self.share.is_some_and(|share| share.is_full(window))
    }

    /// Whether one more task may pass the line of a job. `lowest_free` is the number of the slot it
    /// would get.
    pub fn may_pass(&self, window: u32, now: Millis, lowest_free: u32) -> bool {
        let gets_reserve = self.is_reserved(lowest_free);
        self.share.is_none_or(|share| share.may_pass(window, now, gets_reserve))
    }

    /// Whether the slot with this number is of a job's reserve.
    pub fn is_reserved(&self, number: u32) -> bool {
        self.share.is_some_and(|share| number < share.min_concurrency)
    }

    /// Whether somebody should look at the line now.
    pub fn is_due(&self, now: Millis) -> bool {
        self.dirty || self.look_at.is_some_and(|at| at <= now)
    }

    /// Notes that somebody has looked: nobody has to again, before the next may start if that is
    /// what the line waits for.
    pub fn looked_at(&mut self, now: Millis) {
        self.dirty = false;
        self.look_at = None;
        self.await_next(now);
    }

    /// Notes when the line is to be looked at, if it waits for the time at which the next may start.
    pub fn await_next(&mut self, now: Millis) {
        if let Some(share) = self.share.filter(|share| self.waiting > 0 && share.is_early(now)) {
            self.look_at = Some(share.next_at);
        }
    }

    /// Notes that it was changed: somebody should look at the line, and at who has to go back to it.
    pub fn changed(&mut self) {
        self.disturb();
        self.dirty |= self.is_over();
    }

    /// Notes that somebody should look at the line, or at who is to get a slot of the reserve.
    pub fn disturb(&mut self) {
        let has_ahead =
            self.share.is_some_and(|share| share.min_concurrency > 0 && share.ahead > 0);
        self.dirty |= self.waiting > 0 || has_ahead;
    }
}

/// Checks a capacity that came in as a number.
pub fn check_capacity(limit_name: &str, capacity: i64) -> Result<u32> {
    if !(0..=CAPACITY_MAX).contains(&capacity) {
        return Err(Error::invalid(format!(
            "the limit {limit_name:?} cannot be {capacity}; it must be between 0 (paused) and \
             {CAPACITY_MAX}; where nobody sets a limit there is none"
        )));
    }
    Ok(capacity as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_an_order() {
        assert!(Source::Operator.replaces(Source::Configuration));
        assert!(Source::Registration.replaces(Source::Registration));
        assert!(!Source::Registration.replaces(Source::Operator));
        assert!(Source::Submit.replaces(Source::Unset));
        assert!(!Source::Submit.replaces(Source::Submit), "the first submit counts");
    }

    #[test]
    fn a_job_pays_for_starts_only() {
        let mut share = Share::new(2);
        let first = share.pass(0);
        share.step_back();
        assert_eq!((share.pass(0), share.ahead), (first, 1));
        share.start(0);
        assert_eq!((share.pass(0), share.ahead), (2 * first, 1));
        assert_eq!(share.pass(9 * first), 9 * first, "a job that slept does not catch up");
    }

    #[test]
    fn a_delay_counts_from_the_start() {
        let mut share = Share { delay_ms: 100, ..Share::new(1) };
        assert!(share.may_pass(16, 0, false));
        share.pass(0);
        assert!(!share.may_pass(16, 1000, false), "the one ahead has not started");
        share.start(1000);
        assert!(!share.may_pass(16, 1099, true), "the reserve does not help");
        assert!(share.may_pass(16, 1100, false));
    }

    #[test]
    fn a_delay_that_comes_later_counts_from_the_last_start() {
        let mut share = Share::new(1);
        let passed: Vec<i64> = (0..3).map(|_| share.pass(0)).collect();
        share.start(1000);
        assert_eq!((passed.len(), share.next_at, share.ready_max(1000)), (3, 1000, None));
        let late = Share { delay_ms: 100, next_at: 1100, ..share };
        let limit = Limit::new(LimitId(1), "job:j", None, Source::Submit, 0, Some(late));
        assert_eq!((limit.ready_max(1099), limit.ready_max(1100)), (Some(0), Some(1)));
        assert!(limit.is_hasty(1100) && limit.recalls(1100), "two are ahead");
        let one = Limit { share: Some(Share { ahead: 1, ..late }), ..limit };
        assert!(one.is_hasty(1099) && !one.is_hasty(1100));
    }

    #[test]
    fn the_reserve_does_not_wait_for_the_window() {
        let share = Share { ahead: 16, min_concurrency: 2, ..Share::new(1) };
        let limit = Limit::new(LimitId(1), "job:j", None, Source::Submit, 0, Some(share));
        assert!(limit.may_pass(16, 0, 1), "slot 1 is of the reserve");
        assert!(!limit.may_pass(16, 0, 2));
        let far = Share { ahead: 18, ..share };
        assert!(!far.may_pass(16, 0, true), "there is a bound");
    }

    #[test]
    fn what_is_paused_or_lowered_is_over() {
        let group = Limit::new(LimitId(1), "group:g", Some(2), Source::Operator, 0, None);
        assert!(!Limit { held: 2, ..group.clone() }.is_over());
        assert!(Limit { held: 3, ..group.clone() }.is_over());
        assert!(!Limit { held: 9, capacity: None, ..group.clone() }.is_over());
        assert!(Limit { held: 1, halt: Some(Halt::Operator), ..group.clone() }.is_over());
        assert!(!Limit { halt: Some(Halt::Operator), ..group.clone() }.is_over());
        let workflow =
            Limit { held: 1, halt: Some(Halt::Operator), name: "workflow:w".into(), ..group };
        assert!(!workflow.is_over(), "a step keeps its turn");
    }

    #[test]
    fn capacities_are_bounded() {
        assert_eq!(check_capacity("group:x", 0).unwrap(), 0);
        assert_eq!(check_capacity("group:x", CAPACITY_MAX).unwrap(), i32::MAX as u32);
        assert!(check_capacity("group:x", -1).is_err());
        assert!(check_capacity("group:x", CAPACITY_MAX + 1).is_err());
    }
}
