//! `http` through the real binary: whom it refuses, and what it does with whom it may call.

use std::io::{self, Read as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Shell, expect_exit, expect_numbers, expect_output, normalize_output};
use crate::web::TestWebServer;
use insta::assert_snapshot;
use serde_json::{Value, json};
use tidegate_core::{CancelOutcome, TaskId};
use tidegate_testkit::wait;

/// Submits one attempt of an `http` task; its id, or why it is refused at the door.
fn submit(shell: &Shell, payload: &Value) -> Result<String, String> {
    let told =
        shell.run(&["submit", "http", "--max-attempts", "1", "--payload", &payload.to_string()]);
    match told.strip_prefix("exit 0\n") {
        Some(id) => Ok(id.trim().to_owned()),
        None => Err(told),
    }
}

fn task(shell: &Shell, id: &str) -> Value {
    serde_json::from_str(&shell.run_ok(&["task", "show", id, "--json"])).expect("a task")
}

fn work(shell: &Shell, allow: &str) {
    shell.run_ok(&["worker", "--until-idle", "--http-allow", allow]);
}

/// Does one task; gives it as it ended.
fn done(allow: &str, payload: &Value) -> Value {
    let shell = Shell::new();
    let id = submit(&shell, payload).expect("a good payload");
    work(&shell, allow);
    task(&shell, &id)
}

/// Returns the error of a task that failed, without the port of the server.
#[track_caller]
fn failed(task: &Value, port: u16) -> String {
    assert_eq!(task["state"], "failed", "{task}");
    without_port(task["error"].as_str().expect("an error"), port)
}

/// Returns whether the text has each of the words, which are separated by spaces.
fn has_words(text: &str, words: &str) -> bool {
    words.split(' ').all(|word| text.contains(word))
}

fn without_port(text: &str, port: u16) -> String {
    text.replace(&format!(":{port}"), ":PORT")
}

/// A listener that nobody may connect to.
struct ForbiddenListener(TcpListener);

impl ForbiddenListener {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        listener.set_nonblocking(true).expect("set nonblocking");
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("an address").port()
    }

    /// A connection waits to be accepted even if its other end is closed.
    #[track_caller]
    fn assert_no_connection(&self) {
        let seen = self.0.accept();
        assert!(seen.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock), "{seen:?}");
    }
}

/// Each row: its name, a URL with `{port}` for the port of the trap, and words in the error. All
/// are called by a worker that may call every public host.
const TRICKS: &[(&str, &str, &str)] = &[
    ("plain", "http://127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("decimal", "http://2130706433:{port}/", "127.0.0.1 loopback"),
    ("octal", "http://0177.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("long octal", "http://00000000177.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("one octal number", "http://017700000001:{port}/", "127.0.0.1 loopback"),
    ("hexadecimal", "http://0x7f000001:{port}/", "127.0.0.1 loopback"),
    ("dotted hexadecimal", "http://0x7f.0x0.0x0.0x1:{port}/", "127.0.0.1 loopback"),
    ("mixed bases", "http://0x7f.1:{port}/", "127.0.0.1 loopback"),
    ("two parts", "http://127.1:{port}/", "127.0.0.1 loopback"),
    ("three parts", "http://127.0.1:{port}/", "127.0.0.1 loopback"),
    ("a dot at the end", "http://127.0.0.1.:{port}/", "127.0.0.1 loopback"),
    ("another loopback", "http://127.1.2.3:{port}/", "127.1.2.3 loopback"),
    ("zero", "http://0:{port}/", "0.0.0.0 machine"),
    ("all zeros", "http://0.0.0.0:{port}/", "0.0.0.0 machine"),
    ("overflow", "http://4294967296:{port}/", "URL"),
    ("part overflow", "http://127.0.0.257:{port}/", "URL"),
    ("full-width digits", "http://１２７.０.０.１:{port}/", "127.0.0.1 loopback"),
    ("ideographic dots", "http://127。0。0。1:{port}/", "127.0.0.1 loopback"),
    ("circled digits", "http://①②⑦.⓪.⓪.①:{port}/", "127.0.0.1 loopback"),
    ("percent-encoded", "http://%31%32%37.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("percent-encoded dots", "http://127%2e0%2e0%2e1:{port}/", "127.0.0.1 loopback"),
    ("encoded twice", "http://127%252e0%252e0%252e1:{port}/", "URL"),
    ("IPv6", "http://[::1]:{port}/", "::1 loopback"),
    ("long IPv6", "http://[0:0:0:0:0:0:0:1]:{port}/", "::1 loopback"),
    ("mapped", "http://[::ffff:127.0.0.1]:{port}/", "127.0.0.1 loopback"),
    ("mapped hexadecimal", "http://[::ffff:7f00:1]:{port}/", "127.0.0.1 loopback"),
    ("compatible", "http://[::127.0.0.1]:{port}/", "special"),
    ("NAT64", "http://[64:ff9b::7f00:1]:{port}/", "loopback"),
    ("6to4", "http://[2002:7f00:1::]:{port}/", "tunnel"),
    ("Teredo", "http://[2001:0:4136:e378:8000:63bf:807f:fffe]:{port}/", "tunnel"),
    ("unspecified IPv6", "http://[::]:{port}/", "special"),
    ("link-local IPv6", "http://[fe80::1]:{port}/", "link-local"),
    ("a zone", "http://[fe80::1%25lo]:{port}/", "URL"),
    ("unique local", "http://[fc00::1]:{port}/", "private"),
    ("site-local", "http://[fec0::1]:{port}/", "special"),
    ("localhost", "http://localhost:{port}/", "localhost"),
    ("localhost with a dot", "http://localhost.:{port}/", "localhost"),
    ("LOCALHOST", "http://LOCALHOST:{port}/", "localhost"),
    ("long s", "http://localho\u{17f}t:{port}/", "localhost"),
    ("soft hyphen", "http://local\u{ad}host:{port}/", "localhost"),
    ("user", "http://example.com@127.0.0.1:{port}/", "`@`"),
    ("user and password", "http://example.com:80@127.0.0.1:{port}/", "`@`"),
    ("encoded user", "http://example.com%2f@127.0.0.1:{port}/", "`@`"),
    ("empty user", "http://@127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("backslash", "http://example.com\\@127.0.0.1:{port}/", "'\\\\'"),
    ("backslash before the host", "http:\\\\127.0.0.1:{port}/", "'\\\\'"),
    ("more slashes", "http:////127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("no slashes", "http:127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("a tab", "http://127.0.\t0.1:{port}/", "'\\t'"),
    ("a line end", "http://127.0.0.1:{port}/\r\nhost: x", "'\\r'"),
    ("space", " http://127.0.0.1:{port}/", "' '"),
    ("metadata", "http://169.254.169.254/latest/", "metadata"),
    ("decimal metadata", "http://2852039166/", "metadata"),
    ("hexadecimal metadata", "http://0xA9FEA9FE/", "metadata"),
    ("octal metadata", "http://0251.0376.0251.0376/", "metadata"),
    ("mapped metadata", "http://[::ffff:a9fe:a9fe]/", "metadata"),
    ("NAT64 metadata", "http://[64:ff9b::a9fe:a9fe]/", "metadata"),
    ("IPv6 metadata", "http://[fd00:ec2::254]/", "private"),
    ("wire server", "http://168.63.129.16/", "metadata"),
    ("private 10", "http://10.0.0.1/", "private"),
    ("private 172", "http://172.31.255.255/", "private"),
    ("private 192", "http://192.168.0.1/", "private"),
    ("carrier", "http://100.64.0.1/", "provider"),
    ("benchmark", "http://198.18.0.1/", "benchmark"),
    ("documentation", "http://192.0.2.1/", "documentation"),
    ("multicast", "http://239.255.255.250/", "multicast"),
    ("broadcast", "http://255.255.255.255/", "reserved"),
    ("https", "https://127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("file", "file:///etc/passwd", "`file`"),
    ("gopher", "gopher://127.0.0.1:{port}/_x", "`gopher`"),
    ("ftp", "ftp://127.0.0.1:{port}/", "`ftp`"),
    ("data", "data:text/plain,hi", "`data`"),
    ("port 0", "http://127.0.0.1:0/", "port"),
];

#[test]
fn http_rejects_disguised_addresses() {
    let (shell, trap) = (Shell::new(), ForbiddenListener::new());
    let (mut submitted, mut errors) = (Vec::new(), String::new());
    for (name, url, words) in TRICKS {
        let url = url.replace("{port}", &trap.port().to_string());
        match submit(&shell, &json!({ "url": url })) {
            Ok(id) => submitted.push((name, id, words)),
            Err(why) => {
                assert!(has_words(&why, words), "{name}: {why}");
                errors.push_str(&format!("{name}: {}", expect_exit(1, &why)));
            }
        }
    }
    work(&shell, "*");
    for (name, id, words) in submitted {
        let task = task(&shell, &id);
        assert_eq!(task["state"], "failed", "{name}: {task}");
        let error = task["error"].as_str().expect("an error");
        assert!(has_words(error, words), "{name}: {task}");
        errors.push_str(&format!("{name}: {error}\n"));
    }
    assert_snapshot!(without_port(&errors, trap.port()));
    trap.assert_no_connection();
}

/// Shows that the trap of the tricks would have been found.
#[test]
fn http_accepts_every_notation_of_allowed_address() {
    let (shell, web) = (Shell::new(), TestWebServer::start());
    let hosts = ["127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "127。0。0。1"];
    let submit = |host: &str| {
        submit(&shell, &json!({ "url": format!("http://{host}:{}/text", web.port()) }))
    };
    let ids = hosts.map(|host| submit(host).expect("a good payload"));
    work(&shell, &format!("127.0.0.1:{}", web.port()));
    for id in ids {
        let task = task(&shell, &id);
        assert_eq!(task["result"], json!({ "status": 200, "body": "hello" }), "{task}");
    }
}

/// Where a redirect leads, `{port}` being the trap and `{own}` the server that redirects.
const REDIRECTS: &[(&str, &str, &str)] = &[
    ("loopback", "http://127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("decimal", "http://2130706433:{port}/", "127.0.0.1 loopback"),
    ("IPv6", "http://[::1]:{port}/", "::1 loopback"),
    ("mapped", "http://[::ffff:127.0.0.1]:{port}/", "127.0.0.1 loopback"),
    ("localhost", "http://localhost:{port}/", "localhost"),
    ("without a scheme", "//127.0.0.1:{port}/", "127.0.0.1 loopback"),
    ("metadata", "http://169.254.169.254/latest/meta-data/", "metadata"),
    ("private", "http://10.0.0.1/", "private"),
    ("file", "file:///etc/passwd", "`file`"),
    ("ftp", "ftp://127.0.0.1:{port}/", "`ftp`"),
    ("gopher", "gopher://127.0.0.1:{port}/_x", "`gopher`"),
    ("javascript", "javascript:alert(1)", "`javascript`"),
    ("user", "http://example.com@127.0.0.1:{port}/", "`@`"),
    ("backslash", "http://127.0.0.1:{own}\\@127.0.0.1:{port}/", "backslash"),
    ("the second hop", "/to?http://127.0.0.1:{port}/", "127.0.0.1 loopback"),
];

#[test]
fn http_rejects_redirect_to_forbidden_address() {
    let (shell, trap, web) = (Shell::new(), ForbiddenListener::new(), TestWebServer::start());
    let (port, own) = (trap.port().to_string(), web.port().to_string());
    let submitted = REDIRECTS.iter().map(|(name, to, words)| {
        let to = to.replace("{port}", &port).replace("{own}", &own);
        let url = format!("http://127.0.0.1:{own}/to?{}", to.replace('\\', "%5C"));
        (name, submit(&shell, &json!({ "url": url, "redirects": 3 })).expect("taken"), words)
    });
    let submitted: Vec<_> = submitted.collect();
    let mut errors = String::new();
    work(&shell, &format!("*,127.0.0.1:{own}"));
    for (name, id, words) in submitted {
        let task = task(&shell, &id);
        assert_eq!(task["state"], "failed", "{name}: {task}");
        let error = task["error"].as_str().expect("an error");
        assert!(has_words(error, words), "{name}: {task}");
        errors.push_str(&format!("{name}: {error}\n"));
    }
    assert_snapshot!(without_port(&without_port(&errors, trap.port()), web.port()));
    trap.assert_no_connection();
}

#[test]
fn http_follows_redirect_only_if_requested() {
    let web = TestWebServer::start();
    let allow = format!("localhost:{}", web.port());
    let url = format!("http://localhost:{}/to?/to?/text", web.port());
    let mut payload = json!({ "url": url });
    assert_snapshot!(
        expect_numbers(&[302, 2], &failed(&done(&allow, &payload), web.port())),
        @"GET http://localhost:PORT/to answered 302, expected 2xx; `redirects` follows it"
    );
    payload["redirects"] = json!(1);
    assert_snapshot!(
        expect_numbers(&[302, 2, 1], &failed(&done(&allow, &payload), web.port())),
        @"GET http://localhost:PORT/to answered 302, expected 2xx; 1 redirects were followed"
    );
    payload["redirects"] = json!(2);
    assert_eq!(done(&allow, &payload)["result"]["body"], "hello");
    let as_it_is = json!({ "url": payload["url"], "redirects": 2, "expect": 302 });
    assert_eq!(done(&allow, &as_it_is)["result"]["status"], 302);
}

#[test]
fn http_redirect_to_another_host_omits_credentials() {
    let (first, second) = (TestWebServer::start(), TestWebServer::start());
    let allow = format!("127.0.0.1:{},127.0.0.1:{}", first.port(), second.port());
    let call = |to: String, status: &str| {
        let payload = json!({
            "url": format!("http://127.0.0.1:{}/{status}?{to}", first.port()),
            "method": "POST",
            "headers": { "authorization": "secret", "cookie": "secret", "x-key": "secret" },
            "body": { "n": 1 },
            "redirects": 1,
        });
        let task = done(&allow, &payload);
        task["result"]["body"].as_str().expect("the request as it came").to_owned()
    };
    let own = call("/echo".to_owned(), "to307");
    assert!(own.starts_with("POST /echo ") && own.matches("secret").count() == 3, "{own}");
    assert!(own.ends_with("{\"n\":1}"), "{own}");
    let other = call(format!("http://127.0.0.1:{}/echo", second.port()), "to307");
    assert!(other.starts_with("POST /echo ") && !other.contains("secret"), "{other}");
    assert!(other.contains("user-agent: tidegate/") && other.ends_with("{\"n\":1}"), "{other}");
    let got = call("/echo".to_owned(), "to");
    assert!(got.starts_with("GET /echo ") && got.ends_with("\r\n\r\n"), "{got}");
}

#[test]
fn http_request_is_sent_as_specified() {
    let web = TestWebServer::start();
    let payload = json!({
        "url": format!("http://127.0.0.1:{}/echo?a=b#c", web.port()),
        "method": "PUT",
        "headers": { "X-Order": "7" },
        "body": "plain text",
    });
    let task = done("127.0.0.1", &payload);
    let echo = task["result"]["body"].as_str().expect("the request as it came");
    assert!(echo.starts_with("PUT /echo?a=b HTTP/1.1\r\n"), "{echo}");
    assert!(echo.contains(&format!("\r\nhost: 127.0.0.1:{}\r\n", web.port())), "{echo}");
    assert!(echo.contains("\r\nx-order: 7\r\n") && echo.contains("content-length: 10"), "{echo}");
    assert!(echo.ends_with("\r\n\r\nplain text"), "{echo}");
}

#[test]
fn http_status_determines_outcome() {
    let web = TestWebServer::start();
    let call = |path: &str, expect: Value| {
        let url = format!("http://127.0.0.1:{}/{path}?secret=1", web.port());
        done("127.0.0.1", &json!({ "url": url, "expect": expect }))
    };
    assert_eq!(call("status/404", json!([200, 404]))["result"]["status"], 404);
    assert_snapshot!(
        expect_numbers(&[127, 0, 0, 1, 404, 404, 200], &failed(&call("status/404", json!(200)), web.port())),
        @"GET http://127.0.0.1:PORT/status/404 answered 404, expected 200"
    );
    assert_snapshot!(
        expect_numbers(&[127, 0, 0, 1, 500, 500, 200, 201], &failed(&call("status/500", json!([200, 201])), web.port())),
        @"GET http://127.0.0.1:PORT/status/500 answered 500, expected 200 or 201"
    );
    let error = call("status/404", json!(200))["error"].to_string();
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn http_large_body_is_truncated() {
    let web = TestWebServer::start();
    let task =
        done("127.0.0.1", &json!({ "url": format!("http://127.0.0.1:{}/large", web.port()) }));
    assert_eq!(task["result"]["truncated"], true);
    assert_eq!(task["result"]["body"].as_str().map(str::len), Some(128 << 10));
}

#[test]
fn http_silent_server_and_oversized_headers_fail() {
    let web = TestWebServer::start();
    let url = |path: &str| format!("http://127.0.0.1:{}/{path}", web.port());
    let silent = done("127.0.0.1", &json!({ "url": url("silent"), "timeout_ms": 200 }));
    assert_snapshot!(
        expect_numbers(&[127, 0, 0, 1, 200], &failed(&silent, web.port())),
        @"GET http://127.0.0.1:PORT/silent: no answer within 200ms"
    );
    let error = failed(&done("127.0.0.1", &json!({ "url": url("headers") })), web.port());
    assert!(error.contains("/headers: "), "{error}");
}

#[test]
fn http_retry_waits_for_retry_after() {
    let (shell, web) = (Shell::new(), TestWebServer::start());
    let payload = json!({ "url": format!("http://127.0.0.1:{}/busy", web.port()) }).to_string();
    let id = shell.run_ok(&["submit", "http", "--payload", &payload]);
    let mut worker = shell.command(&["worker", "--http-allow", "127.0.0.1"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let task = wait::until_some("one attempt is spent", || {
        Some(task(&shell, id.trim())).filter(|task| task["attempts_used"] == 1)
    });
    worker.kill().expect("kill the worker");
    worker.wait().expect("wait");
    assert_eq!(task["state"], "scheduled", "{task}");
    let wait_ms = task["run_at"].as_i64().unwrap() - task["created_at"].as_i64().unwrap();
    assert!((1_800_000..1_900_000).contains(&wait_ms), "half an hour: {task}");
}

#[tokio::test]
async fn http_connection_is_closed_on_cancel() {
    let (shell, listener) = (Shell::new(), TcpListener::bind("127.0.0.1:0").expect("listen"));
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let id = submit(&shell, &json!({ "url": url, "timeout_ms": 600_000 })).expect("taken");
    let mut worker = shell.command(&["worker", "--http-allow", "127.0.0.1", "--lease", "1s"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let (mut stream, _) = listener.accept().expect("accept");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set a timeout");
    let told = shell.store().await.cancel(vec![TaskId(id.parse().unwrap())]).await;
    assert_eq!(told.expect("cancel"), [CancelOutcome::Requested]);
    stream.read_to_end(&mut Vec::new()).expect("the end of the connection");
    wait::until("the task is cancelled", || task(&shell, &id)["state"] == "cancelled");
    worker.kill().expect("kill the worker");
    worker.wait().expect("wait");
}

#[test]
fn http_without_allow_flag_is_not_served() {
    let (shell, web) = (Shell::new(), TestWebServer::start());
    let url = format!("http://127.0.0.1:{}/text", web.port());
    let id = submit(&shell, &json!({ "url": url })).expect("taken");
    let told = shell.run(&["worker", "--kinds", "http", "--until-idle"]);
    assert_snapshot!(
        expect_exit(1, &told),
        @"error: kind `http` does nothing that is not allowed; add `--http-allow HOST`"
    );
    let why = shell.run_ok(&["task", "explain", &id]);
    assert_snapshot!(
        expect_numbers(&[1], &normalize_output(&why)),
        @r#"task 1 is pending: it is ready, and no live worker serves kind "http" in queue "default"; start one with `tidegate worker --queues default --http-allow HOST`, since T (D)"#
    );
    let bad = shell.run(&["worker", "--http-allow", "http://a.example"]);
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&bad)),
        @r#"error: read --http-allow "http://a.example": it names a host, not a URL; write for example api.example.com"#
    );
}

/// Needs `openssl` to make a certificate and to serve it.
#[test]
fn https_requires_certificate_trusted_by_system() {
    let shell = Shell::new();
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"])
        .args(["-keyout", "key.pem", "-out", "cert.pem", "-addext", names])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .current_dir(shell.path(""))
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("not tested, no openssl");
        return;
    }
    let (port, mut server) = crate::web::start_tls(&shell);
    let url = format!("https://127.0.0.1:{port}/");
    let call = |trusted: &str| {
        let id = submit(&shell, &json!({ "url": url })).expect("taken");
        let mut worker = shell.command(&["worker", "--until-idle", "--http-allow", "127.0.0.1"]);
        let output = worker.env("SSL_CERT_FILE", shell.path(trusted)).output().expect("run");
        assert!(output.status.success());
        task(&shell, &id)
    };
    shell.file("nobody.pem", "");
    let (trusted, unknown) = (call("cert.pem"), call("nobody.pem"));
    server.kill().expect("end the server");
    server.wait().expect("wait");
    assert_eq!(trusted["result"]["status"], 200, "{trusted}");
    let error = failed(&unknown, port);
    assert!(error.contains("certificate"), "{error}");
}
