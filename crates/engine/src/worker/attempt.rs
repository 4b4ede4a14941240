//! The run of one attempt: its handler, watched over from enter to leave.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidegate_core::Outcome;
use tracing::Instrument as _;

use super::Shared;
use super::outbox::Done;
use super::running::Running;
use crate::{Context, Failure, time, trace};

/// Runs a handler to its end, however it ends. Each attempt is a tokio task of its own: a
/// handler that blocks or panics harms no other.
pub(crate) async fn run(shared: Arc<Shared>, running: Arc<Running>, payload: Vec<u8>) {
    // Declared first, so dropped last: when it reports, the handler's future is gone.
    let mut report = Report { shared, running, entered_at: time::now(), outcome: None };
    report.enter();
    let span = trace::run_span(&report.running.attempt);
    let work = watch(&report.shared, &report.running, payload).instrument(span.clone());
    let outcome = work.await;
    trace::end(&span, &outcome);
    report.outcome = Some(outcome);
}

/// Lets the handler run until it returns, panics, is aborted or has had its time.
async fn watch(shared: &Shared, running: &Arc<Running>, payload: Vec<u8>) -> Outcome {
    let handler = &shared.handlers[running.handler];
    let context = Context::new(running.clone(), shared.store.clone());
    let work = AssertUnwindSafe(async { handler.invoke.call(context, payload).await });
    let timeout = running.attempt.timeout_ms.map(|ms| Duration::from_millis(ms.max(0) as u64));
    tokio::select! {
        biased;
        returned = work.catch_unwind() => match returned {
            Ok(outcome) => running.judged(outcome),
            Err(panic) => panicked(&*panic),
        },
        () = running.aborted() => running.aborted_outcome(),
        timeout = over(timeout) => timed_out(timeout),
    }
}

/// Returns when an attempt has had its time.
async fn over(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            time::sleep(timeout).await;
            timeout
        }
        None => std::future::pending().await,
    }
}

fn timed_out(timeout: Duration) -> Outcome {
    Failure::retryable(format!("timed out after {timeout:?}")).into_outcome()
}

fn panicked(panic: &(dyn Any + Send)) -> Outcome {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::retryable(format!("the handler panicked: {}", text.unwrap_or("no message")))
        .into_outcome()
}

/// Tells that a handler is gone, also if it panicked while it was dropped.
struct Report {
    shared: Arc<Shared>,
    running: Arc<Running>,
    entered_at: Instant,
    outcome: Option<Outcome>,
}

impl Report {
    fn enter(&self) {
        self.shared.controller.begins(self.running.started_at);
        self.shared.observers.iter().for_each(|observer| observer.enter(&self.running.attempt));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let ran = time::now() - self.entered_at;
        for observer in &self.shared.observers {
            observer.leave(&self.running.attempt, ran);
        }
        let outcome = self.outcome.take().unwrap_or_else(|| panicked(&"as it was dropped"));
        let running = self.running.clone();
        self.shared.outbox.put(Done { running, outcome, entered: true, resent: false });
    }
}
