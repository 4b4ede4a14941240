//! Calls an HTTP server.
//!
//! A task names whom it calls, and whoever submits it may not be trusted. So nobody is called
//! whom the worker does not allow, what a name resolves to is checked, and the connection goes to
//! the address that was checked.

mod address;
mod allow;
mod call;
mod payload;
mod redirect;
#[cfg(test)]
mod tests;

use std::time::Duration;

use hyper::header::{DATE, HeaderMap, RETRY_AFTER};
use serde::Serialize;
use tidegate_engine::{Context, Failure, time};

pub(crate) use allow::Allowed;
pub(crate) use call::Caller;
pub(crate) use payload::Payload;

use call::Answer;
use payload::Request;

/// No server makes a task wait longer, and none makes it call again at once.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// The result of a task.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    status: u16,
    body: String,
    /// There was more of the body than is kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Calls, and judges the answer. `server` is the address of the server beside the worker.
pub(crate) async fn run(
    context: Context,
    payload: Payload,
    caller: &Caller,
    server: Option<&str>,
) -> Result<Outcome, Failure> {
    tokio::select! {
        outcome = answer(&payload, caller, server) => outcome,
        () = context.cancelled() => Err(Failure::cancelled()),
    }
}

async fn answer(
    payload: &Payload,
    caller: &Caller,
    server: Option<&str>,
) -> Result<Outcome, Failure> {
    let request = payload.request(server).map_err(Failure::fatal)?;
    let limit = Duration::from_millis(payload.timeout_ms);
    let what = what(&request);
    tokio::select! {
        answer = redirect::follow(caller, request.clone()) => judge(&request, &what, answer),
        () = time::sleep(limit) => {
            Err(Failure::retryable(format!("{what}: no answer within {limit:?}")))
        }
    }
}

/// The call for people. A query may hold a secret and is left out.
fn what(request: &Request) -> String {
    let mut url = request.url.clone();
    url.set_query(None);
    url.set_fragment(None);
    format!("{} {url}", request.method)
}

fn judge(
    request: &Request,
    what: &str,
    answer: Result<Answer, call::Error>,
) -> Result<Outcome, Failure> {
    let answer = answer.map_err(|error| match error {
        call::Error::Refused(why) => Failure::fatal(format!("{what}: {why}")),
        call::Error::Unreached(why) => Failure::retryable(format!("{what}: {why}")),
    })?;
    if !request.expects(answer.status) {
        return Err(unexpected(request, what, &answer));
    }
    Ok(Outcome {
        status: answer.status,
        body: String::from_utf8_lossy(&answer.body).into_owned(),
        truncated: answer.is_cut,
    })
}

fn unexpected(request: &Request, what: &str, answer: &Answer) -> Failure {
    let mut text = format!("{what} answered {}, expected {}", answer.status, request.expected());
    match answer.status {
        300..=399 if request.redirects == 0 => text.push_str("; `redirects` follows it"),
        300..=399 => text.push_str(&format!("; {} redirects were followed", request.redirects)),
        _ => {}
    }
    // The server may think otherwise later where it says so itself.
    match answer.status {
        429 | 503 => match retry_after(&answer.headers) {
            Some(delay) => Failure::retry_in(text, delay),
            None => Failure::retryable(text),
        },
        408 | 425 | 500..=599 => Failure::retryable(text),
        _ => Failure::fatal(text),
    }
}

/// How long the server asks to be left alone. A date counts from the server's own clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = match text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            let now = headers.get(DATE)?.to_str().ok()?;
            (date(text)? - date(now)?).try_into().ok()?
        }
    };
    Some(Duration::from_secs(seconds).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX))
}

fn date(text: &str) -> Option<i64> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    Some(time.as_second())
}
