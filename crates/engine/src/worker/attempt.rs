//! The run of one attempt: its handler, watched over from enter to leave.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tidegate_core::Outcome;

use super::Shared;
use super::outbox::Done;
use super::running::Running;
use crate::{Context, Failure, time};

/// Runs a handler to its end, however it ends. Each attempt is a tokio task of its own: a
/// handler that blocks or panics harms no other.
pub(crate) async fn run(shared: Arc<Shared>, running: Arc<Running>, payload: Vec<u8>) {
    // Declared first, so dropped last: when it reports, the handler's future is gone.
    let mut report = Report { shared, running, outcome: None };
    report.enter();
    let outcome = watch(&report.shared, &report.running, payload).await;
    report.outcome = Some(outcome);
}

/// Lets the handler run until it returns, panics, is aborted or has had its time.
async fn watch(shared: &Shared, running: &Arc<Running>, payload: Vec<u8>) -> Outcome {
    let handler = &shared.handlers[running.handler];
    let context = Context::new(running.clone());
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
    outcome: Option<Outcome>,
}

impl Report {
    fn enter(&self) {
        self.shared.controller.begins(self.running.started_at);
        if let Some(observer) = &self.shared.observer {
            observer.enter(&self.running.attempt);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(observer) = &self.shared.observer {
            observer.leave(&self.running.attempt);
        }
        let outcome = self.outcome.take().unwrap_or_else(|| panicked(&"as it was dropped"));
        let running = self.running.clone();
        self.shared.outbox.put(Done { running, outcome, entered: true, resent: false });
    }
}
