//! One exchange with one server: resolve, check, connect to what was checked, ask.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tidegate_engine::{Metrics, time};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::allowed_hosts::AllowedHosts;
use super::payload::Request;

/// Bytes kept of a body. Written as JSON each may become six, and a result has at most 1 MiB.
pub(super) const BODY_BYTES_MAX: usize = 128 << 10;

/// Headers of an answer, and their bytes; an answer with more is an error.
const HEADERS_MAX: usize = 100;
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long one address may take to answer a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Looks a name up.
pub(super) type Lookup = Arc<dyn Fn(String, u16) -> Addresses + Send + Sync>;
pub(super) type Addresses = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Calls servers, within what is allowed. One per worker.
///
/// Every call has a connection of its own: the address that was checked is the one that is
/// called, and a server that closes an idle connection costs nobody an attempt.
pub(crate) struct HttpClient {
    pub(super) allowed: AllowedHosts,
    lookup: Lookup,
    tls: OnceLock<Arc<ClientConfig>>,
    metrics: Option<Metrics>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Error {
    /// It may not be called.
    Refused(String),
    /// It could not be called, this time.
    Unreachable(String),
}

/// What came back.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    pub(super) is_truncated: bool,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl HttpClient {
    pub(crate) fn new(allowed: AllowedHosts) -> Self {
        let lookup: Lookup = Arc::new(|name, port| {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
        });
        Self::with_lookup(allowed, lookup)
    }

    pub(super) fn with_lookup(allowed: AllowedHosts, lookup: Lookup) -> Self {
        Self { allowed, lookup, tls: OnceLock::new(), metrics: None }
    }

    /// Counts every call to a server, if somebody counts.
    pub(crate) fn with_metrics(self, metrics: Option<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// Sends a request once and reads the answer. Redirects are answers.
    pub(super) async fn exchange(&self, request: &Request) -> Result<HttpResponse, Error> {
        let addresses = self.addresses(&request.url).await?;
        let mut timed =
            RequestTimer { metrics: &self.metrics, began_at: time::now(), status: None };
        let stream = self.connect(&request.url, &addresses).await.map_err(unreachable_error)?;
        let answer = send_request(stream, request).await.map_err(unreachable_error)?;
        timed.status = Some(answer.status);
        Ok(answer)
    }

    /// Where a URL leads: every address is checked, and nobody resolves it again.
    async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, Error> {
        let port = url.port_or_known_default().unwrap_or(0);
        let name = match url.host() {
            Some(Host::Ipv4(ip)) => return self.literal((ip, port).into()),
            Some(Host::Ipv6(ip)) => return self.literal((ip, port).into()),
            Some(Host::Domain(name)) => name.trim_end_matches('.'),
            None => return Err(Error::Refused(format!("{url} has no host"))),
        };
        self.allowed.check_name(name, port).map_err(Error::Refused)?;
        let found = (self.lookup)(name.to_owned(), port).await;
        let mut found = found.map_err(|error| {
            Error::Unreachable(format!("the name {name} cannot be resolved: {error}"))
        })?;
        if found.is_empty() {
            return Err(Error::Unreachable(format!("the name {name} has no address")));
        }
        // One bad address spoils the name: who controls it could let the first one fail.
        for address in &mut found {
            address.set_port(port);
            self.allowed.check_resolved(name, *address).map_err(Error::Refused)?;
        }
        found.truncate(ADDRESSES_MAX);
        Ok(found)
    }

    fn literal(&self, address: SocketAddr) -> Result<Vec<SocketAddr>, Error> {
        self.allowed.check_address(address).map_err(Error::Refused)?;
        Ok(vec![address])
    }

    async fn connect(&self, url: &Url, addresses: &[SocketAddr]) -> io::Result<Box<dyn Stream>> {
        let stream = connect_first(addresses).await?;
        stream.set_nodelay(true)?;
        if url.scheme() == "http" {
            return Ok(Box::new(stream));
        }
        let name = server_name(url)?;
        let config = self.tls.get_or_init(|| Arc::new(tls_config())).clone();
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
    }
}

/// A call that is measured. One that is given up has no answer.
struct RequestTimer<'a> {
    metrics: &'a Option<Metrics>,
    began_at: Instant,
    status: Option<u16>,
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.metrics {
            metrics.record_http_request(self.status, time::now() - self.began_at);
        }
    }
}

/// Connects to the first address that answers.
async fn connect_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        let outcome = tokio::select! {
            outcome = TcpStream::connect(address) => outcome,
            () = time::sleep(CONNECT_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
        };
        match outcome {
            Ok(stream) => return Ok(stream),
            Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
        }
    }
    Err(last)
}

fn server_name(url: &Url) -> io::Result<ServerName<'static>> {
    let name = match url.host() {
        Some(Host::Ipv4(ip)) => return Ok(ServerName::IpAddress(ip.into())),
        Some(Host::Ipv6(ip)) => return Ok(ServerName::IpAddress(ip.into())),
        Some(Host::Domain(name)) => name.trim_end_matches('.').to_owned(),
        None => String::new(),
    };
    ServerName::try_from(name).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Trusts whom the machine trusts. Where it trusts nobody, https fails and http works.
fn tls_config() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the versions that are the default")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

async fn send_request(stream: Box<dyn Stream>, request: &Request) -> io::Result<HttpResponse> {
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let message = build_message(request)?;
    let exchange = async {
        let response = sender.send_request(message).await.map_err(io::Error::other)?;
        read_response(response).await
    };
    // Not spawned: dropped with the attempt, it leaves no connection behind.
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        _ = &mut connection => exchange.await,
    }
}

fn build_message(request: &Request) -> io::Result<hyper::Request<Full<Bytes>>> {
    let url = &request.url;
    let target = url
        .query()
        .map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let host = match (url.host_str().unwrap_or_default(), url.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };
    let mut message = hyper::Request::builder()
        .method(request.method.clone())
        .uri(target)
        .body(Full::new(request.body.clone()))
        .map_err(io::Error::other)?;
    *message.headers_mut() = request.headers.clone();
    let host = HeaderValue::from_str(&host).map_err(io::Error::other)?;
    message.headers_mut().insert(HOST, host);
    Ok(message)
}

/// Reads an answer, but not more of its body than is kept.
async fn read_response(response: hyper::Response<Incoming>) -> io::Result<HttpResponse> {
    let (head, mut body) = response.into_parts();
    let mut kept = Vec::new();
    let mut is_cut = false;
    while !is_cut && let Some(frame) = body.frame().await {
        let frame = frame.map_err(io::Error::other)?;
        let Some(data) = frame.data_ref() else { continue };
        let room = BODY_BYTES_MAX - kept.len();
        is_cut = data.len() > room;
        kept.extend_from_slice(&data[..data.len().min(room)]);
    }
    Ok(HttpResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body: kept,
        is_truncated: is_cut,
    })
}

/// The error and its causes as one sentence.
fn unreachable_error(error: io::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = error.get_ref().and_then(|error| error.source());
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    Error::Unreachable(text)
}
