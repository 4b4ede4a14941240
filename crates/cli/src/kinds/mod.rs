//! The kinds the binary can run by itself.

pub(crate) mod http;
mod noop;
mod sleep;

use tidegate_core::Kind;
use tidegate_engine::{Builder, KindOptions};

/// Their names.
pub(crate) const NAMES: [&str; 3] = ["noop", "sleep", "http"];

/// Their settings, every one at its default.
pub(crate) fn settings() -> Vec<Kind> {
    NAMES.into_iter().map(Kind::new).collect()
}

/// Adds the handler of a built-in kind to a worker.
pub(crate) fn handle(
    builder: Builder,
    kind: KindOptions,
    name: &str,
    server: Option<String>,
) -> Builder {
    match name {
        "noop" => builder.handle(kind, noop::run),
        "sleep" => builder.handle(kind, sleep::run),
        _ => builder.handle(kind, move |context, payload| {
            let server = server.clone();
            async move { http::run(context, payload, server.as_deref()).await }
        }),
    }
}

/// Checks that a payload fits its kind. `has_server` says that a server runs beside the worker,
/// so that `http` may name a path alone. Other kinds take whatever they like.
pub(crate) fn check(kind: &str, payload: &[u8], has_server: bool) -> Result<(), String> {
    match kind {
        "noop" => fits::<noop::Payload>(kind, payload).map(drop),
        "sleep" => fits::<sleep::Payload>(kind, payload).map(drop),
        "http" => fits::<http::Payload>(kind, payload)?.check(has_server),
        _ => Ok(()),
    }
}

fn fits<P: serde::de::DeserializeOwned>(kind: &str, payload: &[u8]) -> Result<P, String> {
    serde_json::from_slice(payload)
        .map_err(|error| format!("the payload does not fit kind `{kind}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_must_fit() {
        check("noop", b"null", false).unwrap();
        check("sleep", br#"{"ms":5}"#, false).unwrap();
        check("http", br#"{"url":"http://127.0.0.1:80/x"}"#, false).unwrap();
        check("http", br#"{"path":"/x"}"#, true).unwrap();
        check("other", b"[1,2]", false).unwrap();
        for (kind, payload) in [
            ("sleep", "null"),
            ("sleep", r#"{"ms":-1}"#),
            ("sleep", r#"{"ms":1,"x":2}"#),
            ("http", "{}"),
            ("http", r#"{"path":"/x"}"#),
            ("http", r#"{"url":"https://127.0.0.1/"}"#),
            ("http", r#"{"url":"http://example.org/"}"#),
            ("http", "{\"url\":\"http://127.0.0.1/a b\"}"),
        ] {
            check(kind, payload.as_bytes(), false).unwrap_err();
        }
    }
}
