//! What an `http` task asks for.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use serde::Deserialize;
use url::{Host, Url};

/// Headers in one payload.
const HEADERS_MAX: usize = 64;

/// Bytes in their names and values together.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Redirects that may be asked for.
const REDIRECTS_MAX: u8 = 10;

/// They say where the message goes and where it ends, which is not for a payload to say.
const RESERVED_HEADERS: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What to call, and what to expect.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Payload {
    /// The whole address, `https://HOST[:PORT]/PATH`.
    url: Option<String>,
    /// A path on the server that the run file brings along, instead of `url`.
    path: Option<String>,
    /// Default: GET.
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// A string is sent as it is, anything else as JSON.
    #[serde(default)]
    body: serde_json::Value,
    /// The status that counts as success. Default: 200 to 299.
    expect: Option<Expect>,
    /// How many redirects are followed. Default: 0.
    #[serde(default)]
    redirects: u8,
    /// How long the call may take. Default: 10 s.
    #[serde(default = "ten_seconds")]
    pub(super) timeout_ms: u64,
}

fn ten_seconds() -> u64 {
    10_000
}

/// One status, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "`expect` is a status such as 200, or a list of them")]
pub(super) enum Expect {
    One(u16),
    Several(Vec<u16>),
}

impl Expect {
    fn statuses(&self) -> &[u16] {
        match self {
            Self::One(status) => std::slice::from_ref(status),
            Self::Several(statuses) => statuses,
        }
    }
}

/// A payload that makes sense.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) url: Url,
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) redirects: u8,
    expect: Option<Expect>,
}

impl Request {
    pub(super) fn expects(&self, status: u16) -> bool {
        match &self.expect {
            Some(expect) => expect.statuses().contains(&status),
            None => (200..300).contains(&status),
        }
    }

    pub(super) fn expected(&self) -> String {
        let Some(expect) = &self.expect else { return "2xx".to_owned() };
        let statuses: Vec<String> = expect.statuses().iter().map(u16::to_string).collect();
        statuses.join(" or ")
    }
}

impl Payload {
    /// Checks everything that can be checked without calling.
    pub(crate) fn check(&self, has_server: bool) -> Result<(), String> {
        self.request(has_server.then_some("127.0.0.1:80")).map(drop)
    }

    /// What to send. `server` is the address of the server beside the worker.
    pub(super) fn request(&self, server: Option<&str>) -> Result<Request, String> {
        let url = self.request_url(server)?;
        if self.redirects > REDIRECTS_MAX {
            return Err(format!("`redirects` is {}; at most {REDIRECTS_MAX}", self.redirects));
        }
        let statuses = self.expect.as_ref().map(Expect::statuses);
        if statuses.is_some_and(|statuses| statuses.is_empty()) {
            return Err("`expect` is empty; it names at least one status".to_owned());
        }
        if let Some(bad) = statuses.unwrap_or(&[]).iter().find(|s| !(200..600).contains(*s)) {
            return Err(format!("`expect` has {bad}; a status is between 200 and 599"));
        }
        Ok(Request {
            url,
            method: self.method()?,
            headers: self.headers()?,
            body: self.body(),
            redirects: self.redirects,
            expect: self.expect.clone(),
        })
    }

    fn request_url(&self, server: Option<&str>) -> Result<Url, String> {
        match (&self.url, &self.path, server) {
            (Some(url), None, _) => parse_url(url),
            (None, Some(path), _) if !path.starts_with('/') => {
                Err(format!("`path` {path:?} does not begin with /"))
            }
            (None, Some(path), Some(server)) => parse_url(&format!("http://{server}{path}")),
            (None, Some(_), None) => Err("`path` alone needs a [server] in the run file; \
                                          write the whole `url`"
                .to_owned()),
            _ => Err("kind `http` needs either `url` or `path`".to_owned()),
        }
    }

    fn method(&self) -> Result<Method, String> {
        let Some(method) = &self.method else { return Ok(Method::GET) };
        // CONNECT asks for a tunnel, which nobody would be at the end of.
        let is_method = !method.is_empty()
            && method.bytes().all(|byte| byte.is_ascii_uppercase())
            && method != "CONNECT";
        let known = is_method.then(|| Method::from_bytes(method.as_bytes()).ok()).flatten();
        known.ok_or_else(|| format!("`method` {method:?} is not a method such as GET"))
    }

    /// The values are not told: they may be secret.
    fn headers(&self) -> Result<HeaderMap, String> {
        let bytes: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            return Err(format!(
                "there are {} `headers` of {bytes} bytes; at most {HEADERS_MAX} of \
                 {HEADER_BYTES_MAX} bytes",
                self.headers.len()
            ));
        }
        let mut headers = HeaderMap::new();
        let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if !matches!(self.body, serde_json::Value::String(_) | serde_json::Value::Null) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in &self.headers {
            let (name, value) = parse_header(name, value)?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    fn body(&self) -> Bytes {
        match &self.body {
            serde_json::Value::Null => Bytes::new(),
            serde_json::Value::String(text) => Bytes::copy_from_slice(text.as_bytes()),
            json => json.to_string().into(),
        }
    }
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let known = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{name:?} is not the name of a header"))?;
    if RESERVED_HEADERS.contains(&known.as_str()) || known.as_str().starts_with("proxy-") {
        return Err(format!("the header {name:?} is set by tidegate itself, remove it"));
    }
    let value = HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header {name:?} has a character it cannot have"))?;
    Ok((known, value))
}

/// Reads an address. What one reader of URLs takes for another host than the next is refused.
pub(super) fn parse_url(text: &str) -> Result<Url, String> {
    // The text is not repeated: there may be a password or a key in it.
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if let Some((at, bad)) = text.char_indices().find(|(_, c)| is_bad(*c)) {
        let code = bad as u32;
        return Err(format!("the URL contains {bad:?} at byte {at}; write it as %{code:02X}"));
    }
    let url = Url::parse(text).map_err(|error| format!("the text is not a URL: {error}"))?;
    check_url(url)
}

/// Checks what every URL must be that is called, also one that a redirect names.
pub(super) fn check_url(url: Url) -> Result<Url, String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the scheme `{}` is not http or https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL has a user or a password before `@`; send the header \
                    `authorization` instead"
            .to_owned());
    }
    match (url.host(), url.port_or_known_default()) {
        (Some(Host::Domain("")) | None, _) => Err("the URL has no host".to_owned()),
        (_, Some(0) | None) => Err("the URL has no port that can be called".to_owned()),
        _ => Ok(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Request, String> {
        let payload: Payload = serde_json::from_str(json).map_err(|error| error.to_string())?;
        payload.request(Some("127.0.0.1:81"))
    }

    #[test]
    fn payload_with_only_url_uses_defaults() {
        let request = read(r#"{"url":"https://example.com"}"#).unwrap();
        assert_eq!((request.url.as_str(), request.method), ("https://example.com/", Method::GET));
        assert!(request.body.is_empty() && request.redirects == 0);
        let request = read(r#"{"path":"/a?b"}"#).unwrap();
        assert_eq!(request.url.as_str(), "http://127.0.0.1:81/a?b");
        assert!(request.expects(204) && !request.expects(302));
    }

    #[test]
    fn payload_body_is_text_or_json() {
        let of = |body: &str| read(&format!(r#"{{"path":"/","body":{body}}}"#)).unwrap();
        assert_eq!(of(r#""a=1""#).body, "a=1");
        assert_eq!(of(r#"{"a":[1]}"#).body, r#"{"a":[1]}"#);
        assert_eq!(of(r#"{"a":1}"#).headers[CONTENT_TYPE], "application/json");
        assert!(!of(r#""a""#).headers.contains_key(CONTENT_TYPE));
    }

    #[test]
    fn invalid_payload_is_rejected() {
        for bad in [
            r#"{"url":"http://a.example/","path":"/"}"#,
            r#"{"path":"@169.254.169.254/"}"#,
            r#"{"path":":80@evil.example/"}"#,
            r#"{"url":"http://a.example/ b"}"#,
            r#"{"url":"http://a.example\\@b.example/"}"#,
            r#"{"url":"http://user@a.example/"}"#,
            r#"{"url":"http://:secret@a.example/"}"#,
            r#"{"url":"ftp://a.example/"}"#,
            r#"{"url":"file:///etc/passwd"}"#,
            r#"{"url":"http:///"}"#,
            r#"{"url":"http://a.example:0/"}"#,
            r#"{"url":"/x"}"#,
            r#"{"path":"/","method":"get"}"#,
            r#"{"path":"/","method":"CONNECT"}"#,
            r#"{"path":"/","method":"GET / HTTP/1.1"}"#,
            r#"{"path":"/","headers":{"host":"b.example"}}"#,
            r#"{"path":"/","headers":{"Transfer-Encoding":"chunked"}}"#,
            r#"{"path":"/","headers":{"proxy-authorization":"x"}}"#,
            r#"{"path":"/","headers":{"a":"b\r\nc: d"}}"#,
            r#"{"path":"/","headers":{"a b":"c"}}"#,
            r#"{"path":"/","expect":[]}"#,
            r#"{"path":"/","expect":99}"#,
            r#"{"path":"/","expect":"ok"}"#,
            r#"{"path":"/","redirects":11}"#,
            r#"{"path":"/","heders":{}}"#,
        ] {
            read(bad).unwrap_err();
        }
    }

    #[test]
    fn payload_error_does_not_show_secrets() {
        let error = read(r#"{"path":"/","headers":{"authorization":"secret\n"}}"#).unwrap_err();
        assert!(!error.contains("secret") && error.contains("authorization"), "{error}");
        for url in [
            "http://me:secret@a.example/",
            "http://me:secret@a.example/ x?key=secret",
            "http://me:secret@a.example:99999/?key=secret",
            "http://127.0.0.1:0/?key=secret",
            "http:///?key=secret",
        ] {
            let error = read(&format!(r#"{{"url":"{url}"}}"#)).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
