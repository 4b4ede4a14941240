//! Calls an HTTP server on this machine.
//!
//! Plain HTTP/1.1 over loopback and nothing else: no TLS, no redirects, no connection kept.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_engine::{Context, Failure, time};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Bytes read of an answer; the rest is left.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// What to call, and what to expect.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Payload {
    /// The whole address, `http://HOST[:PORT]/PATH`.
    url: Option<String>,
    /// A path on the server that the run file brings along, instead of `url`.
    path: Option<String>,
    #[serde(default = "get")]
    method: String,
    /// Sent as it is.
    #[serde(default)]
    body: String,
    /// The status that counts as success. Default: 200.
    #[serde(default = "ok")]
    expect: u16,
    /// How long the call may take. Default: 10 s.
    #[serde(default = "ten_seconds")]
    timeout_ms: u64,
}

fn get() -> String {
    "GET".to_owned()
}

fn ok() -> u16 {
    200
}

fn ten_seconds() -> u64 {
    10_000
}

/// What came back.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    status: u16,
    bytes: usize,
}

/// Where to connect, and what to ask for.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    authority: String,
    address: String,
    path: String,
}

impl Payload {
    /// Checks everything that can be checked without calling.
    pub(crate) fn check(&self, has_server: bool) -> Result<(), String> {
        self.target(has_server.then_some("127.0.0.1:80")).map(drop)?;
        if self.method.is_empty() || !self.method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(format!("`method` {:?} is not a method such as GET", self.method));
        }
        Ok(())
    }

    fn target(&self, server: Option<&str>) -> Result<Target, String> {
        match (&self.url, &self.path, server) {
            (Some(url), None, _) => target(url),
            (None, Some(path), Some(server)) => target(&format!("http://{server}{path}")),
            (None, Some(_), None) => Err("`path` alone needs a [server] in the run file; \
                                          write the whole `url`"
                .to_owned()),
            _ => Err("kind `http` needs either `url` or `path`".to_owned()),
        }
    }
}

/// Takes an address apart. Only this machine can be called.
fn target(url: &str) -> Result<Target, String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| format!("{url:?} does not begin with http://, the only scheme known"))?;
    if let Some(bad) = rest.chars().find(|c| c.is_control() || c.is_whitespace()) {
        return Err(format!("{url:?} contains {bad:?}; write it as %{:02X}", bad as u32));
    }
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (authority, "80"),
    };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if !is_loopback || !is_port {
        return Err(format!("{url:?} is not on this machine; kind `http` calls 127.0.0.1 only"));
    }
    let (authority, path) = (authority.to_owned(), path.to_owned());
    Ok(Target { authority, address: format!("{host}:{port}"), path })
}

/// Calls, and judges the answer. `server` is the address of the server beside the worker.
pub(crate) async fn run(
    _: Context,
    payload: Payload,
    server: Option<&str>,
) -> Result<Answer, Failure> {
    let target = payload.target(server).map_err(Failure::fatal)?;
    let limit = Duration::from_millis(payload.timeout_ms);
    let answer = tokio::select! {
        answer = call(&target, &payload) => answer,
        () = time::sleep(limit) => Err(io::ErrorKind::TimedOut.into()),
    };
    let answer = answer
        .map_err(|error| Failure::retryable(format!("call {}: {error}", target.authority)))?;
    if answer.status == payload.expect {
        return Ok(answer);
    }
    let text = format!(
        "{} {} answered {}, expected {}",
        payload.method, target.path, answer.status, payload.expect
    );
    // The server may think otherwise later where it says so itself.
    Err(match answer.status {
        408 | 425 | 429 | 500..=599 => Failure::retryable(text),
        _ => Failure::fatal(text),
    })
}

async fn call(target: &Target, payload: &Payload) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(&target.address).await?;
    stream.set_nodelay(true)?;
    let request = format!(
        "{} {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{}",
        payload.method,
        target.path,
        target.authority,
        payload.body.len(),
        payload.body
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let status = status(&answer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP/1"))?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
    Ok(Answer { status, bytes: answer.len() - head })
}

/// The status of an answer: `HTTP/1.1 200 OK`.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?.strip_prefix("HTTP/1.")?;
    line.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_apart() {
        let parts = |url: &str| target(url).map(|target| (target.address, target.path));
        let good = |address: &str, path: &str| Ok((address.to_owned(), path.to_owned()));
        assert_eq!(parts("http://127.0.0.1:81/a?b"), good("127.0.0.1:81", "/a?b"));
        assert_eq!(parts("http://localhost"), good("localhost:80", "/"));
        assert_eq!(parts("http://[::1]:81"), good("[::1]:81", "/"));
        assert_eq!(parts("http://[::1]/"), good("[::1]:80", "/"));
        for bad in ["http://10.0.0.1/", "http://127.0.0.1:x/", "http://", "ftp://127.0.0.1/"] {
            target(bad).unwrap_err();
        }
    }

    #[test]
    fn the_status_is_in_the_first_line() {
        assert_eq!(status(b"HTTP/1.1 503 No\r\n\r\n"), Some(503));
        assert_eq!(status(b"SSH-2.0\r\n"), None);
        assert_eq!(status(b""), None);
    }
}
