//! The kinds the binary can run by itself.

pub(crate) mod exec;
mod http;
mod noop;
mod permissions;
mod sleep;

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_core::Kind;
use tidegate_engine::{KindConfig, Metrics, WorkerBuilder};

pub(crate) use permissions::{PermissionArgs, Permissions, permission_flag};

use crate::suggest::suggest;
use http::HttpClient;

/// Their names.
pub(crate) const NAMES: [&str; 4] = ["noop", "sleep", "http", "exec"];

/// Their settings, every one at its default.
pub(crate) fn default_kinds() -> Vec<Kind> {
    NAMES.into_iter().map(Kind::new).collect()
}

/// What the handlers of one worker have in common.
#[derive(Debug, Clone)]
pub(crate) struct Handlers {
    /// The server beside the worker, for `http` tasks that name a path alone.
    server: Option<String>,
    caller: Arc<HttpClient>,
    exec: Arc<exec::AllowedCommands>,
}

impl Handlers {
    /// `metrics` count the calls of `http`.
    pub(crate) fn new(
        permissions: Permissions,
        server: Option<SocketAddr>,
        metrics: Option<Metrics>,
    ) -> Self {
        let http = match server {
            Some(server) => permissions.http.with_address(server),
            None => permissions.http,
        };
        Self {
            server: server.map(|server| server.to_string()),
            caller: Arc::new(HttpClient::new(http).with_metrics(metrics)),
            exec: Arc::new(permissions.exec),
        }
    }

    /// Adds the handler of a built-in kind to a worker.
    pub(crate) fn register_handler(
        &self,
        builder: WorkerBuilder,
        kind: KindConfig,
        name: &str,
    ) -> WorkerBuilder {
        let Self { server, caller, exec } = self.clone();
        match name {
            "noop" => builder.handle(kind, noop::run),
            "sleep" => builder.handle(kind, sleep::run),
            "http" => builder.handle(kind, move |context, payload| {
                let (server, caller) = (server.clone(), caller.clone());
                async move { http::run(context, payload, &caller, server.as_deref()).await }
            }),
            _ => builder.handle(kind, move |context, payload| {
                let exec = exec.clone();
                async move { exec::run(context, payload, &exec).await }
            }),
        }
    }
}

/// Checks that a payload fits its kind. `has_server` says that a server runs beside the worker,
/// so that `http` may name a path alone. Other kinds take whatever they like.
pub(crate) fn check_payload(kind: &str, payload: &[u8], has_server: bool) -> Result<(), String> {
    match kind {
        "noop" => parse_payload::<noop::Payload>(kind, payload).map(drop),
        "sleep" => parse_payload::<sleep::Payload>(kind, payload).map(drop),
        "http" => parse_payload::<http::Payload>(kind, payload)?.check(has_server),
        "exec" => parse_payload::<exec::Payload>(kind, payload)?.check(),
        _ => Ok(()),
    }
}

fn parse_payload<P: serde::de::DeserializeOwned>(kind: &str, payload: &[u8]) -> Result<P, String> {
    serde_json::from_slice(payload).map_err(|error| {
        let error = error.to_string();
        let hint = match suggested_key(&error) {
            Some(key) => format!("; did you mean `{key}`?"),
            None => format!("; one that does: {}", example_payload(kind)),
        };
        format!("the payload does not fit kind `{kind}`: {error}{hint}")
    })
}

/// A payload that fits a kind.
fn example_payload(kind: &str) -> &'static str {
    match kind {
        "sleep" => r#"{"ms": 500}"#,
        "http" => r#"{"url": "https://api.example.com/orders/7"}"#,
        "exec" => r#"{"argv": ["echo", "hello"]}"#,
        _ => "null",
    }
}

/// The key that a mistyped one may mean. The error names the key, and behind it those it knows.
fn suggested_key(error: &str) -> Option<&str> {
    let mut words = error.strip_prefix("unknown field `")?.split('`');
    let word = words.next()?;
    let known: Vec<&str> = words.skip(1).step_by(2).collect();
    suggest(word, &known)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn payload_must_match_its_kind() {
        check_payload("noop", b"null", false).unwrap();
        check_payload("sleep", br#"{"ms":5}"#, false).unwrap();
        check_payload("http", br#"{"url":"http://127.0.0.1:80/x"}"#, false).unwrap();
        check_payload("http", br#"{"path":"/x"}"#, true).unwrap();
        check_payload("exec", br#"{"argv":["ls","-l"]}"#, false).unwrap();
        check_payload("other", b"[1,2]", false).unwrap();
        for (kind, payload) in [
            ("sleep", "null"),
            ("sleep", r#"{"ms":-1}"#),
            ("sleep", r#"{"ms":1,"x":2}"#),
            ("http", "{}"),
            ("http", r#"{"path":"/x"}"#),
            ("http", r#"{"url":"ftp://127.0.0.1/"}"#),
            ("http", "{\"url\":\"http://127.0.0.1/a b\"}"),
            ("exec", "{}"),
            ("exec", r#"{"argv":[]}"#),
            ("exec", r#"{"argv":"ls -l"}"#),
            ("exec", r#"{"argv":["ls"],"env":{"LD_PRELOAD":"x"}}"#),
        ] {
            check_payload(kind, payload.as_bytes(), false).unwrap_err();
        }
    }

    #[test]
    fn mistyped_payload_key_gets_a_suggestion() {
        let error =
            check_payload("http", br#"{"url":"http://a.example","heders":{}}"#, false).unwrap_err();
        assert!(error.contains("`headers`"), "{error}");
        assert_snapshot!(
            error,
            @"the payload does not fit kind `http`: unknown field `heders`, expected one of `url`, `path`, `method`, `headers`, `body`, `expect`, `redirects`, `timeout_ms` at line 1 column 34; did you mean `headers`?"
        );
    }
}
