//! Workers that a real Prometheus looks at.

mod common;
mod prometheus;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use common::Shell;
use prometheus::{Prometheus, Watched, get, program, send, until};
use serde_json::Value;
use tidegate_engine::metrics::about::ALL;
use tidegate_testkit::postgres::Server;

const RULES: &str = include_str!("../../../deploy/prometheus/rules.yml");
const DASHBOARD: &str = include_str!("../../../deploy/grafana/tidegate.json");

/// What only a store with a pool of connections has.
const OF_POOLS: &str = "tidegate_store_connections";

/// Submits some of everything and waits until the worker has done it.
fn work(shell: &Shell, store: &[&str], worker: &Watched) {
    let submit = |arguments: &[&str]| {
        shell.good(&[&["submit"], arguments, store].concat());
    };
    (0..6).for_each(|_| submit(&["sleep", "--payload", "{\"ms\":200}", "--job", "nightly"]));
    shell.good(&[&["concurrency", "set", "job:nightly", "--limit", "4"], store].concat());
    submit(&["noop"]);
    let page = format!("{{\"url\":\"http://{}/healthz\"}}", worker.address);
    submit(&["http", "--payload", &page]);
    let ended = |kind: &str| {
        let labels = format!("{{kind={kind:?},outcome=\"completed\"}}");
        worker.number(&format!("tidegate_worker_tasks_completed_total{labels}"))
    };
    until("the tasks to end", || {
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
    let worker = Watched::start(&shell, &[&more, store].concat());
    let prometheus = Prometheus::start(&shell, RULES);
    prometheus.watch(&shell, &[&worker]);
    // Of what a counter has counted before the first look no rate is known.
    prometheus.find("tidegate_worker_tasks_completed_total{kind='sleep',outcome='completed'} == 0");
    work(&shell, store, &worker);

    prometheus.find("sum(tidegate_worker_tasks_completed_total{outcome='completed'}) == 8");
    prometheus.find("max(tidegate_concurrency_slots_limit{limit='group:sleep'}) == 2");
    prometheus.find(
        "sum(tidegate_concurrency_acquisition_total{limit='group:sleep',result='acquired'}) == 6",
    );
    prometheus.find("sum(tidegate_job_tasks_total{job_name='nightly'}) == 6");
    prometheus.find("tidegate_http_request_seconds_count{status='2xx'} == 1");
    prometheus.find("max(tidegate_tasks{state='completed'}) == 8");
    prometheus.find("tidegate_worker_in_flight_tasks == 0");
    prometheus.find("sum(rate(tidegate_worker_tasks_completed_total[1m])) > 0");
    let all: BTreeSet<String> = ALL.iter().map(|about| about.name.to_owned()).collect();
    let wanted = all.into_iter().filter(|name| has_pool || !name.starts_with(OF_POOLS)).collect();
    assert_eq!(known(&prometheus), wanted);
    for query in panels().iter().filter(|query| has_pool || !query.contains(OF_POOLS)) {
        prometheus.find(query);
    }
    assert_eq!(prometheus.query("ALERTS{alertstate='firing'}"), [], "all is well");

    let mut promtool = program("promtool");
    let mut promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).spawn().unwrap();
    use std::io::Write as _;
    promtool.stdin.take().unwrap().write_all(worker.scrape().as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success(), "promtool finds fault with the text");
}

#[test]
fn prometheus_scrapes_a_worker_on_sqlite() {
    scraped(&["--store", "sqlite:tasks.db"], false);
}

#[test]
fn prometheus_scrapes_a_worker_on_postgres() {
    let database = Server::shared().database();
    scraped(&["--store", &database.url()], true);
}

/// The rules, without the time that a fault has to last, and with waits that a test can bear.
fn impatient() -> String {
    let lines = RULES.lines().filter(|line| !line.trim().starts_with("for:"));
    let lines: Vec<&str> = lines.collect();
    lines.join("\n").replace("> 900\n", "> 1\n").replace("> 60\n", "> 1\n") + "\n"
}

#[test]
fn alerts_fire_on_their_faults() {
    let shell = Shell::new();
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.fires("TidegateNoWorkerAccepting");
    let watcher = Watched::start(&shell, &["--kinds", "noop"]);
    let mut dies = Watched::start(&shell, &["--kinds", "sleep", "--lease", "12s"]);
    prometheus.watch(&shell, &[&watcher, &dies]);
    prometheus.find("tidegate_leases_expired_total == 0");
    until("workers that take tasks", || {
        let firing = prometheus.query("ALERTS{alertname='TidegateNoWorkerAccepting'}");
        firing.is_empty().then_some(())
    });

    for _ in 0..3 {
        shell.good(&["submit", "sleep", "--payload", "{\"ms\":600000}"]);
    }
    until("three to run", || {
        (dies.number("tidegate_worker_in_flight_tasks") == Some(3.0)).then_some(())
    });
    dies.kill();
    // Until its lease is over the store holds what nobody runs.
    prometheus.fires("TidegateTaskCountLeak");
    prometheus.fires("TidegateLeasesExpired");

    let heir = Watched::start(&shell, &["--kinds", "sleep", "--max-concurrent", "sleep=3"]);
    prometheus.watch(&shell, &[&watcher, &heir]);
    prometheus.find("max(tidegate_concurrency_slots_active{limit='group:sleep'}) == 3");
    assert_eq!(prometheus.query("ALERTS{alertname='TidegateHoldersOverLimit'}"), []);
    shell.good(&["concurrency", "set", "sleep", "--limit", "1"]);
    prometheus.fires("TidegateHoldersOverLimit");

    watcher.drain();
    heir.drain();
    prometheus.fires("TidegateNoWorkerAccepting");
    assert_eq!(get(&heir.address, "/healthz").unwrap().0, 503, "it drains");
}

#[test]
fn alerts_fire_on_long_waits() {
    let shell = Shell::new();
    let worker = Watched::start(&shell, &["--concurrency", "2", "--max-concurrent", "sleep=1"]);
    let prometheus = Prometheus::start(&shell, &impatient());
    prometheus.watch(&shell, &[&worker]);
    prometheus.find("tidegate_worker_slots == 2");
    // One of them runs at a time: the others wait for the limit.
    let long = ["submit", "sleep", "--payload", "{\"ms\":1000}"];
    (0..5).for_each(|_| drop(shell.good(&long)));
    prometheus.fires("TidegateLimitWaitHigh");
    // No limit applies to these: they wait for the worker.
    let call = ["submit", "exec", "--payload", "{\"argv\":[\"sleep\",\"1\"]}"];
    drop(worker);
    (0..8).for_each(|_| drop(shell.good(&call)));
    let worker = Watched::start(&shell, &["--concurrency", "1", "--exec-allow", "sleep"]);
    prometheus.watch(&shell, &[&worker]);
    prometheus.fires("TidegateWorkerWaitHigh");
}

/// However many tasks wait and however long: a line when the limit is reached, one when it is left.
#[test]
fn a_limit_that_is_reached_is_told_of_once() {
    let shell = Shell::new();
    let worker = Watched::start(&shell, &["--max-concurrent", "sleep=2"]);
    for _ in 0..30 {
        shell.good(&["submit", "sleep", "--payload", "{\"ms\":1000}", "--job", "nightly"]);
    }
    let mut told = Vec::new();
    while !told.iter().any(|line: &String| line.contains("the limit is left")) {
        let line = worker.said.recv_timeout(Duration::from_secs(60)).expect("a line");
        if line.contains("the limit is") {
            told.push(line);
        }
    }
    assert_eq!(told.len(), 2, "{told:?}");
    for (line, word) in told.iter().zip(["reached", "left"]) {
        assert!(
            line.contains(&format!("the limit is {word} limit=group:sleep capacity=2")),
            "{line}"
        );
        assert!(line.contains("held=") && line.contains("waiting="), "{line}");
    }
}

/// A store that does not answer is no reason to wait for the metrics.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_does_not_delay_a_scrape() {
    let database = Server::shared().database();
    let shell = Shell::new();
    let worker = Watched::start(&shell, &["--store", &database.url()]);
    until("the first reading", || worker.number("tidegate_workers"));
    let (client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.expect("connect");
    tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE tidegate.limits").await.expect("lock");
    until("a reading that hangs", || {
        worker.number("tidegate_sample_age_seconds").filter(|age| *age > 8.0)
    });
    let scrape = tokio::task::spawn_blocking(move || worker.scrape());
    let text =
        tokio::time::timeout(Duration::from_secs(1), scrape).await.expect("at once").unwrap();
    assert!(text.contains("tidegate_store_connections_in_use "), "{text}");
    client.batch_execute("ROLLBACK").await.expect("unlock");
}

#[test]
fn the_endpoint_refuses_what_is_not_for_it() {
    let shell = Shell::new();
    let worker = Watched::start(&shell, &[]);
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
    assert!(told.contains(&format!("listen on 127.0.0.1:{port} to show metrics")), "{told}");
    let told = shell.run(&["worker", "--metrics", "everywhere"]);
    assert!(told.starts_with("exit 2\n") && told.contains("127.0.0.1:9464"), "{told}");
}
