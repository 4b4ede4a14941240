//! The board: every attempt that runs on this worker and every lease that it holds. The pump
//! writes it, the heartbeat reads it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{Attempt, Progress, Ran, TaskId, Token};

use super::running::{Lease, Running, StopReason};
use crate::time;

/// Groups whose run times one heartbeat carries.
const RAN_GROUPS_MAX: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Places are used again, so there are never more than permits. A place costs no hashing.
    places: Vec<Option<Arc<Running>>>,
    vacant: Vec<usize>,
    leases: HashMap<Token, Arc<Lease>>,
    /// Nobody renews leases any more: nothing is put up.
    closed: bool,
    /// How many handlers of each group have ended since the last heartbeat, and how long they ran.
    ran: HashMap<Arc<str>, (u32, Duration)>,
    /// Handlers that were told to stop, and when they are dropped if they do not.
    told: Vec<(Instant, Arc<Running>)>,
}

/// An attempt that was put up, and what its handler gets.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) running: Arc<Running>,
    pub(crate) payload: Vec<u8>,
}

/// What a heartbeat sends.
#[derive(Debug, Default)]
pub(crate) struct Beat {
    pub(crate) tokens: Vec<Token>,
    /// Leases that were given up, whose handlers have ended and whose reports the store has not taken
    /// yet. They are listed so that the store does not release them before the reports arrive.
    pub(crate) unreported: Vec<Token>,
    pub(crate) progress: Vec<(Arc<Running>, Progress)>,
    pub(crate) ran: Vec<Ran>,
}

impl Beat {
    pub(crate) fn is_empty(&self) -> bool {
        let has_leases = !self.tokens.is_empty() || !self.unreported.is_empty();
        !has_leases && self.progress.is_empty() && self.ran.is_empty()
    }
}

impl Board {
    /// Puts up the attempts of one claim, each with the index of its handler.
    pub(crate) fn put_up(
        &self,
        attempts: Vec<(Attempt, usize)>,
        sent_at: Instant,
        length: Duration,
    ) -> Vec<Started> {
        let mut counts: HashMap<Token, u32> = HashMap::new();
        for (attempt, _) in &attempts {
            *counts.entry(attempt.token).or_default() += 1;
        }
        let mut state = self.state();
        if state.closed {
            return Vec::new();
        }
        for (token, open) in counts {
            state.leases.insert(token, Lease::new(token, sent_at, length, open).into());
        }
        attempts
            .into_iter()
            .filter_map(|(attempt, handler)| state.place(attempt, handler))
            .collect()
    }

    /// Takes attempts down whose handlers are gone. Their leases stay.
    pub(crate) fn take_down<'a>(&self, attempts: impl Iterator<Item = &'a Arc<Running>>) {
        let now = time::now();
        let mut state = self.state();
        for running in attempts {
            state.places[running.place] = None;
            state.vacant.push(running.place);
            state.note(&running.attempt.group, now - running.started_at);
        }
    }

    /// Attempts whose end the store has taken. A lease without attempts is not renewed.
    pub(crate) fn close<'a>(&self, attempts: impl Iterator<Item = &'a Arc<Running>>) {
        for running in attempts.filter(|running| running.lease.close_one()) {
            self.state().leases.remove(&running.lease.token);
        }
    }

    /// The leases to renew and the progress to report.
    pub(crate) fn beat(&self) -> Beat {
        let mut state = self.state();
        let ran = state.take_ran();
        let (given_up, held): (Vec<_>, Vec<_>) =
            state.leases.values().partition(|lease| lease.is_given_up());
        // Collected once: after an outage every lease can be given up while its handler still ends.
        let running: HashSet<Token> = match given_up.is_empty() {
            true => HashSet::new(),
            false => state.running().map(|one| one.lease.token).collect(),
        };
        let given_up = given_up.into_iter().map(|lease| lease.token);
        Beat {
            ran,
            tokens: held.into_iter().map(|lease| lease.token).collect(),
            unreported: given_up.filter(|token| !running.contains(token)).collect(),
            progress: state
                .running()
                .filter_map(|running| Some((running.clone(), running.take_progress()?)))
                .collect(),
        }
    }

    pub(crate) fn renewed(&self, tokens: &[Token], sent_at: Instant) {
        let state = self.state();
        tokens.iter().filter_map(|token| state.leases.get(token)).for_each(|l| l.renew(sent_at));
    }

    /// Tells the handlers under leases that are gone; they are dropped at `drop_at`.
    pub(crate) fn lose(&self, tokens: &[Token], drop_at: Instant) {
        if tokens.is_empty() {
            return;
        }
        let mut state = self.state();
        for lease in tokens.iter().filter_map(|token| state.leases.get(token)) {
            lease.give_up();
        }
        let tokens: HashSet<Token> = tokens.iter().copied().collect();
        state.tell(StopReason::Lost, drop_at, |running| tokens.contains(&running.lease.token));
    }

    /// Tells handlers whose task was cancelled.
    pub(crate) fn cancel(&self, tasks: &[(TaskId, Token)], drop_at: Instant) {
        if tasks.is_empty() {
            return;
        }
        let tasks: HashSet<(TaskId, Token)> = tasks.iter().copied().collect();
        self.state().tell(StopReason::Cancelled, drop_at, |running| {
            tasks.contains(&(running.attempt.task, running.attempt.token))
        });
    }

    /// Gives up leases that could not be renewed in time. Returns how many.
    pub(crate) fn give_up(&self, now: Instant, drop_at: Instant) -> usize {
        let mut state = self.state();
        let late = state.leases.values().filter(|lease| lease.give_up_at() <= now);
        let given_up = late.filter(|lease| lease.give_up()).count();
        if given_up > 0 {
            state.tell(StopReason::Unrenewed, drop_at, |running| running.lease.is_given_up());
        }
        given_up
    }

    /// Drops handlers that were told to stop and did not.
    pub(crate) fn drop_overdue(&self, now: Instant) {
        self.state().told.retain(|(drop_at, running)| {
            let overdue = *drop_at <= now;
            if overdue {
                running.abort(StopReason::Cancelled);
            }
            !overdue
        });
    }

    /// Drops every handler.
    pub(crate) fn abort_all(&self) {
        self.state().running().for_each(|running| running.abort(StopReason::Stopping));
    }

    /// Drops every handler, and those that would be put up after this.
    pub(crate) fn shut(&self) {
        let mut state = self.state();
        state.closed = true;
        state.running().for_each(|running| running.abort(StopReason::Stopping));
    }

    /// When something is next to be done about a lease or a handler.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = self.state();
        let held = state.leases.values().filter(|lease| !lease.is_given_up());
        let leases = held.map(|lease| lease.give_up_at());
        leases.chain(state.told.iter().map(|(drop_at, _)| *drop_at)).min()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn place(&mut self, mut attempt: Attempt, handler: usize) -> Option<Started> {
        let payload = std::mem::take(&mut attempt.payload);
        let lease = self.leases.get(&attempt.token)?.clone();
        let place = self.vacant.pop().unwrap_or(self.places.len());
        let running = Arc::new(Running::new(attempt, lease, handler, place));
        if place == self.places.len() {
            self.places.push(None);
        }
        self.places[place] = Some(running.clone());
        Some(Started { running, payload })
    }

    /// Counts a handler that has ended. Of groups beyond the bound nothing is noted: it is a
    /// measurement, not a record.
    fn note(&mut self, group: &Arc<str>, ran: Duration) {
        if let Some((tasks, total)) = self.ran.get_mut(group) {
            *tasks += 1;
            *total += ran;
        } else if self.ran.len() < RAN_GROUPS_MAX {
            self.ran.insert(group.clone(), (1, ran));
        }
    }

    fn take_ran(&mut self) -> Vec<Ran> {
        let ran = self.ran.drain();
        ran.map(|(group, (tasks, total))| Ran { group, tasks, total_ms: time::millis(total) })
            .collect()
    }

    fn running(&self) -> impl Iterator<Item = &Arc<Running>> {
        self.places.iter().flatten()
    }

    fn tell(&mut self, reason: StopReason, drop_at: Instant, concerns: impl Fn(&Running) -> bool) {
        let told = self.places.iter().flatten().filter(|running| concerns(running));
        let news = told.filter(|running| running.tell_to_stop(reason));
        self.told.extend(news.map(|running| (drop_at, running.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPTS: i64 = 100_000;
    const LEASE: Duration = Duration::from_secs(30);

    /// The time in which a debug build looks every attempt up once, many times over. A comparison of every
    /// attempt with every listed task takes minutes.
    const LOOKUP_MAX: Duration = Duration::from_secs(60);

    /// An attempt that runs alone under its lease.
    fn attempt(number: i64) -> Attempt {
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
            arrived_at: 0,
            ready_at: 0,
            trace: None,
        }
    }

    fn full_board() -> (Board, Vec<Started>) {
        let board = Board::default();
        let attempts = (0..ATTEMPTS).map(|number| (attempt(number), 0)).collect();
        let started = board.put_up(attempts, time::now(), LEASE);
        assert_eq!(started.len(), ATTEMPTS as usize);
        (board, started)
    }

    #[test]
    fn cancel_of_many_attempts_looks_each_up_once() {
        let (board, _started) = full_board();
        // Of every second attempt, and of as many others that do not run here.
        let tasks: Vec<_> = (0..ATTEMPTS).map(|n| (TaskId(2 * n), Token(2 * n))).collect();
        let began = time::now();
        board.cancel(&tasks, began + LEASE);
        let took = time::now() - began;
        assert_eq!(board.state().told.len(), ATTEMPTS as usize / 2);
        assert!(took < LOOKUP_MAX, "{took:?}");
    }

    #[test]
    fn loss_of_many_leases_looks_each_attempt_up_once() {
        let (board, _started) = full_board();
        let tokens: Vec<_> = (0..ATTEMPTS).map(|number| Token(2 * number)).collect();
        let began = time::now();
        board.lose(&tokens, began + LEASE);
        let took = time::now() - began;
        assert_eq!(board.state().told.len(), ATTEMPTS as usize / 2);
        assert!(took < LOOKUP_MAX, "{took:?}");
    }

    #[test]
    fn heartbeat_with_all_leases_given_up_looks_each_attempt_up_once() {
        let (board, started) = full_board();
        // The handlers of every second attempt have ended, and their reports are not taken yet.
        let ended = started.iter().filter(|one| one.running.attempt.task.0 % 2 == 0);
        board.take_down(ended.map(|one| &one.running));
        let began = time::now();
        assert_eq!(board.give_up(began + LEASE, began + LEASE), ATTEMPTS as usize);
        let beat = board.beat();
        let took = time::now() - began;
        assert!(beat.tokens.is_empty());
        assert_eq!(beat.unreported.len(), ATTEMPTS as usize / 2);
        assert!(beat.unreported.iter().all(|token| token.0 % 2 == 0));
        assert!(took < LOOKUP_MAX, "{took:?}");
    }
}
