//! What callers hand to a thread that owns a connection.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Error, ErrorKind, Result};
use tokio::sync::{Semaphore, oneshot};

use super::tables::Transaction;

/// Commands that may wait; whoever brings one more waits for room.
const QUEUED_COMMANDS_MAX: usize = 10_000;

/// One caller's step.
pub(super) trait Command: Send {
    /// Takes the step. An error leaves it to the caller to undo what was written.
    fn run(&mut self, tx: &mut Transaction<'_, '_>) -> Result<()>;
    /// Tells the caller: the outcome, or the error that undid it.
    fn reply(self: Box<Self>, failed: Option<Error>);
    /// Whether the caller has gone away.
    fn is_abandoned(&self) -> bool;
    /// How many tasks it is about.
    fn task_count(&self) -> usize;
}

struct CommandWithReply<F, T> {
    run: Option<F>,
    outcome: Option<T>,
    task_count: usize,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Command for CommandWithReply<F, T>
where
    F: FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Transaction<'_, '_>) -> Result<()> {
        let run = self.run.take().ok_or_else(store_closed_error)?;
        self.outcome = Some(run(tx)?);
        Ok(())
    }

    fn reply(self: Box<Self>, failed: Option<Error>) {
        let outcome = match (failed, self.outcome) {
            (Some(error), _) => Err(error),
            (None, Some(outcome)) => Ok(outcome),
            (None, None) => Err(store_closed_error()),
        };
        // A caller that has gone away is told nothing.
        let _ = self.reply.send(outcome);
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn task_count(&self) -> usize {
        self.task_count
    }
}

/// What a thread woke up for.
pub(super) enum WakeReason {
    /// There are commands.
    Commands,
    /// Nothing came for a while and somebody waits for news.
    PollForChanges,
    /// Nobody will bring a command any more.
    Closed,
}

#[derive(Default)]
struct QueueState {
    commands: VecDeque<Box<dyn Command>>,
    watchers: usize,
    is_closed: bool,
}

/// The commands that wait for a thread.
pub(super) struct CommandQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
    capacity: Semaphore,
}

impl CommandQueue {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            capacity: Semaphore::new(QUEUED_COMMANDS_MAX),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a step taken by the thread and waits for its outcome.
    pub(super) async fn run_command<T: Send + 'static>(
        &self,
        size: usize,
        run: impl FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, outcome) = oneshot::channel();
        self.capacity.acquire().await.map_err(|_| store_closed_error())?.forget();
        self.push_command(Box::new(CommandWithReply {
            run: Some(run),
            outcome: None,
            task_count: size,
            reply,
        }))?;
        outcome.await.unwrap_or_else(|_| Err(store_closed_error()))
    }

    fn push_command(&self, command: Box<dyn Command>) -> Result<()> {
        let mut waiting = self.lock_state();
        if waiting.is_closed {
            return Err(store_closed_error());
        }
        waiting.commands.push_back(command);
        drop(waiting);
        self.wake.notify_one();
        Ok(())
    }

    /// Waits for commands; for at most `watch_every` while somebody waits for news.
    pub(super) fn wait_for_commands(&self, poll_interval: Duration) -> WakeReason {
        let mut waiting = self.lock_state();
        loop {
            if !waiting.commands.is_empty() {
                return WakeReason::Commands;
            }
            if waiting.is_closed {
                return WakeReason::Closed;
            }
            if waiting.watchers == 0 {
                waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (guard, timeout) = self
                .wake
                .wait_timeout(waiting, poll_interval)
                .unwrap_or_else(PoisonError::into_inner);
            waiting = guard;
            if timeout.timed_out() && waiting.commands.is_empty() {
                return WakeReason::PollForChanges;
            }
        }
    }

    /// Takes the first commands, at least one if there is any: a bounded number about a bounded
    /// number of tasks.
    pub(super) fn take_commands(
        &self,
        commands_max: usize,
        tasks_max: usize,
    ) -> VecDeque<Box<dyn Command>> {
        let mut waiting = self.lock_state();
        let mut taken = VecDeque::new();
        let mut tasks = 0;
        while taken.len() < commands_max
            && let Some(next) = waiting.commands.front()
            && (taken.is_empty() || tasks + next.task_count() <= tasks_max)
        {
            tasks += next.task_count();
            taken.extend(waiting.commands.pop_front());
        }
        drop(waiting);
        self.capacity.add_permits(taken.len());
        taken
    }

    /// Counts somebody who waits for news, until the guard is dropped.
    pub(super) fn add_watcher(self: &Arc<Self>) -> WatcherGuard {
        self.lock_state().watchers += 1;
        self.wake.notify_one();
        WatcherGuard(self.clone())
    }

    /// Lets the threads end once they have done what waits.
    pub(super) fn close(&self) {
        self.lock_state().is_closed = true;
        self.wake.notify_all();
    }

    /// Ends a queue whose thread is gone: those who wait are told so.
    pub(super) fn close_and_drop_commands(&self) {
        self.close();
        self.capacity.close();
        self.lock_state().commands.clear();
    }
}

/// Somebody waits for news.
pub(super) struct WatcherGuard(Arc<CommandQueue>);

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        self.0.lock_state().watchers -= 1;
    }
}

/// Abandons a queue when its thread ends, however it ends.
pub(super) struct CloseQueueOnDrop(pub(super) Arc<CommandQueue>);

impl Drop for CloseQueueOnDrop {
    fn drop(&mut self) {
        self.0.close_and_drop_commands();
    }
}

fn store_closed_error() -> Error {
    Error::new(ErrorKind::Unavailable, "the store was closed before the step was taken")
}
