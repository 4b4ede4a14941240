//! Collects statistics of the requests of a store, and opens a span for each.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Result;
use tidegate_core::request_stats::{
    FallbackReason, REQUEST_DURATION_BUCKETS_SECS, RequestCount, RequestPath, RequestStats,
    RequestTimes,
};
use tracing::{Instrument as _, Span, field};

/// The statistics of one store. Held for a few instructions for each request.
#[derive(Debug, Default)]
pub(crate) struct RequestRecorder(Mutex<RecordedRequests>);

#[derive(Debug, Default)]
struct RecordedRequests {
    counts: BTreeMap<(&'static str, RequestPath, Option<FallbackReason>), u64>,
    times: BTreeMap<(&'static str, RequestPath), DurationHistogram>,
}

#[derive(Debug, Default)]
struct DurationHistogram {
    buckets: [u64; REQUEST_DURATION_BUCKETS_SECS.len() + 1],
    total: Duration,
}

impl RequestRecorder {
    /// Adds one request.
    pub(crate) fn record(
        &self,
        verb: &'static str,
        path: RequestPath,
        reason: Option<FallbackReason>,
        took: Duration,
    ) {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *collected.counts.entry((verb, path, reason)).or_default() += 1;
        let times = collected.times.entry((verb, path)).or_default();
        let seconds = took.as_secs_f64();
        times.buckets[REQUEST_DURATION_BUCKETS_SECS.partition_point(|bound| *bound < seconds)] += 1;
        times.total += took;
    }

    /// Runs a request of a store that has only the general path.
    pub(crate) async fn run_general<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let began_at = now();
        let answer = request.instrument(general_request_span(verb)).await;
        self.record(verb, RequestPath::General, None, now() - began_at);
        answer
    }

    /// Returns the statistics so far.
    pub(crate) fn stats(&self) -> RequestStats {
        let collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count =
            |(key, requests): (&(&'static str, RequestPath, Option<FallbackReason>), &u64)| {
                RequestCount { verb: key.0, path: key.1, reason: key.2, requests: *requests }
            };
        let times = |((verb, path), times): (&(&'static str, RequestPath), &DurationHistogram)| {
            RequestTimes { verb, path: *path, buckets: times.buckets, total: times.total }
        };
        RequestStats {
            counts: collected.counts.iter().map(count).collect(),
            times: collected.times.iter().map(times).collect(),
        }
    }
}

/// Opens the span of a request. It has no payloads and no values of parameters, only names and numbers.
pub(crate) fn request_span(verb: &'static str) -> Span {
    tracing::debug_span!(
        target: "tidegate_store::request",
        "store request",
        verb,
        path = field::Empty,
        reason = field::Empty,
        rows = field::Empty,
        round_trips = field::Empty,
        retries = field::Empty,
    )
}

/// Opens the span of a request of a store that has only the general path, and no round trips.
pub(crate) fn general_request_span(verb: &'static str) -> Span {
    let span = request_span(verb);
    span.record("path", RequestPath::General.as_str());
    span
}

/// Reads the monotonic clock for measuring requests and for waits towards the server.
#[expect(clippy::disallowed_methods, reason = "monotonic; no rule of the store depends on it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorder_counts_by_verb_path_and_reason() {
        let requests = RequestRecorder::default();
        let reason = Some(FallbackReason::NewLimit);
        requests.record("claim", RequestPath::Fast, None, Duration::from_micros(400));
        requests.record("claim", RequestPath::General, reason, Duration::from_millis(2));
        requests.record("claim", RequestPath::General, None, Duration::from_secs(60));
        let stats = requests.stats();
        let counts: Vec<_> = stats.counts.iter().map(|c| (c.path, c.reason, c.requests)).collect();
        let expected = [
            (RequestPath::Fast, None, 1),
            (RequestPath::General, None, 1),
            (RequestPath::General, reason, 1),
        ];
        assert_eq!(counts, expected);
        assert_eq!(stats.times.len(), 2);
        assert_eq!(stats.times[0].buckets[0], 1);
        assert_eq!((stats.times[1].buckets[2], stats.times[1].buckets[14]), (1, 1));
        assert_eq!(stats.times[1].total, Duration::from_millis(60_002));
    }
}
