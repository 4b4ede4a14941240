//! Where a worker shows its metrics: a small HTTP server with two pages.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_engine::{Metrics, Shutdown, ShutdownPhase, time};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Callers that are served at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

/// Bytes of a request's head, and its headers.
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// From the accept to the last byte of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Reads where to listen: an address with its port, or a port of this machine alone.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().map(|port| (Ipv4Addr::LOCALHOST, port).into());
    port.or_else(|_| text.parse()).map_err(|_| {
        format!("{text:?} is no address to listen on; write 127.0.0.1:9464, or 9464 alone")
    })
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    listener: TcpListener,
}

impl MetricsServer {
    pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("listen on {address} to show metrics; --metrics takes another address")
        })?;
        Ok(Self { listener })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until it is dropped.
    pub(crate) async fn serve(self, metrics: Metrics, shutdown: Shutdown) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        while let Ok(permit) = room.clone().acquire_owned().await {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = serve_connection(stream, metrics, shutdown) => {}
                            () = time::sleep(REQUEST_TIMEOUT) => {}
                        }
                        drop(permit);
                    });
                }
                // The process has no file handles left; some come back.
                Err(_) => time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// One request and its answer. A caller that goes away or breaks the rules ends its own call.
async fn serve_connection(stream: TcpStream, metrics: Metrics, shutdown: Shutdown) {
    let service = service_fn(move |request: Request<Incoming>| {
        let page = respond(&request, &metrics, &shutdown);
        async move { Ok::<_, Infallible>(page) }
    });
    let mut connection = http1::Builder::new();
    connection.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT).keep_alive(false);
    connection.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}

fn respond<B>(
    request: &Request<B>,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let (status, text) = match (request.method(), path) {
        (&Method::GET, "/metrics") => (StatusCode::OK, metrics.encode_text()),
        (&Method::GET, "/healthz") if shutdown.phase() == ShutdownPhase::Running => {
            (StatusCode::OK, "ok\n".to_owned())
        }
        (&Method::GET, "/healthz") => {
            (StatusCode::SERVICE_UNAVAILABLE, "draining: it takes no new tasks\n".to_owned())
        }
        (_, "/metrics" | "/healthz") => (StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(PROMETHEUS_CONTENT_TYPE));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, hyper::header::HeaderValue::from_static("GET"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_port_without_host_binds_to_loopback() {
        assert_eq!(parse_address("9464"), Ok(([127, 0, 0, 1], 9464).into()));
        assert_eq!(parse_address("0.0.0.0:80"), Ok(([0, 0, 0, 0], 80).into()));
        assert_eq!(parse_address("[::1]:0").map(|address| address.is_ipv6()), Ok(true));
        for text in ["", "localhost", "99999", "127.0.0.1", "1.2.3.4:99999", ":9464"] {
            assert!(parse_address(text).unwrap_err().contains("127.0.0.1:9464"), "{text}");
        }
    }

    #[test]
    fn unknown_pages_and_methods_are_rejected() {
        let (metrics, shutdown) = (Metrics::new(), Shutdown::new());
        let status = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            respond(&request, &metrics, &shutdown).status().as_u16()
        };
        assert_eq!(status("GET", "/metrics"), 200);
        assert_eq!(status("GET", "/healthz?verbose"), 200);
        assert_eq!(status("POST", "/metrics"), 405);
        assert_eq!(status("GET", "/"), 404);
        shutdown.drain();
        assert_eq!(status("GET", "/healthz"), 503);
        assert_eq!(status("GET", "/metrics"), 200, "it is watched to its end");
    }
}
