//! The board: every attempt that runs on this worker and every lease that it holds. The pump
//! writes it, the heartbeat reads it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Attempt, Progress, RunTimeSample, TaskId, Token};

use super::running_attempt::{Lease, RunningAttempt, StopReason};
use crate::time;

/// Groups whose run times one heartbeat carries.
const RUN_TIME_GROUPS_MAX: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    state: Mutex<InFlightState>,
}

#[derive(Debug, Default)]
struct InFlightState {
    /// Places are used again, so there are never more than permits. A place costs no hashing.
    attempts: Vec<Option<Arc<RunningAttempt>>>,
    free_indexes: Vec<usize>,
    leases: HashMap<Token, Arc<Lease>>,
    /// Nobody renews leases any more: nothing is put up.
    is_closed: bool,
    /// How many handlers of each group have ended since the last heartbeat, and how long they ran.
    run_times: HashMap<Arc<str>, (u32, Duration)>,
    /// Handlers that were told to stop, and when they are dropped if they do not.
    stopping: Vec<(Instant, Arc<RunningAttempt>)>,
}

/// An attempt that was put up, and what its handler gets.
#[derive(Debug)]
pub(crate) struct StartedAttempt {
    pub(crate) running: Arc<RunningAttempt>,
    pub(crate) payload: Vec<u8>,
}

/// What a heartbeat sends.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatPayload {
    pub(crate) tokens: Vec<Token>,
    /// Leases that were given up, whose handlers have ended and whose reports the store has not taken
    /// yet. They are listed so that the store does not release them before the reports arrive.
    pub(crate) unreported_tokens: Vec<Token>,
    pub(crate) progress: Vec<(Arc<RunningAttempt>, Progress)>,
    pub(crate) run_times: Vec<RunTimeSample>,
}

impl HeartbeatPayload {
    pub(crate) fn is_empty(&self) -> bool {
        let has_leases = !self.tokens.is_empty() || !self.unreported_tokens.is_empty();
        !has_leases && self.progress.is_empty() && self.run_times.is_empty()
    }
}

impl InFlight {
    /// Puts up the attempts of one claim, each with the index of its handler.
    pub(crate) fn insert(
        &self,
        attempts: Vec<(Attempt, usize)>,
        sent_at: Instant,
        lease_duration: Duration,
    ) -> Vec<StartedAttempt> {
        let mut counts: HashMap<Token, u32> = HashMap::new();
        for (attempt, _) in &attempts {
            *counts.entry(attempt.token).or_default() += 1;
        }
        let mut state = self.lock_state();
        if state.is_closed {
            return Vec::new();
        }
        for (token, open) in counts {
            state.leases.insert(token, Lease::new(token, sent_at, lease_duration, open).into());
        }
        attempts
            .into_iter()
            .filter_map(|(attempt, handler)| state.insert_attempt(attempt, handler))
            .collect()
    }

    /// Takes attempts down whose handlers are gone. Their leases stay.
    pub(crate) fn remove<'a>(&self, attempts: impl Iterator<Item = &'a Arc<RunningAttempt>>) {
        let now = time::now();
        let mut state = self.lock_state();
        for running in attempts {
            state.attempts[running.in_flight_index] = None;
            state.free_indexes.push(running.in_flight_index);
            state.record_run_time(&running.attempt.group, now - running.started_at);
        }
    }

    /// Attempts whose end the store has taken. A lease without attempts is not renewed.
    pub(crate) fn acknowledge<'a>(&self, attempts: impl Iterator<Item = &'a Arc<RunningAttempt>>) {
        for running in attempts.filter(|running| running.lease.acknowledge_attempt()) {
            self.lock_state().leases.remove(&running.lease.token);
        }
    }

    /// The leases to renew and the progress to report.
    pub(crate) fn heartbeat_payload(&self) -> HeartbeatPayload {
        let mut state = self.lock_state();
        let ran = state.take_run_times();
        let (given_up, held): (Vec<_>, Vec<_>) =
            state.leases.values().partition(|lease| lease.is_given_up());
        // Collected once: after an outage every lease can be given up while its handler still ends.
        let running: HashSet<Token> = match given_up.is_empty() {
            true => HashSet::new(),
            false => state.running_attempts().map(|one| one.lease.token).collect(),
        };
        let given_up = given_up.into_iter().map(|lease| lease.token);
        HeartbeatPayload {
            run_times: ran,
            tokens: held.into_iter().map(|lease| lease.token).collect(),
            unreported_tokens: given_up.filter(|token| !running.contains(token)).collect(),
            progress: state
                .running_attempts()
                .filter_map(|running| Some((running.clone(), running.take_progress()?)))
                .collect(),
        }
    }

    pub(crate) fn mark_renewed(&self, tokens: &[Token], sent_at: Instant) {
        let state = self.lock_state();
        tokens.iter().filter_map(|token| state.leases.get(token)).for_each(|l| l.renew(sent_at));
    }

    /// Tells the handlers under leases that are gone; they are dropped at `drop_at`.
    pub(crate) fn mark_lost(&self, tokens: &[Token], drop_at: Instant) {
        if tokens.is_empty() {
            return;
        }
        let mut state = self.lock_state();
        for lease in tokens.iter().filter_map(|token| state.leases.get(token)) {
            lease.give_up();
        }
        let tokens: HashSet<Token> = tokens.iter().copied().collect();
        state.request_stop(StopReason::LeaseLost, drop_at, |running| {
            tokens.contains(&running.lease.token)
        });
    }

    /// Tells handlers whose task was cancelled.
    pub(crate) fn mark_cancelled(&self, tasks: &[(TaskId, Token)], drop_at: Instant) {
        if tasks.is_empty() {
            return;
        }
        let tasks: HashSet<(TaskId, Token)> = tasks.iter().copied().collect();
        self.lock_state().request_stop(StopReason::Cancelled, drop_at, |running| {
            tasks.contains(&(running.attempt.task, running.attempt.token))
        });
    }

    /// Gives up leases that could not be renewed in time. Returns how many.
    pub(crate) fn give_up_expiring(&self, now: Instant, drop_at: Instant) -> usize {
        let mut state = self.lock_state();
        let late = state.leases.values().filter(|lease| lease.give_up_at() <= now);
        let given_up = late.filter(|lease| lease.give_up()).count();
        if given_up > 0 {
            state.request_stop(StopReason::LeaseExpiring, drop_at, |running| {
                running.lease.is_given_up()
            });
        }
        given_up
    }

    /// Drops handlers that were told to stop and did not.
    pub(crate) fn abort_overdue(&self, now: Instant) {
        self.lock_state().stopping.retain(|(drop_at, running)| {
            let overdue = *drop_at <= now;
            if overdue {
                running.abort(StopReason::Cancelled);
            }
            !overdue
        });
    }

    /// Drops every handler.
    pub(crate) fn abort_all(&self) {
        self.lock_state()
            .running_attempts()
            .for_each(|running| running.abort(StopReason::WorkerStopping));
    }

    /// Drops every handler, and those that would be put up after this.
    pub(crate) fn close(&self) {
        let mut state = self.lock_state();
        state.is_closed = true;
        state.running_attempts().for_each(|running| running.abort(StopReason::WorkerStopping));
    }

    /// When something is next to be done about a lease or a handler.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = self.lock_state();
        let held = state.leases.values().filter(|lease| !lease.is_given_up());
        let leases = held.map(|lease| lease.give_up_at());
        leases.chain(state.stopping.iter().map(|(drop_at, _)| *drop_at)).min()
    }

    fn lock_state(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightState {
    fn insert_attempt(
        &mut self,
        mut attempt: Attempt,
        handler_index: usize,
    ) -> Option<StartedAttempt> {
        let payload = std::mem::take(&mut attempt.payload);
        let lease = self.leases.get(&attempt.token)?.clone();
        let place = self.free_indexes.pop().unwrap_or(self.attempts.len());
        let running = Arc::new(RunningAttempt::new(attempt, lease, handler_index, place));
        if place == self.attempts.len() {
            self.attempts.push(None);
        }
        self.attempts[place] = Some(running.clone());
        Some(StartedAttempt { running, payload })
    }

    /// Counts a handler that has ended. Of groups beyond the bound nothing is noted: it is a
    /// measurement, not a record.
    fn record_run_time(&mut self, group: &Arc<str>, run_time: Duration) {
        if let Some((tasks, total)) = self.run_times.get_mut(group) {
            *tasks += 1;
            *total += run_time;
        } else if self.run_times.len() < RUN_TIME_GROUPS_MAX {
            self.run_times.insert(group.clone(), (1, run_time));
        }
    }

    fn take_run_times(&mut self) -> Vec<RunTimeSample> {
        let ran = self.run_times.drain();
        ran.map(|(group, (tasks, total))| RunTimeSample {
            group,
            tasks,
            total_ms: time::millis(total),
        })
        .collect()
    }

    fn running_attempts(&self) -> impl Iterator<Item = &Arc<RunningAttempt>> {
        self.attempts.iter().flatten()
    }

    fn request_stop(
        &mut self,
        reason: StopReason,
        drop_at: Instant,
        matches: impl Fn(&RunningAttempt) -> bool,
    ) {
        let told = self.attempts.iter().flatten().filter(|running| matches(running));
        let news = told.filter(|running| running.request_stop(reason));
        self.stopping.extend(news.map(|running| (drop_at, running.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPTS: i64 = 100_000;
    const LEASE: Duration = Duration::from_secs(30);

    /// The time in which a debug build looks every attempt up once, many times over. A comparison of every
    /// attempt with every listed task takes minutes.
    const LOOKUP_TIME_MAX: Duration = Duration::from_secs(60);

    /// An attempt that runs alone under its lease.
    fn attempt_under_own_lease(number: i64) -> Attempt {
        Attempt {
            task: TaskId(number),
            token: Token(number),
            kind: "a".into(),
            queue: "default".into(),
            group: "a".into(),
            weight: 1,
            payload: Vec::new(),
            number: 1,
            max_attempts: 1,
            timeout_ms: None,
            job: None,
            workflow: None,
            slots: Vec::new(),
            expires_at: 0,
            due_at: 0,
            ready_at: 0,
            trace: None,
        }
    }

    fn full_in_flight() -> (InFlight, Vec<StartedAttempt>) {
        let board = InFlight::default();
        let attempts = (0..ATTEMPTS).map(|number| (attempt_under_own_lease(number), 0)).collect();
        let started = board.insert(attempts, time::now(), LEASE);
        assert_eq!(started.len(), ATTEMPTS as usize);
        (board, started)
    }

    #[test]
    fn cancel_of_many_attempts_examines_each_once() {
        let (board, _started) = full_in_flight();
        // Of every second attempt, and of as many others that do not run here.
        let tasks: Vec<_> = (0..ATTEMPTS).map(|n| (TaskId(2 * n), Token(2 * n))).collect();
        let began = time::now();
        board.mark_cancelled(&tasks, began + LEASE);
        let took = time::now() - began;
        assert_eq!(board.lock_state().stopping.len(), ATTEMPTS as usize / 2);
        assert!(took < LOOKUP_TIME_MAX, "{took:?}");
    }

    #[test]
    fn loss_of_many_leases_examines_each_attempt_once() {
        let (board, _started) = full_in_flight();
        let tokens: Vec<_> = (0..ATTEMPTS).map(|number| Token(2 * number)).collect();
        let began = time::now();
        board.mark_lost(&tokens, began + LEASE);
        let took = time::now() - began;
        assert_eq!(board.lock_state().stopping.len(), ATTEMPTS as usize / 2);
        assert!(took < LOOKUP_TIME_MAX, "{took:?}");
    }

    #[test]
    fn heartbeat_with_all_leases_given_up_examines_each_attempt_once() {
        let (board, started) = full_in_flight();
        // The handlers of every second attempt have ended, and their reports are not taken yet.
        let ended = started.iter().filter(|one| one.running.attempt.task.0 % 2 == 0);
        board.remove(ended.map(|one| &one.running));
        let began = time::now();
        assert_eq!(board.give_up_expiring(began + LEASE, began + LEASE), ATTEMPTS as usize);
        let beat = board.heartbeat_payload();
        let took = time::now() - began;
        assert!(beat.tokens.is_empty());
        assert_eq!(beat.unreported_tokens.len(), ATTEMPTS as usize / 2);
        assert!(beat.unreported_tokens.iter().all(|token| token.0 % 2 == 0));
        assert!(took < LOOKUP_TIME_MAX, "{took:?}");
    }
}
