//! Calls an HTTP server.
//!
//! A task names whom it calls, and whoever submits it may not be trusted. So nobody is called
//! whom the worker does not allow, what a name resolves to is checked, and the connection goes to
//! the address that was checked.

mod address;
mod allowed_hosts;
mod client;
mod payload;
mod redirect;
#[cfg(test)]
mod tests;

use std::time::Duration;

use hyper::header::{DATE, HeaderMap, RETRY_AFTER};
use serde::Serialize;
use tidegate_engine::{Context, Failure, time};

pub(crate) use allowed_hosts::AllowedHosts;
pub(crate) use client::HttpClient;
pub(crate) use payload::Payload;

use client::HttpResponse;
use payload::Request;

/// No server makes a task wait longer, and none makes it call again at once.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// The result of a task.
#[derive(Debug, Serialize)]
pub(crate) struct CallResult {
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
    caller: &HttpClient,
    server: Option<&str>,
) -> Result<CallResult, Failure> {
    tokio::select! {
        outcome = call_server(&payload, caller, server) => outcome,
        () = context.cancelled() => Err(Failure::cancelled()),
    }
}

async fn call_server(
    payload: &Payload,
    caller: &HttpClient,
    server: Option<&str>,
) -> Result<CallResult, Failure> {
    let request = payload.request(server).map_err(Failure::fatal)?;
    let limit = Duration::from_millis(payload.timeout_ms);
    let what = describe_request(&request);
    tokio::select! {
        answer = redirect::follow(caller, request.clone()) => to_result(&request, &what, answer),
        () = time::sleep(limit) => {
            Err(Failure::retryable(format!("{what}: no answer within {limit:?}")))
        }
    }
}

/// The call for people. A query may hold a secret and is left out.
fn describe_request(request: &Request) -> String {
    let mut url = request.url.clone();
    url.set_query(None);
    url.set_fragment(None);
    format!("{} {url}", request.method)
}

fn to_result(
    request: &Request,
    what: &str,
    answer: Result<HttpResponse, client::Error>,
) -> Result<CallResult, Failure> {
    let answer = answer.map_err(|error| match error {
        client::Error::Refused(why) => Failure::fatal(format!("{what}: {why}")),
        client::Error::Unreachable(why) => Failure::retryable(format!("{what}: {why}")),
    })?;
    if !request.expects(answer.status) {
        return Err(unexpected_status(request, what, &answer));
    }
    Ok(CallResult {
        status: answer.status,
        body: String::from_utf8_lossy(&answer.body).into_owned(),
        truncated: answer.is_truncated,
    })
}

fn unexpected_status(request: &Request, what: &str, answer: &HttpResponse) -> Failure {
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
            (parse_http_date(text)? - parse_http_date(now)?).try_into().ok()?
        }
    };
    Some(Duration::from_secs(seconds).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX))
}

fn parse_http_date(text: &str) -> Option<i64> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    Some(time.as_second())
}
