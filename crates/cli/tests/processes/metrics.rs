//! Workers that a real Prometheus looks at.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::common::Shell;
use crate::prometheus::{MetricsWorker, Prometheus, get, program, send, wait_for};
use insta::assert_snapshot;
use serde_json::Value;
use tidegate_core::{NewTask, Store as _, Submission};
use tidegate_engine::metrics::Sampler;
use tidegate_engine::metrics::descriptors::ALL;
use tidegate_engine::{Metrics, Shutdown};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::postgres::{Database, Server};
use tokio_postgres::{Client, NoTls};

const RULES: &str = include_str!("../../../../deploy/prometheus/rules.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana/tidegate.json");

/// What only a store with a pool of connections has.
const OF_POOLS: &str = "tidegate_store_connections";

/// Submits some of everything and waits until the worker has done it.
fn work(shell: &Shell, store: &[&str], worker: &MetricsWorker) {
    let submit = |arguments: &[&str]| {
        shell.run_ok(&[&["submit"], arguments, store].concat());
    };
    (0..6).for_each(|_| submit(&["sleep", "--payload", "{\"ms\":200}", "--job", "nightly"]));
    shell.run_ok(&[&["concurrency", "set", "job:nightly", "--limit", "4"], store].concat());
    submit(&["noop"]);
    let page = format!("{{\"url\":\"http://{}/healthz\"}}", worker.address);
    submit(&["http", "--payload", &page]);
    let ended = |kind: &str| {
        let labels = format!("{{kind={kind:?},outcome=\"completed\"}}");
        worker.series_value(&format!("tidegate_worker_tasks_completed_total{labels}"))
    };
    wait_for("the tasks to end", || {
        let all = [ended("sleep"), ended("noop"), ended("http")];
        (all == [Some(6.0), Some(1.0), Some(1.0)]).then_some(())
    });
}

/// The queries of the dashboard, as Grafana would send them.
fn panels() -> Vec<String> {
    fn gather(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                into.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| gather(value, into));
            }
            Value::Array(items) => items.iter().for_each(|item| gather(item, into)),
            _ => {}
        }
    }
    let mut queries = Vec::new();
    gather(&serde_json::from_str(DASHBOARD).expect("the dashboard is JSON"), &mut queries);
    assert!(queries.len() > 10, "{queries:?}");
    queries.into_iter().map(|query| query.replace("$__rate_interval", "1m")).collect()
}

/// Metrics that Prometheus has, by the names of the page.
fn known(prometheus: &Prometheus) -> BTreeSet<String> {
    let names = prometheus.api("/api/v1/label/__name__/values");
    let names = names["data"].as_array().expect("names").iter().filter_map(Value::as_str);
    let parts = ["_bucket", "_sum", "_count"];
    let whole = |name: &str| {
        let whole = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        whole.to_owned()
    };
    names.filter(|name| name.starts_with("tidegate_")).map(whole).collect()
}

fn scraped(store: &[&str], has_pool: bool) {
    let shell = Shell::new();
    let more = ["--max-concurrent", "sleep=2", "--http-allow", "127.0.0.1"];
    let worker = MetricsWorker::start(&shell, &[&more, store].concat());
    let prometheus = Prometheus::start(&shell, RULES);
    prometheus.scrape_workers(&shell, &[&worker]);
    // Of what a counter has counted before the first look no rate is known.
    prometheus.wait_for_result(
        "tidegate_worker_tasks_completed_total{kind='sleep',outcome='completed'} == 0",
    );
    work(&shell, store, &worker);

    prometheus
        .wait_for_result("sum(tidegate_worker_tasks_completed_total{outcome='completed'}) == 8");
    prometheus.wait_for_result("max(tidegate_concurrency_slots_limit{limit='group:sleep'}) == 2");
    prometheus.wait_for_result(
        "sum(tidegate_concurrency_acquisition_total{limit='group:sleep',result='acquired'}) == 6",
    );
    prometheus.wait_for_result("sum(tidegate_job_tasks_total{job_name='nightly'}) == 6");
    prometheus.wait_for_result("tidegate_http_request_seconds_count{status='2xx'} == 1");
    prometheus.wait_for_result("max(tidegate_tasks{state='completed'}) == 8");
    prometheus.wait_for_result("tidegate_worker_in_flight_tasks == 0");
    prometheus.wait_for_result("sum(rate(tidegate_worker_tasks_completed_total[1m])) > 0");
    let all: BTreeSet<String> = ALL.iter().map(|about| about.name.to_owned()).collect();
    let wanted = all.into_iter().filter(|name| has_pool || !name.starts_with(OF_POOLS)).collect();
    assert_eq!(known(&prometheus), wanted);
    for query in panels().iter().filter(|query| has_pool || !query.contains(OF_POOLS)) {
        prometheus.wait_for_result(query);
    }
    assert_eq!(prometheus.query("ALERTS{alertstate='firing'}"), [], "all is well");

    let mut promtool = program("promtool");
    let mut promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(worker.scrape().as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success(), "promtool finds fault with the text");
}

#[test]
fn prometheus_scrapes_worker_on_sqlite() {
    scraped(&["--store", "sqlite:tasks.db"], false);
}

#[test]
fn prometheus_scrapes_worker_on_postgres() {
    let database = Server::shared().database();
    scraped(&["--store", &database.url()], true);
}

/// The rules, without the time that a fault has to last, and with waits that a test can bear.
fn impatient() -> String {
    let lines = RULES.lines().filter(|line| !line.trim().starts_with("for:"));
    let lines: Vec<&str> = lines.collect();
    let bounds = [("> 900\n", "> 1\n"), ("> 60\n", "> 1\n"), ("> 300\n", "> 3\n")];
    bounds.iter().fold(lines.join("\n") + "\n", |rules, (long, short)| rules.replace(long, short))
}

#[test]
fn alerts_fire_on_worker_crash() {
    let shell = Shell::new();
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.wait_for_alert("TidegateNoWorkerAccepting");
    let watcher = MetricsWorker::start(&shell, &["--kinds", "noop"]);
    let mut dies = MetricsWorker::start(&shell, &["--kinds", "sleep", "--lease", "12s"]);
    prometheus.scrape_workers(&shell, &[&watcher, &dies]);
    prometheus.wait_for_result("tidegate_leases_expired_total == 0");
    wait_for("workers that take tasks", || {
        let firing = prometheus.query("ALERTS{alertname='TidegateNoWorkerAccepting'}");
        firing.is_empty().then_some(())
    });

    for _ in 0..3 {
        shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\":600000}"]);
    }
    wait_for("three to run", || {
        (dies.series_value("tidegate_worker_in_flight_tasks") == Some(3.0)).then_some(())
    });
    dies.kill();
    // Until its lease is over the store holds what nobody runs.
    prometheus.wait_for_alert("TidegateTaskCountLeak");
    prometheus.wait_for_alert("TidegateLeasesExpired");

    let heir = MetricsWorker::start(&shell, &["--kinds", "sleep", "--max-concurrent", "sleep=3"]);
    prometheus.scrape_workers(&shell, &[&watcher, &heir]);
    prometheus.wait_for_result("max(tidegate_concurrency_slots_active{limit='group:sleep'}) == 3");
    assert_eq!(prometheus.query("ALERTS{alertname='TidegateHoldersOverLimit'}"), []);
    shell.run_ok(&["concurrency", "set", "sleep", "--limit", "1"]);
    prometheus.wait_for_alert("TidegateHoldersOverLimit");

    watcher.drain();
    heir.drain();
    prometheus.wait_for_alert("TidegateNoWorkerAccepting");
    assert_eq!(get(&heir.address, "/healthz").unwrap().0, 503, "it drains");
}

#[test]
fn alerts_fire_on_long_waits() {
    let shell = Shell::new();
    let worker =
        MetricsWorker::start(&shell, &["--concurrency", "2", "--max-concurrent", "sleep=1"]);
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.scrape_workers(&shell, &[&worker]);
    prometheus.wait_for_result("tidegate_worker_slots == 2");
    // One of them runs at a time: the others wait for the limit.
    let long = ["submit", "sleep", "--payload", "{\"ms\":1000}"];
    (0..5).for_each(|_| drop(shell.run_ok(&long)));
    prometheus.wait_for_alert("TidegateLimitWaitHigh");
    // No limit applies to these: they wait for the worker.
    let call = ["submit", "exec", "--payload", "{\"argv\":[\"sleep\",\"1\"]}"];
    drop(worker);
    (0..8).for_each(|_| drop(shell.run_ok(&call)));
    let worker = MetricsWorker::start(&shell, &["--concurrency", "1", "--exec-allow", "sleep"]);
    prometheus.scrape_workers(&shell, &[&worker]);
    prometheus.wait_for_alert("TidegateWorkerWaitHigh");
}

/// A job waits for a worker that has others to do first: its few tasks are all ready, and none begins.
fn starves(store: &[&str]) {
    let shell = Shell::new();
    let good = |words: &[&str]| shell.run_ok(&[words, store].concat());
    let worker = MetricsWorker::start(&shell, &[&["--concurrency", "1"], store].concat());
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.scrape_workers(&shell, &[&worker]);
    good(&["submit", "sleep", "--payload", "{\"ms\":600000}", "--job", "greedy"]);
    prometheus.wait_for_result("max(tidegate_job_in_flight_tasks{job_name='greedy'}) == 1");
    for job in ["greedy", "nightly"] {
        let task = ["submit", "sleep", "--payload", "{\"ms\":1}", "--job", job];
        (0..3).for_each(|_| drop(good(&task)));
    }
    let starved = prometheus.wait_for_alert("TidegateJobStarved");
    assert!(starved.iter().all(|labels| labels["job_name"] == "nightly"), "{starved:?}");
    prometheus.wait_for_result("max(tidegate_job_oldest_wait_seconds{job_name='greedy'}) > 1");
    prometheus.wait_for_result("max(tidegate_job_slots_active{job_name='nightly'}) == 3");
    prometheus.wait_for_result("max(tidegate_job_slots_waiting{job_name='nightly'}) == 0");
    // Where every task waits for a worker, more of them would help.
    prometheus.wait_for_result("max(tidegate_workers_wanted) == 6");
    assert_eq!(prometheus.query("ALERTS{alertname='TidegateNoWorkerAccepting'}"), [], "it is full");
    good(&["job", "pause", "nightly"]);
    wait_for("a pause to end the alert", || {
        prometheus.query("ALERTS{alertname='TidegateJobStarved'}").is_empty().then_some(())
    });
}

#[test]
fn alert_fires_on_starving_job_on_sqlite() {
    starves(&["--store", "sqlite:tasks.db"]);
}

#[test]
fn alert_fires_on_starving_job_on_postgres() {
    let database = Server::shared().database();
    starves(&["--store", &database.url()]);
}

/// Somebody else holds a lock that every call needs.
#[tokio::test(flavor = "multi_thread")]
async fn alert_fires_on_unresponsive_store() {
    let database = Server::shared().database();
    let shell = Shell::new();
    let worker = MetricsWorker::start(&shell, &["--store", &database.url()]);
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.scrape_workers(&shell, &[&worker]);
    prometheus.wait_for_result("tidegate_sample_age_seconds < 3");
    let client = connect(&database).await;
    client.batch_execute("BEGIN; LOCK TABLE tidegate.limits").await.expect("lock");
    prometheus.wait_for_alert("TidegateSampleOld");
    client.batch_execute("ROLLBACK").await.expect("unlock");
}

/// A program with a small pool submits more at once than it has connections, to a store that does not
/// answer. The command line's worker has more connections than it makes calls.
#[tokio::test(flavor = "multi_thread")]
async fn alert_fires_on_full_connection_pool() {
    let database = Server::shared().database();
    let options = Options { pool_size: 2, ..Options::default() };
    let store = Arc::new(Postgres::connect(&database.url(), options).await.expect("connect"));
    store.migrate().await.expect("migrate");
    let metrics = Metrics::new();
    tokio::spawn(Sampler::new(&metrics, store.clone()).run(Shutdown::new()));
    let address = serve(move || metrics.encode_text());
    let shell = Shell::new();
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.scrape_addresses(&shell, &[&address]);
    prometheus.wait_for_result("tidegate_store_connections == 2");
    let client = connect(&database).await;
    client.batch_execute("BEGIN; LOCK TABLE tidegate.tasks").await.expect("lock");
    let submit = || {
        let (store, tasks) = (store.clone(), vec![NewTask::new("noop", "null")]);
        let submission = Submission { tasks, ..Submission::default() };
        tokio::spawn(async move { store.submit(submission).await })
    };
    let submits: Vec<_> = (0..3).map(|_| submit()).collect();
    prometheus.wait_for_alert("TidegatePoolFull");
    client.batch_execute("ROLLBACK").await.expect("unlock");
    for submit in submits {
        submit.await.expect("no panic").expect("it is stored");
    }
    prometheus.wait_for_result("tidegate_store_connections_waiting == 0");
}

/// Serves a text to whoever asks; its address.
fn serve(text: impl Fn() -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            head.take_while(|line| !line.is_empty()).for_each(drop);
            let body = text();
            let length = body.len();
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close";
            let _ = write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        }
    });
    address
}

/// Somebody else holds the lease of a worker that is dead, so that nobody can end it.
#[tokio::test(flavor = "multi_thread")]
async fn alert_fires_on_overdue_leases() {
    let database = Server::shared().database();
    let url = database.url();
    let shell = Shell::new();
    let store = ["--store", &url];
    let watcher = MetricsWorker::start(&shell, &[&store[..], &["--kinds", "noop"]].concat());
    let more = ["--kinds", "sleep", "--lease", "5s"];
    let mut dies = MetricsWorker::start(&shell, &[&store[..], &more].concat());
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.scrape_workers(&shell, &[&watcher]);
    let task = ["submit", "sleep", "--payload", "{\"ms\":600000}"];
    shell.run_ok(&[&task[..], &store].concat());
    wait_for("it to run", || {
        (dies.series_value("tidegate_worker_in_flight_tasks") == Some(1.0)).then_some(())
    });
    dies.kill();
    let client = connect(&database).await;
    client.batch_execute("BEGIN; SELECT FROM tidegate.leases FOR UPDATE").await.expect("lock");
    prometheus.wait_for_alert("TidegateLeasesOverdue");
    client.batch_execute("ROLLBACK").await.expect("unlock");
    prometheus.wait_for_result("max(tidegate_leases_overdue) == 0");
}

async fn connect(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// However many tasks wait and however long: a line when the limit is reached, one when it is left.
#[test]
fn reached_limit_is_logged_once() {
    let shell = Shell::new();
    let worker = MetricsWorker::start(&shell, &["--max-concurrent", "sleep=2"]);
    for _ in 0..30 {
        shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\":1000}", "--job", "nightly"]);
    }
    let mut told = Vec::new();
    while !told.iter().any(|line: &String| line.contains("the limit is left")) {
        let line = worker.stderr_lines.recv_timeout(Duration::from_secs(60)).expect("a line");
        if line.contains("the limit is") {
            told.push(line);
        }
    }
    assert_eq!(told.len(), 2, "{told:?}");
    for (line, word) in told.iter().zip(["reached", "left"]) {
        assert!(line.contains(word) && line.contains(" limit=group:sleep capacity=2 "), "{line}");
        assert!(line.contains("held=") && line.contains("waiting="), "{line}");
    }
}

/// A store that does not answer is no reason to wait for the metrics.
#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_store_does_not_delay_scrape() {
    let database = Server::shared().database();
    let shell = Shell::new();
    let worker = MetricsWorker::start(&shell, &["--store", &database.url()]);
    wait_for("the first reading", || worker.series_value("tidegate_workers"));
    let client = connect(&database).await;
    client.batch_execute("BEGIN; LOCK TABLE tidegate.limits").await.expect("lock");
    wait_for("a reading that hangs", || {
        worker.series_value("tidegate_sample_age_seconds").filter(|age| *age > 8.0)
    });
    let scrape = tokio::task::spawn_blocking(move || worker.scrape());
    let text =
        tokio::time::timeout(Duration::from_secs(1), scrape).await.expect("at once").unwrap();
    assert!(text.contains("tidegate_store_connections_in_use "), "{text}");
    client.batch_execute("ROLLBACK").await.expect("unlock");
}

#[test]
fn metrics_endpoint_rejects_invalid_requests() {
    let shell = Shell::new();
    let worker = MetricsWorker::start(&shell, &[]);
    let status = |target: &str| get(&worker.address, target).map(|(status, _)| status).unwrap_or(0);
    assert_eq!(status("/healthz"), 200);
    assert_eq!(status("/"), 404);
    let sent =
        |request: &str| send(&worker.address, request).map(|(status, _)| status).unwrap_or(0);
    assert_eq!(sent("DELETE /metrics HTTP/1.1\r\nhost: x\r\n\r\n"), 405);
    assert_eq!(sent("nonsense\r\n\r\n"), 400);
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    assert!(![200, 404].contains(&sent(&long)), "a head of 20 kB");
    let port = worker.address.rsplit(':').next().unwrap();
    let told = shell.run(&["worker", "--metrics", port]);
    assert!(told.starts_with("exit 1\n") && told.contains(&format!("127.0.0.1:{port}")), "{told}");
    let error = told.lines().find(|line| line.starts_with("error: ")).expect(&told);
    assert_snapshot!(
        error.replace(port, "PORT"),
        @"error: listen on 127.0.0.1:PORT to show metrics; --metrics takes another address: Address already in use (os error 98)"
    );
    let told = shell.run(&["worker", "--metrics", "everywhere"]);
    assert!(told.starts_with("exit 2\n") && told.contains("127.0.0.1:9464"), "{told}");
}
