//! The run of one attempt: its handler, watched over from enter to leave.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidegate_core::Outcome;
use tracing::Instrument as _;

use super::WorkerShared;
use super::completion_queue::PendingCompletion;
use super::running_attempt::RunningAttempt;
use crate::{Context, Failure, time, trace};

/// Runs a handler to its end, however it ends. Each attempt is a tokio task of its own: a
/// handler that blocks or panics harms no other.
pub(crate) async fn run(shared: Arc<WorkerShared>, running: Arc<RunningAttempt>, payload: Vec<u8>) {
    // Declared first, so dropped last: when it reports, the handler's future is gone.
    let mut report = CompletionGuard { shared, running, started_at: time::now(), outcome: None };
    report.notify_start();
    let span = trace::attempt_span(&report.running.attempt);
    let work = run_handler(&report.shared, &report.running, payload).instrument(span.clone());
    let outcome = work.await;
    trace::record_outcome(&span, &outcome);
    report.outcome = Some(outcome);
}

/// Lets the handler run until it returns, panics, is aborted or has had its time.
async fn run_handler(
    shared: &WorkerShared,
    running: &Arc<RunningAttempt>,
    payload: Vec<u8>,
) -> Outcome {
    let handler = &shared.handlers[running.handler_index];
    let context = Context::new(running.clone(), shared.store.clone());
    let work = AssertUnwindSafe(async { handler.erased_handler.call(context, payload).await });
    let timeout = running.attempt.timeout_ms.map(|ms| Duration::from_millis(ms.max(0) as u64));
    tokio::select! {
        biased;
        returned = work.catch_unwind() => match returned {
            Ok(outcome) => running.outcome_after_stop(outcome),
            Err(panic) => panic_outcome(&*panic),
        },
        () = running.aborted() => running.aborted_outcome(),
        timeout = wait_for_timeout(timeout) => timeout_outcome(timeout),
    }
}

/// Returns when an attempt has had its time.
async fn wait_for_timeout(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            time::sleep(timeout).await;
            timeout
        }
        None => std::future::pending().await,
    }
}

fn timeout_outcome(timeout: Duration) -> Outcome {
    Failure::retryable(format!("timed out after {timeout:?}")).into_outcome()
}

fn panic_outcome(panic: &(dyn Any + Send)) -> Outcome {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::retryable(format!("the handler panicked: {}", text.unwrap_or("no message")))
        .into_outcome()
}

/// Tells that a handler is gone, also if it panicked while it was dropped.
struct CompletionGuard {
    shared: Arc<WorkerShared>,
    running: Arc<RunningAttempt>,
    started_at: Instant,
    outcome: Option<Outcome>,
}

impl CompletionGuard {
    fn notify_start(&self) {
        self.shared.worker_pool.record_handler_start(self.running.started_at);
        self.shared.observers.iter().for_each(|observer| observer.on_start(&self.running.attempt));
    }
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        let ran = time::now() - self.started_at;
        for observer in &self.shared.observers {
            observer.on_handler_done(&self.running.attempt, ran);
        }
        let outcome = self.outcome.take().unwrap_or_else(|| panic_outcome(&"as it was dropped"));
        let running = self.running.clone();
        self.shared.completion_queue.push(PendingCompletion {
            running,
            outcome,
            has_started: true,
            is_resent: false,
        });
    }
}
