//! Names that lead where they should not. The lookup is ours; everything above it is real.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::client::{Error, HttpClient, HttpResponse, Lookup};
use super::payload::Payload;
use super::{AllowedHosts, redirect, retry_after};

/// A listener that nobody may connect to.
struct ForbiddenListener(TcpListener);

impl ForbiddenListener {
    fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("listen");
        listener.set_nonblocking(true).expect("set nonblocking");
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("an address").port()
    }

    /// A connection waits to be accepted even if its other end is closed.
    #[track_caller]
    fn assert_no_connection(&self, name: &str) {
        let seen = self.0.accept();
        assert!(seen.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock), "{name}");
    }
}

/// Answers lookups from a list, one after another, and counts them.
fn lookup(answers: &[&[&str]]) -> (Lookup, Arc<Mutex<u32>>) {
    let parse = |text: &&str| SocketAddr::new(text.parse().expect("an address"), 0);
    let answers: VecDeque<Vec<SocketAddr>> =
        answers.iter().map(|answer| answer.iter().map(parse).collect()).collect();
    let (answers, asked) = (Mutex::new(answers), Arc::new(Mutex::new(0)));
    let count = asked.clone();
    let lookup: Lookup = Arc::new(move |_, _| {
        *count.lock().unwrap() += 1;
        let answer = answers.lock().unwrap().pop_front().expect("one lookup more than expected");
        Box::pin(async move { Ok(answer) })
    });
    (lookup, asked)
}

fn caller(allowed: &[&str], lookup: Lookup) -> HttpClient {
    let list: Vec<String> = allowed.iter().map(|text| (*text).to_owned()).collect();
    HttpClient::with_lookup(AllowedHosts::new(&list).expect("a list"), lookup)
}

async fn call(caller: &HttpClient, url: &str) -> Result<HttpResponse, Error> {
    let payload = serde_json::json!({ "url": url, "redirects": 3 });
    let payload: Payload = serde_json::from_value(payload).expect("a payload");
    let request = payload.request(None).expect("a request");
    let patience = Duration::from_secs(10);
    tokio::time::timeout(patience, redirect::follow(caller, request)).await.expect("an end")
}

#[track_caller]
fn assert_refused(name: &str, outcome: Result<HttpResponse, Error>, words: &str) {
    match outcome {
        Err(Error::Refused(why)) => assert!(why.contains(words), "{name}: {why}"),
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test]
async fn name_that_resolves_to_non_public_address_is_rejected() {
    let trap = ForbiddenListener::at("127.0.0.1:0");
    for (name, host, answer, words) in [
        ("loopback", "a.example", &["127.0.0.1"][..], "127.0.0.1 is a loopback address"),
        ("an address in the name", "127.0.0.1.a.example", &["127.0.0.1"], "a loopback address"),
        ("other loopback", "a.example", &["127.8.9.10"], "a loopback address"),
        ("private 10", "a.example", &["10.0.0.1"], "a private address"),
        ("private 172", "a.example", &["172.16.0.1"], "a private address"),
        ("private 192", "a.example", &["192.168.1.1"], "a private address"),
        ("metadata", "metadata.google.internal", &["169.254.169.254"], "a metadata address"),
        ("wire server", "a.example", &["168.63.129.16"], "a metadata address"),
        ("metadata, IPv6", "a.example", &["fd00:ec2::254"], "a private address"),
        ("metadata of a provider", "a.example", &["100.100.100.200"], "inside a provider's"),
        ("unspecified", "a.example", &["0.0.0.0"], "an address of this machine"),
        ("unspecified, IPv6", "a.example", &["::"], "a special meaning"),
        ("loopback, IPv6", "a.example", &["::1"], "a loopback address"),
        ("mapped", "a.example", &["::ffff:127.0.0.1"], "127.0.0.1 is a loopback address"),
        ("compatible", "a.example", &["::127.0.0.1"], "a special meaning"),
        ("NAT64", "a.example", &["64:ff9b::127.0.0.1"], "a loopback address"),
        ("6to4", "a.example", &["2002:7f00:1::"], "a tunnel to IPv4"),
        ("link-local", "a.example", &["169.254.1.1"], "a link-local address"),
        ("link-local, IPv6", "a.example", &["fe80::1"], "a link-local address"),
        ("multicast", "a.example", &["224.0.0.1"], "a multicast address"),
        ("broadcast", "a.example", &["255.255.255.255"], "a reserved address"),
        ("public before private", "a.example", &["1.1.1.1", "127.0.0.1"], "a loopback address"),
        ("private before public", "a.example", &["127.0.0.1", "1.1.1.1"], "a loopback address"),
        ("localhost by `*`", "localhost", &["127.0.0.1"], "a loopback address"),
        ("localhost, a dot", "localhost.", &["127.0.0.1"], "as localhost is refused"),
        ("localhost, capitals", "LOCALHOST", &["127.0.0.1"], "as localhost is refused"),
    ] {
        let (lookup, asked) = lookup(&[answer]);
        let url = format!("http://{host}:{}/", trap.port());
        assert_refused(name, call(&caller(&["*"], lookup), &url).await, words);
        assert_eq!(*asked.lock().unwrap(), 1, "{name}");
        trap.assert_no_connection(name);
    }
}

#[tokio::test]
async fn name_that_is_not_allowed_is_not_resolved() {
    for host in [
        "example.net",
        "evilexample.com",
        "api.example.com.evil.net",
        "example.com",
        "xapi.example.org",
        "api.example.org.",
        "api-example.com",
        "api%2eexample.org.evil.net",
        "api.ex\u{430}mple.com",
    ] {
        let (lookup, asked) = lookup(&[]);
        let caller = caller(&["*.example.com", "api.example.org:81"], lookup);
        assert_refused(host, call(&caller, &format!("http://{host}/")).await, "is not allowed");
        assert_eq!(*asked.lock().unwrap(), 0, "{host}");
    }
}

/// Answers every request of one connection after another with the same bytes.
fn serve(address: &str, answer: String) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("listen");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";

#[tokio::test]
async fn name_is_resolved_once_per_call_and_rebinding_is_rejected() {
    let good = serve("127.0.0.1:0", OK.to_owned());
    let trap = ForbiddenListener::at(&format!("127.0.0.2:{}", good.port()));
    let (lookup, asked) = lookup(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let caller = caller(&["a.example", "127.0.0.1"], lookup);
    let url = format!("http://a.example:{}/", good.port());
    let answer = call(&caller, &url).await.expect("an answer");
    assert_eq!((answer.status, &*answer.body), (200, &b"hi"[..]));
    assert_eq!(*asked.lock().unwrap(), 1, "checked and connected to by one lookup");
    trap.assert_no_connection("the first call");
    assert_refused("rebound", call(&caller, &url).await, "127.0.0.2 is a loopback address");
    trap.assert_no_connection("the second call");
}

#[tokio::test]
async fn name_rebound_after_redirect_to_itself_is_rejected() {
    let moved = "HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n";
    let good = serve("127.0.0.1:0", moved.to_owned());
    let trap = ForbiddenListener::at(&format!("127.0.0.2:{}", good.port()));
    let (lookup, asked) = lookup(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let caller = caller(&["a.example", "127.0.0.1"], lookup);
    let outcome = call(&caller, &format!("http://a.example:{}/", good.port())).await;
    assert_refused("rebound", outcome, "127.0.0.2 is a loopback address");
    assert_eq!(*asked.lock().unwrap(), 2);
    trap.assert_no_connection("rebound");
}

/// The port of an entry counts also for the address that a name leads to.
#[tokio::test]
async fn listed_address_on_another_port_is_rejected() {
    let trap = ForbiddenListener::at("127.0.0.1:0");
    let (lookup, _) = lookup(&[&["127.0.0.1"]]);
    let caller = caller(&["a.example", "127.0.0.1:1"], lookup);
    let outcome = call(&caller, &format!("http://a.example:{}/", trap.port())).await;
    assert_refused("another port", outcome, "a loopback address");
    trap.assert_no_connection("another port");
}

#[test]
fn retry_after_header_sets_delay() {
    let headers = |list: &[(&'static str, &'static str)]| {
        list.iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<hyper::HeaderMap>()
    };
    let seconds = |list: &[(&'static str, &'static str)]| {
        retry_after(&headers(list)).map(|delay| delay.as_secs())
    };
    assert_eq!(seconds(&[("retry-after", "120")]), Some(120));
    assert_eq!(seconds(&[("retry-after", "0")]), Some(1), "within bounds");
    assert_eq!(seconds(&[("retry-after", "99999999")]), Some(3600), "within bounds");
    const NOW: (&str, &str) = ("date", "Wed, 21 Oct 2015 07:28:00 GMT");
    assert_eq!(seconds(&[NOW, ("retry-after", "Wed, 21 Oct 2015 07:29:30 GMT")]), Some(90));
    assert_eq!(seconds(&[NOW, ("retry-after", "Wed, 21 Oct 2015 07:00:00 GMT")]), None);
    assert_eq!(seconds(&[("retry-after", "Wed, 21 Oct 2015 07:29:30 GMT")]), None);
    assert_eq!(seconds(&[("retry-after", "soon")]), None);
    assert_eq!(seconds(&[]), None);
}
