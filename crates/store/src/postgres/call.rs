//! The context of one call of the store: which verb it runs, whether its caller still waits for the
//! answer, and the deadline of each of its transactions.
//!
//! A verb runs as a tokio task on the runtime of the store (see `Postgres::detached`). Its
//! context is a task-local value, so the transaction code can read it without a parameter in
//! every function in between.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::request_stats::{FallbackReason, RequestPath};
use tidegate_core::{Error, Heartbeat, Millis};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::error::TxError;
use super::timeouts::Timeouts;
use crate::requests::{self, RequestRecorder};

tokio::task_local! {
    static CURRENT_CALL: Arc<Call>;
    /// Set for the steps of a call that follow a commit.
    static IS_BEHIND_COMMIT: ();
}

/// What a call of the store does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Admit,
    Cancel,
    Claim,
    Connect,
    Heartbeat,
    Finish,
    Migrate,
    Pause,
    Prune,
    /// A read of a whole table.
    Read,
    /// A read of single tasks by an index.
    ReadTasks,
    Reap,
    Register,
    Release,
    Repair,
    Retry,
    SetJob,
    SetLimit,
    Submit,
}

impl Verb {
    /// Returns how long one transaction of this verb may take.
    fn transaction_timeout(self, timeouts: &Timeouts) -> Duration {
        match self {
            Self::Migrate | Self::Prune | Self::Repair => timeouts.maintenance,
            Self::Read => timeouts.read,
            Self::Heartbeat => timeouts.heartbeat,
            _ => timeouts.request,
        }
    }

    /// Returns the setting that sets this time.
    fn timeout_setting(self) -> &'static str {
        match self {
            Self::Migrate | Self::Prune | Self::Repair => "postgres.maintenance_timeout_ms",
            Self::Read => "postgres.read_timeout_ms",
            Self::Heartbeat => "postgres.heartbeat_timeout_ms",
            _ => "postgres.request_timeout_ms",
        }
    }

    /// Returns the name of the verb in metrics and spans.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Cancel => "cancel",
            Self::Claim => "claim",
            Self::Connect => "connect",
            Self::Heartbeat => "heartbeat",
            Self::Finish => "finish",
            Self::Migrate => "migrate",
            Self::Pause => "pause",
            Self::Prune => "prune",
            Self::Read | Self::ReadTasks => "read",
            Self::Reap => "reap",
            Self::Register => "register",
            Self::Release => "release",
            Self::Repair => "repair",
            Self::Retry => "retry",
            Self::SetJob => "set_job",
            Self::SetLimit => "set_limit",
            Self::Submit => "submit",
        }
    }

    /// Returns whether this verb may take longer than the `statement_timeout` of its connection.
    fn is_maintenance(self) -> bool {
        matches!(self, Self::Migrate | Self::Prune | Self::Repair)
    }
}

/// One call of the store.
#[derive(Debug)]
pub(super) struct Call {
    verb: Verb,
    /// Applies to each transaction separately.
    transaction_timeout: Duration,
    /// What sets this time.
    timeout_setting: &'static str,
    is_abandoned: AtomicBool,
    abandoned: Notify,
    has_missed_deadline: AtomicBool,
    retries: AtomicU32,
    round_trips: AtomicU32,
    rows: AtomicU64,
    route: Mutex<RequestRoute>,
}

/// The path of a request, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
struct RequestRoute {
    path: Option<RequestPath>,
    reason: Option<FallbackReason>,
}

impl Call {
    pub(super) fn new(verb: Verb, timeouts: &Timeouts) -> Arc<Self> {
        let setting = verb.timeout_setting();
        Self::with_timeout(verb, verb.transaction_timeout(timeouts), setting)
    }

    /// Returns the context of a heartbeat. Its timeout is at most a third of the lease, so that the worker can
    /// retry before the lease expires.
    pub(super) fn for_heartbeat(heartbeat: &Heartbeat, timeouts: &Timeouts) -> Arc<Self> {
        let timeout = Verb::Heartbeat.transaction_timeout(timeouts);
        let part_of_lease = duration_from_millis(heartbeat.lease_ms) / 3;
        if !heartbeat.is_deregistration() && part_of_lease < timeout {
            return Self::with_timeout(Verb::Heartbeat, part_of_lease, "a third of the lease");
        }
        Self::with_timeout(Verb::Heartbeat, timeout, Verb::Heartbeat.timeout_setting())
    }

    fn with_timeout(
        verb: Verb,
        transaction_timeout: Duration,
        timeout_setting: &'static str,
    ) -> Arc<Self> {
        Arc::new(Self {
            verb,
            transaction_timeout,
            timeout_setting,
            is_abandoned: AtomicBool::new(false),
            abandoned: Notify::new(),
            has_missed_deadline: AtomicBool::new(false),
            retries: AtomicU32::new(0),
            round_trips: AtomicU32::new(0),
            rows: AtomicU64::new(0),
            route: Mutex::default(),
        })
    }

    /// Runs a background step in the context of this call. The step continues after the caller is dropped,
    /// and it is not recorded as a request.
    pub(super) fn run_background<F: Future>(
        self: Arc<Self>,
        step: F,
    ) -> impl Future<Output = F::Output> {
        CURRENT_CALL.scope(self, step)
    }

    /// Runs a verb in the context and the span of this call, and records its path and its duration.
    pub(super) async fn run<T>(
        self: Arc<Self>,
        requests: &RequestRecorder,
        verb: impl Future<Output = T>,
    ) -> T {
        let (call, began_at) = (self.clone(), requests::now());
        let span = requests::request_span(self.verb.name());
        let answer = CURRENT_CALL.scope(self, verb).instrument(span.clone()).await;
        call.record(requests, &span, requests::now() - began_at);
        answer
    }

    fn record(&self, requests: &RequestRecorder, span: &Span, took: Duration) {
        let RequestRoute { path, reason } = *self.lock_route();
        let path = path.unwrap_or(RequestPath::General);
        requests.record(self.verb.name(), path, reason, took);
        span.record("path", path.as_str());
        if let Some(reason) = reason {
            span.record("reason", reason.as_str());
        }
        span.record("rows", self.rows.load(Ordering::Relaxed));
        span.record("round_trips", self.round_trips.load(Ordering::Relaxed));
        span.record("retries", self.retries.load(Ordering::Relaxed));
    }

    /// Logs the error of a call whose caller is gone and does not get it.
    pub(super) fn log_if_abandoned(&self, error: &Error) {
        if self.is_abandoned.load(Ordering::Acquire) {
            tracing::debug!(verb = self.verb.name(), %error, "a call failed whose caller is gone");
        }
    }

    fn lock_route(&self) -> MutexGuard<'_, RequestRoute> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the caller has given the call up.
    async fn wait_until_abandoned(&self) {
        let abandoned = self.abandoned.notified();
        if !self.is_abandoned.load(Ordering::Acquire) {
            abandoned.await;
        }
    }
}

/// Held by the caller while it waits. Dropping it marks the call as abandoned.
#[derive(Debug)]
pub(super) struct CallerGuard(pub(super) Arc<Call>);

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.0.is_abandoned.store(true, Ordering::Release);
        self.0.abandoned.notify_waiters();
    }
}

fn current_call() -> Option<Arc<Call>> {
    CURRENT_CALL.try_with(Arc::clone).ok()
}

/// Waits for a connection on behalf of the current call. Fails as soon as its caller is gone: a
/// transaction that begins later would do work that no caller expects, such as a claim for a worker
/// that has given up, or the renewal of leases whose handlers were stopped.
pub(super) async fn unless_abandoned<T>(
    connection: impl Future<Output = Result<T, TxError>>,
) -> Result<T, TxError> {
    let may_be_abandoned = IS_BEHIND_COMMIT.try_with(|()| ()).is_err();
    let Some(call) = current_call().filter(|_| may_be_abandoned) else {
        return connection.await;
    };
    tokio::select! {
        biased;
        () = call.wait_until_abandoned() => Err(TxError::Abandoned),
        connection = connection => connection,
    }
}

/// Runs a step of the current call that follows a commit. It continues after the caller is dropped, because the
/// commit relies on it.
pub(super) async fn behind_commit<T>(step: impl Future<Output = T>) -> T {
    IS_BEHIND_COMMIT.scope((), step).await
}

/// Runs a transaction, or a statement outside a transaction, within the deadline of the current call. After
/// a missed deadline it is unknown whether the server has committed.
pub(super) async fn within_deadline<T>(
    timeouts: &Timeouts,
    transaction: impl Future<Output = Result<T, TxError>>,
) -> Result<T, TxError> {
    let (deadline, setting) = current_call().map_or_else(
        || (timeouts.request, Verb::Connect.timeout_setting()),
        |call| (call.transaction_timeout, call.timeout_setting),
    );
    let outcome = tokio::time::timeout(deadline, transaction).await;
    outcome.unwrap_or_else(|_| {
        if let Some(call) = current_call() {
            call.has_missed_deadline.store(true, Ordering::Relaxed);
        }
        Err(TxError::DeadlineExceeded(deadline, setting))
    })
}

/// Returns whether a transaction of the current call has missed its deadline since this was last asked.
pub(super) fn take_missed_deadline() -> bool {
    current_call().is_some_and(|call| call.has_missed_deadline.swap(false, Ordering::Relaxed))
}

/// Returns when half of the transaction timeout of the current call has passed, counted from now.
pub(super) fn half_of_deadline() -> Instant {
    let half = current_call().map(|call| call.transaction_timeout / 2).unwrap_or_default();
    Instant::from_std(requests::now()) + half
}

/// Returns the `statement_timeout` that a transaction of the current call has to set for itself.
pub(super) fn maintenance_statement_timeout_ms() -> Option<u64> {
    let call = current_call().filter(|call| call.verb.is_maintenance())?;
    Some(super::timeouts::statement_timeout_ms(call.transaction_timeout))
}

/// Records a path of the current call that is not the general one. Verbs record [`RequestPath::Fast`] before
/// they take it, so that requests that fail are counted too, and [`RequestPath::HandOff`] after it succeeded.
/// Ignored after a fallback, and ignored for a verb that runs inside another one, such as the claim of a finish.
pub(super) fn record_path(verb: Verb, path: RequestPath) {
    if let Some(call) = current_call().filter(|call| call.verb == verb) {
        let mut route = call.lock_route();
        if route.reason.is_none() {
            route.path = Some(path);
        }
    }
}

/// Records why the current call takes the general path. Only the first reason is kept; later ones are
/// consequences. Ignored for a verb that runs inside another one.
pub(super) fn record_fallback(verb: Verb, reason: FallbackReason) {
    if let Some(call) = current_call().filter(|call| call.verb == verb) {
        let mut route = call.lock_route();
        if route.reason.is_none() {
            *route = RequestRoute { path: Some(RequestPath::General), reason: Some(reason) };
        }
    }
}

/// Counts a round trip of the current call.
pub(super) fn count_round_trip() {
    if let Some(call) = current_call() {
        call.round_trips.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts rows that the server returned to the current call, or changed for it.
pub(super) fn count_rows(rows: u64) {
    if let Some(call) = current_call() {
        call.rows.fetch_add(rows, Ordering::Relaxed);
    }
}

/// Counts one more try of a transaction of the current call.
pub(super) fn count_retry() {
    if let Some(call) = current_call() {
        call.retries.fetch_add(1, Ordering::Relaxed);
    }
}

fn duration_from_millis(ms: Millis) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}
