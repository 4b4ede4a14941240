//! What callers hand to a thread that owns a connection.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Error, ErrorKind, Result};
use tokio::sync::{Semaphore, oneshot};

use super::tables::Transaction;

/// Commands that may wait; whoever brings one more waits for room.
const WAITING_MAX: usize = 10_000;

/// One caller's step.
pub(super) trait Command: Send {
    /// Takes the step. An error leaves it to the caller to undo what was written.
    fn run(&mut self, tx: &mut Transaction<'_, '_>) -> Result<()>;
    /// Tells the caller: the outcome, or the error that undid it.
    fn reply(self: Box<Self>, failed: Option<Error>);
    /// Whether the caller has gone away.
    fn is_abandoned(&self) -> bool;
    /// How many tasks it is about.
    fn size(&self) -> usize;
}

struct Call<F, T> {
    run: Option<F>,
    outcome: Option<T>,
    size: usize,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Command for Call<F, T>
where
    F: FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Transaction<'_, '_>) -> Result<()> {
        let run = self.run.take().ok_or_else(stopped)?;
        self.outcome = Some(run(tx)?);
        Ok(())
    }

    fn reply(self: Box<Self>, failed: Option<Error>) {
        let outcome = match (failed, self.outcome) {
            (Some(error), _) => Err(error),
            (None, Some(outcome)) => Ok(outcome),
            (None, None) => Err(stopped()),
        };
        // A caller that has gone away is told nothing.
        let _ = self.reply.send(outcome);
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn size(&self) -> usize {
        self.size
    }
}

/// What a thread woke up for.
pub(super) enum Woken {
    /// There are commands.
    Commands,
    /// Nothing came for a while and somebody waits for news.
    Watch,
    /// Nobody will bring a command any more.
    Closed,
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Box<dyn Command>>,
    watchers: usize,
    closed: bool,
}

/// The commands that wait for a thread.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    room: Semaphore,
}

impl Queue {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            wake: Condvar::new(),
            room: Semaphore::new(WAITING_MAX),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a step taken by the thread and waits for its outcome.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        size: usize,
        run: impl FnOnce(&mut Transaction<'_, '_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, outcome) = oneshot::channel();
        self.room.acquire().await.map_err(|_| stopped())?.forget();
        self.push(Box::new(Call { run: Some(run), outcome: None, size, reply }))?;
        outcome.await.unwrap_or_else(|_| Err(stopped()))
    }

    fn push(&self, command: Box<dyn Command>) -> Result<()> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(stopped());
        }
        waiting.commands.push_back(command);
        drop(waiting);
        self.wake.notify_one();
        Ok(())
    }

    /// Waits for commands; for at most `watch_every` while somebody waits for news.
    pub(super) fn wait(&self, watch_every: Duration) -> Woken {
        let mut waiting = self.lock();
        loop {
            if !waiting.commands.is_empty() {
                return Woken::Commands;
            }
            if waiting.closed {
                return Woken::Closed;
            }
            if waiting.watchers == 0 {
                waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (guard, timeout) = self
                .wake
                .wait_timeout(waiting, watch_every)
                .unwrap_or_else(PoisonError::into_inner);
            waiting = guard;
            if timeout.timed_out() && waiting.commands.is_empty() {
                return Woken::Watch;
            }
        }
    }

    /// Takes the first commands, at least one if there is any: a bounded number about a bounded
    /// number of tasks.
    pub(super) fn take(&self, commands_max: usize, tasks_max: usize) -> VecDeque<Box<dyn Command>> {
        let mut waiting = self.lock();
        let mut taken = VecDeque::new();
        let mut tasks = 0;
        while taken.len() < commands_max
            && let Some(next) = waiting.commands.front()
            && (taken.is_empty() || tasks + next.size() <= tasks_max)
        {
            tasks += next.size();
            taken.extend(waiting.commands.pop_front());
        }
        drop(waiting);
        self.room.add_permits(taken.len());
        taken
    }

    /// Counts somebody who waits for news, until the guard is dropped.
    pub(super) fn watch(self: &Arc<Self>) -> Watching {
        self.lock().watchers += 1;
        self.wake.notify_one();
        Watching(self.clone())
    }

    /// Lets the threads end once they have done what waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Ends a queue whose thread is gone: those who wait are told so.
    pub(super) fn abandon(&self) {
        self.close();
        self.room.close();
        self.lock().commands.clear();
    }
}

/// Somebody waits for news.
pub(super) struct Watching(Arc<Queue>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.lock().watchers -= 1;
    }
}

/// Abandons a queue when its thread ends, however it ends.
pub(super) struct Abandon(pub(super) Arc<Queue>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "the store was closed before the step was taken")
}
