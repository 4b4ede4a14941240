//! Limits: a name and a capacity, kept once in the store.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bounds::CAPACITY_MAX;
use crate::{Error, FAIR_TAG_SCALE, LimitId, Millis, Result, TaskId};

/// What a limit belongs to. It is the prefix of the limit's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// Tasks of one group; a task's group is its kind unless it says otherwise.
    Group,
    /// Tasks of one job.
    Job,
    /// The steps of one workflow: capacity 1, in order of arrival.
    Workflow,
}

impl LimitScope {
    /// The limit's whole name, such as `group:mail`.
    pub fn limit_name(self, owner: &str) -> String {
        format!("{}{owner}", self.name_prefix())
    }

    /// The scope of a limit's name.
    pub fn from_limit_name(limit_name: &str) -> Option<Self> {
        [Self::Group, Self::Job, Self::Workflow]
            .into_iter()
            .find(|scope| limit_name.starts_with(scope.name_prefix()))
    }

    /// How long a slot of such a limit is held.
    pub fn slot_lifetime(self) -> SlotLifetime {
        match self {
            Self::Group | Self::Job => SlotLifetime::Attempt,
            Self::Workflow => SlotLifetime::Task,
        }
    }

    fn name_prefix(self) -> &'static str {
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
pub enum SlotLifetime {
    /// Until the task is finished for good: through retry, snooze and reap. It belongs to the
    /// task and is taken before any attempt slot.
    Task,
    /// Until the attempt ends, however it ends.
    Attempt,
}

/// Who set a capacity. A later one wins over an earlier one of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapacitySource {
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

impl CapacitySource {
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
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }

    /// Whether a capacity from this source replaces one from `old`. Equal sources replace each
    /// other, except submits: the first one counts.
    pub fn may_replace(self, current: Self) -> bool {
        self > current || (self == current && self != Self::Submit)
    }
}

impl fmt::Display for CapacitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why nobody is let through a limit, whatever its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseCause {
    /// An operator paused the job or the workflow.
    Operator,
    /// This step of the workflow failed for good.
    FailedStep(TaskId),
}

impl PauseCause {
    /// As a number that a store keeps. Ids of tasks begin with 1.
    pub fn to_code(self) -> i64 {
        match self {
            Self::Operator => 0,
            Self::FailedStep(task) => task.0,
        }
    }

    /// Reads the number.
    pub fn from_code(code: i64) -> Self {
        if code == 0 { Self::Operator } else { Self::FailedStep(TaskId(code)) }
    }
}

/// A job's share of what is scarce. Kept on the job's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FairShare {
    /// Starts per round, relative to other jobs.
    pub weight: u32,
    /// The fair tag of the task that last passed the job's line.
    pub last_tag: i64,
    /// Tasks that passed the job's line and are not yet claimed.
    pub in_window: u32,
    /// Slots with numbers below this are the job's reserve: who is to get one goes before the tasks
    /// of all others.
    pub min_concurrency: u32,
    /// Added to the priority of its tasks as they pass its line.
    pub priority: i32,
    /// The least time from one start to the next.
    pub delay_ms: i64,
    /// When the next may start: the last start and the time between two. Without such a time it stops nobody.
    pub next_start_at: Millis,
}

impl FairShare {
    /// Of a job of which nothing more is said.
    pub fn new(weight: u32) -> Self {
        Self {
            weight,
            last_tag: 0,
            in_window: 0,
            min_concurrency: 0,
            priority: 0,
            delay_ms: 0,
            next_start_at: 0,
        }
    }

    /// Lets one task past the job's line and returns its fair tag.
    pub fn enter_window(&mut self, virtual_time: i64) -> i64 {
        self.in_window += 1;
        self.last_tag = virtual_time.max(self.last_tag + self.tag_increment());
        self.last_tag
    }

    /// A task that passed the line was claimed at this time.
    pub fn record_claim(&mut self, claimed_at: Millis) {
        self.in_window = self.in_window.saturating_sub(1);
        self.next_start_at = self.next_start_at.max(claimed_at.saturating_add(self.delay_ms));
    }

    /// A task that passed the line leaves the window without a start and gives its step of the
    /// fair tag back: a cancelled backlog or a task that moves between lines does not set its
    /// job back.
    pub fn leave_window_unclaimed(&mut self) {
        self.in_window = self.in_window.saturating_sub(1);
        self.last_tag = (self.last_tag - self.tag_increment()).max(0);
    }

    fn tag_increment(&self) -> i64 {
        FAIR_TAG_SCALE / i64::from(self.weight.max(1))
    }

    /// Whether as many are past the line and not yet claimed as may be. The time between two
    /// starts counts from the first, so the second passes behind it.
    fn is_window_full(&self, window_size: u32) -> bool {
        self.in_window >= if self.delay_ms > 0 { 1 } else { window_size }
    }

    fn is_before_next_start(&self, now: Millis) -> bool {
        self.delay_ms > 0 && self.next_start_at > now
    }

    /// How many may be about to begin, where the time between two starts bounds them.
    fn ready_tasks_max(&self, now: Millis) -> Option<u32> {
        (self.delay_ms > 0).then(|| u32::from(!self.is_before_next_start(now)))
    }

    /// Whether one more may pass. Who is to get a slot of the reserve does not wait behind those
    /// who are past the line and get none.
    fn may_enter_window(&self, window_size: u32, now: Millis, gets_reserve: bool) -> bool {
        let has_room = !self.is_window_full(window_size)
            || gets_reserve
                && !self.is_window_full(window_size.saturating_add(self.min_concurrency));
        has_room && !self.is_before_next_start(now)
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
    pub source: CapacitySource,
    /// What holds again when an operator's setting is unset.
    pub capacity_without_override: Option<(u32, CapacitySource)>,
    /// Raised by one with every change of the capacity.
    pub version: i64,
    /// The store's limits version at which this limit began to apply. A task that was made
    /// ready under an older version has not been through this limit's gate.
    pub applies_from_version: i64,
    /// Slots held. The slots themselves are the evidence; this equals their number in every
    /// committed state.
    pub held: u32,
    /// How often it stopped a task since it was made.
    pub parked_total: i64,
    /// Tasks in the line, of every class.
    pub waiting: u32,
    /// Those of them that are passed over: too heavy, without a worker, or waiting to reserve.
    pub skipped: u32,
    /// The one task that may collect slots of several limits here.
    pub reserving_task: Option<TaskId>,
    /// Set while the head of the line may have room and nobody has looked yet; or while tasks that have
    /// not begun may have to go back to the line.
    pub dirty: bool,
    /// When somebody should look at the line: its head waits for this time.
    pub recheck_at: Option<Millis>,
    /// Set while nobody is let through, whatever the capacity.
    pub paused_by: Option<PauseCause>,
    /// Present on the limit of a job.
    pub fair_share: Option<FairShare>,
}

impl Limit {
    /// A limit that nobody holds or awaits. What was not set by an operator holds again when an
    /// operator's word is taken back.
    pub fn new(
        id: LimitId,
        name: &str,
        capacity: Option<u32>,
        source: CapacitySource,
        applies_from_version: i64,
        fair_share: Option<FairShare>,
    ) -> Self {
        let base = capacity
            .filter(|_| !matches!(source, CapacitySource::Operator | CapacitySource::Unset));
        Self {
            id,
            name: name.into(),
            capacity,
            source,
            capacity_without_override: base.map(|capacity| (capacity, source)),
            version: 1,
            applies_from_version,
            held: 0,
            parked_total: 0,
            waiting: 0,
            skipped: 0,
            reserving_task: None,
            dirty: false,
            recheck_at: None,
            paused_by: None,
            fair_share,
        }
    }

    /// Its scope, from its name.
    pub fn scope(&self) -> LimitScope {
        LimitScope::from_limit_name(&self.name).unwrap_or(LimitScope::Group)
    }

    /// What workers registered, whether it is in force or somebody stronger has set another.
    pub fn registered_capacity(&self) -> Option<u32> {
        self.capacity_without_override
            .filter(|(_, source)| *source == CapacitySource::Registration)
            .map(|(capacity, _)| capacity)
    }

    /// Whether `weight` more slots can be taken.
    pub fn has_free_slots(&self, weight: u32) -> bool {
        self.paused_by.is_none()
            && self.capacity.is_none_or(|capacity| self.held.saturating_add(weight) <= capacity)
    }

    /// Whether `weight` slots would not fit even if nobody held any. A paused limit is full,
    /// not too small.
    pub fn is_too_small_for(&self, weight: u32) -> bool {
        self.capacity.is_some_and(|capacity| capacity > 0 && weight > capacity)
    }

    /// Whether nobody is let through at all.
    pub fn is_paused(&self) -> bool {
        self.capacity == Some(0) || self.paused_by.is_some()
    }

    /// Whether more slots are held than may be: it was lowered or paused. Who holds one and has not
    /// begun goes back to the line. A slot for life stays with its task, whatever becomes of the limit.
    pub fn is_over_capacity(&self) -> bool {
        let most = if self.paused_by.is_some() { Some(0) } else { self.capacity };
        most.is_some_and(|most| self.held > most)
            && self.scope().slot_lifetime() == SlotLifetime::Attempt
    }

    /// How many tasks of a job may be about to begin, where it has a delay: one, and none before its time.
    pub fn ready_tasks_max(&self, now: Millis) -> Option<u32> {
        self.fair_share.and_then(|share| share.ready_tasks_max(now))
    }

    /// Whether more tasks are past the line of a job than its delay allows: it has got the delay since.
    pub fn exceeds_start_delay(&self, now: Millis) -> bool {
        let ahead = self.fair_share.map_or(0, |share| share.in_window);
        self.ready_tasks_max(now).is_some_and(|most| ahead > most)
    }

    /// Whether tasks that have not begun may have to go back to the line.
    pub fn has_excess_admissions(&self, now: Millis) -> bool {
        self.is_over_capacity() || self.exceeds_start_delay(now)
    }

    /// Whether as many tasks are past the line of a job and not yet claimed as may be, where
    /// `window` of them may.
    pub fn is_window_full(&self, window_size: u32) -> bool {
        self.fair_share.is_some_and(|share| share.is_window_full(window_size))
    }

    /// Whether one more task may pass the line of a job. `lowest_free` is the number of the slot it
    /// would get.
    pub fn may_enter_window(&self, window_size: u32, now: Millis, lowest_free: u32) -> bool {
        let gets_reserve = self.is_guaranteed_slot(lowest_free);
        self.fair_share.is_none_or(|share| share.may_enter_window(window_size, now, gets_reserve))
    }

    /// Whether the slot with this number is of a job's reserve.
    pub fn is_guaranteed_slot(&self, slot_number: u32) -> bool {
        self.fair_share.is_some_and(|share| slot_number < share.min_concurrency)
    }

    /// Whether somebody should look at the line now.
    pub fn needs_recheck(&self, now: Millis) -> bool {
        self.dirty || self.recheck_at.is_some_and(|at| at <= now)
    }

    /// Notes that somebody has looked: nobody has to again, before the next may start if that is
    /// what the line waits for.
    pub fn mark_rechecked(&mut self, now: Millis) {
        self.dirty = false;
        self.recheck_at = None;
        self.schedule_recheck(now);
    }

    /// Notes when the line is to be looked at, if it waits for the time at which the next may start.
    pub fn schedule_recheck(&mut self, now: Millis) {
        if let Some(share) =
            self.fair_share.filter(|share| self.waiting > 0 && share.is_before_next_start(now))
        {
            self.recheck_at = Some(share.next_start_at);
        }
    }

    /// Notes that it was changed: somebody should look at the line, and at who has to go back to it.
    pub fn mark_dirty_after_change(&mut self) {
        self.mark_dirty_if_waiting();
        self.dirty |= self.is_over_capacity();
    }

    /// Notes that somebody should look at the line, or at who is to get a slot of the reserve.
    pub fn mark_dirty_if_waiting(&mut self) {
        let has_ahead =
            self.fair_share.is_some_and(|share| share.min_concurrency > 0 && share.in_window > 0);
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
    fn capacity_source_replaces_weaker_sources() {
        assert!(CapacitySource::Operator.may_replace(CapacitySource::Configuration));
        assert!(CapacitySource::Registration.may_replace(CapacitySource::Registration));
        assert!(!CapacitySource::Registration.may_replace(CapacitySource::Operator));
        assert!(CapacitySource::Submit.may_replace(CapacitySource::Unset));
        assert!(
            !CapacitySource::Submit.may_replace(CapacitySource::Submit),
            "the first submit counts"
        );
    }

    #[test]
    fn fair_share_is_charged_for_claimed_tasks_only() {
        let mut share = FairShare::new(2);
        let first = share.enter_window(0);
        share.leave_window_unclaimed();
        assert_eq!((share.enter_window(0), share.in_window), (first, 1));
        share.record_claim(0);
        assert_eq!((share.enter_window(0), share.in_window), (2 * first, 1));
        assert_eq!(share.enter_window(9 * first), 9 * first, "a job that slept does not catch up");
    }

    #[test]
    fn job_delay_counts_from_previous_start() {
        let mut share = FairShare { delay_ms: 100, ..FairShare::new(1) };
        assert!(share.may_enter_window(16, 0, false));
        share.enter_window(0);
        assert!(!share.may_enter_window(16, 1000, false), "the one ahead has not started");
        share.record_claim(1000);
        assert!(!share.may_enter_window(16, 1099, true), "the reserve does not help");
        assert!(share.may_enter_window(16, 1100, false));
    }

    #[test]
    fn job_delay_set_later_counts_from_last_start() {
        let mut share = FairShare::new(1);
        let passed: Vec<i64> = (0..3).map(|_| share.enter_window(0)).collect();
        share.record_claim(1000);
        assert_eq!(
            (passed.len(), share.next_start_at, share.ready_tasks_max(1000)),
            (3, 1000, None)
        );
        let late = FairShare { delay_ms: 100, next_start_at: 1100, ..share };
        let limit = Limit::new(LimitId(1), "job:j", None, CapacitySource::Submit, 0, Some(late));
        assert_eq!((limit.ready_tasks_max(1099), limit.ready_tasks_max(1100)), (Some(0), Some(1)));
        assert!(
            limit.exceeds_start_delay(1100) && limit.has_excess_admissions(1100),
            "two are ahead"
        );
        let one = Limit { fair_share: Some(FairShare { in_window: 1, ..late }), ..limit };
        assert!(one.exceeds_start_delay(1099) && !one.exceeds_start_delay(1100));
    }

    #[test]
    fn guaranteed_slot_is_open_when_job_window_is_full() {
        let share = FairShare { in_window: 16, min_concurrency: 2, ..FairShare::new(1) };
        let limit = Limit::new(LimitId(1), "job:j", None, CapacitySource::Submit, 0, Some(share));
        assert!(limit.may_enter_window(16, 0, 1), "slot 1 is of the reserve");
        assert!(!limit.may_enter_window(16, 0, 2));
        let far = FairShare { in_window: 18, ..share };
        assert!(!far.may_enter_window(16, 0, true), "there is a bound");
    }

    #[test]
    fn limit_when_paused_or_lowered_is_over_capacity() {
        let group = Limit::new(LimitId(1), "group:g", Some(2), CapacitySource::Operator, 0, None);
        assert!(!Limit { held: 2, ..group.clone() }.is_over_capacity());
        assert!(Limit { held: 3, ..group.clone() }.is_over_capacity());
        assert!(!Limit { held: 9, capacity: None, ..group.clone() }.is_over_capacity());
        assert!(
            Limit { held: 1, paused_by: Some(PauseCause::Operator), ..group.clone() }
                .is_over_capacity()
        );
        assert!(
            !Limit { paused_by: Some(PauseCause::Operator), ..group.clone() }.is_over_capacity()
        );
        let workflow = Limit {
            held: 1,
            paused_by: Some(PauseCause::Operator),
            name: "workflow:w".into(),
            ..group
        };
        assert!(!workflow.is_over_capacity(), "a step keeps its turn");
    }

    #[test]
    fn capacity_out_of_range_is_rejected() {
        assert_eq!(check_capacity("group:x", 0).unwrap(), 0);
        assert_eq!(check_capacity("group:x", CAPACITY_MAX).unwrap(), i32::MAX as u32);
        assert!(check_capacity("group:x", -1).is_err());
        assert!(check_capacity("group:x", CAPACITY_MAX + 1).is_err());
    }
}
