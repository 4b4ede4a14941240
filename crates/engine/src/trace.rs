//! Traces across submit and run, built with the feature `otel`: whoever submits writes down where it is,
//! and the spans of the attempts follow from there, in whatever process they run.

use tidegate_core::{Attempt, Outcome};
use tracing::Span;

/// The span of a submit.
pub(crate) fn submit_span(tasks: usize) -> Span {
    #[cfg(feature = "otel")]
    return tracing::info_span!("submit", otel.kind = "producer", tasks);
    #[cfg(not(feature = "otel"))]
    {
        let _ = tasks;
        Span::none()
    }
}

/// Where a span is, as a W3C `traceparent`; none where nobody traces.
pub(crate) fn traceparent_of(span: &Span) -> Option<String> {
    #[cfg(feature = "otel")]
    return otel::traceparent_of(span);
    #[cfg(not(feature = "otel"))]
    {
        let _ = span;
        None
    }
}

/// The span of an attempt; the handler's own are inside of it.
pub(crate) fn attempt_span(attempt: &Attempt) -> Span {
    #[cfg(feature = "otel")]
    return otel::attempt_span(attempt);
    #[cfg(not(feature = "otel"))]
    {
        let _ = attempt;
        Span::none()
    }
}

/// Notes how an attempt ended.
pub(crate) fn record_outcome(span: &Span, outcome: &Outcome) {
    let outcome_name = match outcome {
        Outcome::Completed(_) => "completed",
        Outcome::Failed { .. } => "failed",
        Outcome::Snoozed { .. } => "snoozed",
        Outcome::Released => "released",
        Outcome::Cancelled => "cancelled",
    };
    span.record("outcome", outcome_name);
    if let Outcome::Failed { .. } = outcome {
        span.record("otel.status_code", "error");
    }
}

#[cfg(feature = "otel")]
mod otel {
    use std::collections::HashMap;

    use opentelemetry::propagation::TextMapPropagator as _;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use tidegate_core::Attempt;
    use tracing::Span;
    use tracing::field::Empty;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    const TRACEPARENT_KEY: &str = "traceparent";

    pub(super) fn traceparent_of(span: &Span) -> Option<String> {
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
        carrier.remove(TRACEPARENT_KEY)
    }

    pub(super) fn attempt_span(attempt: &Attempt) -> Span {
        let span = tracing::info_span!(
            "run",
            otel.kind = "consumer",
            otel.status_code = Empty,
            outcome = Empty,
            kind = &*attempt.kind,
            queue = &*attempt.queue,
            job = attempt.job.as_deref(),
            task = attempt.task.0,
            attempt = attempt.number,
        );
        if let Some(trace) = &attempt.trace {
            let carrier = HashMap::from([(TRACEPARENT_KEY.to_owned(), trace.to_string())]);
            // It fails where nobody traces; then there is nothing to follow from.
            let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
        }
        span
    }
}
