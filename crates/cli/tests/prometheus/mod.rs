//! A real Prometheus, and workers for it to look at.

#![allow(dead_code, reason = "not every test binary needs all of it")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::Shell;

/// No test waits longer than this for what it wants to see.
const TRIES_MAX: u32 = 600;
const TRY_INTERVAL: Duration = Duration::from_millis(100);

/// `prometheus` or `promtool`, in the folder that the environment names or as it is installed.
pub(crate) fn program(name: &str) -> Command {
    let folder = std::env::var_os("TIDEGATE_PROMETHEUS_BIN");
    let path = folder.map_or_else(|| name.into(), |folder| PathBuf::from(folder).join(name));
    let found = Command::new(&path).arg("--version").output().is_ok();
    let hint = "apt-get install prometheus, or set TIDEGATE_PROMETHEUS_BIN to its folder";
    assert!(found, "there is no {name}: {hint}");
    Command::new(path)
}

/// Asks again until the answer is good.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let (_never, nothing) = channel::<()>();
    for _ in 0..TRIES_MAX {
        if let Some(answer) = ask() {
            return answer;
        }
        let _ = nothing.recv_timeout(TRY_INTERVAL);
    }
    panic!("waited in vain for {what}");
}

/// Gets a page: its status and its text.
pub(crate) fn get(address: &str, target: &str) -> std::io::Result<(u16, String)> {
    send(address, &format!("GET {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"))
}

/// Sends a request as it is.
pub(crate) fn send(address: &str, request: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// A worker that shows metrics; it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct MetricsWorker {
    child: Child,
    pub(crate) address: String,
    /// What it says on stderr from then on.
    pub(crate) stderr_lines: Receiver<String>,
}

impl MetricsWorker {
    pub(crate) fn start(shell: &Shell, arguments: &[&str]) -> Self {
        let mut command = shell.command(&["worker", "--metrics", "127.0.0.1:0"]);
        command.args(arguments).env("TIDEGATE_LOG", "info").stderr(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().expect("start a worker");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let address = line.strip_prefix("metrics at http://")?.strip_suffix("/metrics")?;
            Some(address.to_owned())
        });
        let (tell, stderr_lines) = channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, address: address.expect("it says where its metrics are"), stderr_lines }
    }

    /// A scrape, as Prometheus makes it.
    pub(crate) fn scrape(&self) -> String {
        let (status, text) = get(&self.address, "/metrics").expect("the worker answers");
        assert_eq!(status, 200, "{text}");
        text
    }

    /// The number of a series as it is written in the text.
    pub(crate) fn series_value(&self, series: &str) -> Option<f64> {
        let text = self.scrape();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|number| number.parse().ok())
    }

    pub(crate) fn drain(&self) {
        let process = rustix::process::Pid::from_raw(self.child.id() as i32).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("signal it");
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for MetricsWorker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Prometheus that looks at workers every second; it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Looks at addresses that a file lists, see [`Self::watch`], and evaluates rules.
    pub(crate) fn start(shell: &Shell, rules: &str) -> Self {
        shell.file("rules.yml", rules);
        shell.file("targets.json", "[]");
        shell.file(
            "prometheus.yml",
            "global: { scrape_interval: 1s, evaluation_interval: 1s }\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: tidegate\n    \
             file_sd_configs: [{ files: [targets.json], refresh_interval: 1s }]\n",
        );
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a free port").to_string();
        let log = std::fs::File::create(shell.path("prometheus.log")).expect("make the log");
        let child = program("prometheus")
            .arg(format!("--web.listen-address={address}"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=prometheus"])
            .current_dir(shell.path(""))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start Prometheus");
        let prometheus = Self { child, address };
        wait_for("Prometheus", || {
            let (status, _) = get(&prometheus.address, "/-/ready").ok()?;
            (status == 200).then_some(())
        });
        prometheus
    }

    /// Looks at these from now on.
    pub(crate) fn scrape_workers(&self, shell: &Shell, workers: &[&MetricsWorker]) {
        let targets: Vec<&str> = workers.iter().map(|worker| &*worker.address).collect();
        self.scrape_addresses(shell, &targets);
    }

    /// Looks at whoever is at these addresses.
    pub(crate) fn scrape_addresses(&self, shell: &Shell, targets: &[&str]) {
        shell.file("new.json", serde_json::json!([{ "targets": targets }]).to_string());
        std::fs::rename(shell.path("new.json"), shell.path("targets.json")).expect("put it there");
    }

    /// What a query gives: labels and numbers.
    pub(crate) fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let encoded: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let answer = self.api(&format!("/api/v1/query?query={encoded}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let number = |result: &Value| {
            let number = result["value"][1].as_str().and_then(|number| number.parse().ok());
            (result["metric"].clone(), number.expect("a number"))
        };
        answer["data"]["result"].as_array().expect("results").iter().map(number).collect()
    }

    /// Waits until a query gives something.
    #[track_caller]
    pub(crate) fn wait_for_result(&self, query: &str) -> Vec<(Value, f64)> {
        wait_for(query, || Some(self.query(query)).filter(|found| !found.is_empty()))
    }

    /// Waits until an alert fires; its labels, each time it does.
    #[track_caller]
    pub(crate) fn wait_for_alert(&self, alert: &str) -> Vec<Value> {
        let firing =
            self.wait_for_result(&format!("ALERTS{{alertname={alert:?},alertstate=\"firing\"}}"));
        firing.into_iter().map(|(labels, _)| labels).collect()
    }

    /// An answer of its interface.
    pub(crate) fn api(&self, target: &str) -> Value {
        let (_, body) = get(&self.address, target).expect("Prometheus answers");
        // It may come in pieces, each with its length before it.
        let from = body.find('{').unwrap_or(0);
        let to = body.rfind('}').map_or(0, |at| at + 1);
        let text = &body[from..to];
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
