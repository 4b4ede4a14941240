//! `tidegate run` from begin to end, and over an interruption.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::common::{
    Shell, expect_exit, expect_numbers, expect_output, format_output, normalize_output, numbers,
    without_numbers,
};
use insta::{allow_duplicates, assert_snapshot};
use tidegate_engine::time;
use tidegate_testkit::wait;

const FILE: &str = r#"
[server]
calls_max = 3
answer_ms_min = 1
answer_ms_max = 5
fail_every = 10

[[limit]]
group = "partner"
capacity = 3

[[kind]]
name = "http"
backoff_ms = 10

[[job]]
name = "calls"

[[task]]
kind = "http"
count = 60
group = "partner"
job = "calls"
payload = { path = "/{n}" }

[[workflow]]
name = "order-{n}"
count = 3
steps = [{ kind = "noop" }, { kind = "sleep", payload = { ms = 1 } }]
"#;

#[test]
fn run_completes_file_within_its_limits() {
    let shell = Shell::new();
    shell.file("a.toml", FILE);
    let summary = shell.run_ok(&["run", "a.toml"]);
    let of =
        |start: &str| numbers(summary.lines().find(|line| line.starts_with(start)).expect(start));
    assert_eq!(of("66 tasks ")[0], 66, "{summary}");
    assert_eq!(of("server: ")[1..4], [3, 3, 0], "at once, of how many, refused: {summary}");
    let violations = of("violations: ");
    assert_eq!((violations[0], violations[2]), (0, 3), "violations, workflows in order: {summary}");
    assert_snapshot!(
        without_numbers(&summary),
        @"
        N tasks done in T (N per second), N failed

        tasks of done failed retries wait pN wait pN run pN
        job calls N N N T
        kind noop N N N T
        kind sleep N N N T

        limit capacity most held mean held slot use
        group:partner N N N N %
        job:calls - N N -

        server: N calls, at most N at once of N it takes; N refused, N failed on purpose

        violations: N in N attempts (N workflows in order)
        "
    );
    shell.run_ok(&["doctor", "--at-rest"]);
    let again = shell.run(&["run", "a.toml"]);
    // A finished file begins anew.
    let again = expect_exit(0, &again);
    assert_eq!(numbers(&again)[0], 66, "{again}");
    assert_snapshot!(
        expect_numbers(&[66], &last_lines(&again, 2)),
        @"
        this file was run to its end before; it is submitted again
        submitted 66 tasks
        "
    );
}

fn last_lines(text: &str, number: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len() - number..].join("\n")
}

#[test]
fn interrupted_run_continues() {
    interrupt_and_go_on(false);
}

#[test]
fn worker_completes_interrupted_run() {
    interrupt_and_go_on(true);
}

fn interrupt_and_go_on(by_worker: bool) {
    let shell = Shell::new();
    shell.file(
        "a.toml",
        "[[limit]]\ngroup = \"sleep\"\ncapacity = 2\n\
         [[task]]\nkind = \"sleep\"\ncount = 60\npayload = { ms = 40 }\n",
    );
    let store = ["--store", "sqlite:tidegate.db"];
    let mut first = shell.command(&["run", "a.toml"]);
    let first =
        first.args(store).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = |state: &str| shell.run(&["task", "list", "--json", "--state", state]);
    wait::until("a task completes", || list("completed").contains("\"completed\""));
    let told = Command::new("kill").args(["-INT", &first.id().to_string()]).status();
    assert!(told.expect("send a signal").success());
    let output = first.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(1), "{}", format_output(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    allow_duplicates! {
        assert_snapshot!(
            without_numbers(&said),
            @"
            submitted N tasks
            finishing what runs; Ctrl-C again, at least T later, gives it back
            N tasks left; `tidegate run a.toml --store sqlite:tidegate.db` goes on
            "
        );
    }

    // A worker may do the rest: what is left then is the mark of the run, which is no work.
    if by_worker {
        let idle = shell.run(&["worker", "--until-idle"]);
        assert_snapshot!(last_lines(&idle, 1), @"idle: no unfinished task is left");
        shell.run_ok(&["doctor", "--at-rest"]);
    }
    let second = shell.command(&["run", "a.toml"]).output().expect("run");
    assert!(second.status.success(), "{}", format_output(&second));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("continuing: "), "{said}");
    let completed = shell.run_ok(&["task", "list", "--json", "--max", "1000"]);
    assert_eq!(completed.lines().count(), 60, "nothing is doubled: {completed}");
    shell.run_ok(&["doctor", "--at-rest"]);
}

/// What the store knows of a kind: attempts, back-off and its cap.
fn kind(shell: &Shell, name: &str) -> (i64, i64, i64) {
    let database = rusqlite::Connection::open(shell.path("tidegate.db")).expect("open the store");
    let sql = "select max_attempts, backoff_base_ms, backoff_cap_ms from kinds where name = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    database.query_row(sql, [name], row).expect("a known kind")
}

#[test]
fn run_file_leaves_unnamed_kinds_unchanged() {
    let shell = Shell::new();
    let task = "[[task]]\nkind = \"noop\"\n";
    shell.file("a.toml", format!("[[kind]]\nname = \"noop\"\nmax_attempts = 9\n{task}"));
    shell.run_ok(&["run", "a.toml"]);
    let (_, _, cap_ms) = kind(&shell, "noop");
    assert_eq!(kind(&shell, "noop").0, 9);
    shell.file("b.toml", task);
    shell.run_ok(&["run", "b.toml"]);
    shell.run_ok(&["worker", "--until-idle"]);
    assert_eq!(kind(&shell, "noop").0, 9, "another file and a worker leave it");
    shell.file("c.toml", format!("[[kind]]\nname = \"noop\"\nbackoff_ms = 7\n{task}"));
    shell.run_ok(&["run", "c.toml"]);
    assert_eq!(kind(&shell, "noop"), (9, 7, cap_ms), "what a file does not say stays");
}

#[test]
fn worker_drains_on_signal() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\": 300}"]);
    shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\": 300}", "--workflow", "w"]);
    let mut worker = shell.command(&["worker"]);
    let worker = worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = |state: &str| shell.run(&["task", "list", "--json", "--state", state]);
    wait::until("three tasks run", || list("processing").lines().count() == 3);
    let told = Command::new("kill").args(["-TERM", &worker.id().to_string()]).status();
    assert!(told.expect("send a signal").success());
    let output = format_output(&worker.wait_with_output().expect("wait"));
    let output = expect_exit(0, &output);
    assert_eq!(numbers(&output)[..2], [2, 0], "completed, failed: {output}");
    assert_snapshot!(
        without_numbers(&output),
        @"
        N completed, N failed, N to be retried, N snoozed, N released, N cancelled, N lost
        worker W works on sqlite:tidegate.db: N tasks at once, kinds noop, sleep
        draining: what runs may finish; a second signal, at least T later, stops it
        "
    );
}

#[test]
fn explain_prints_served_state_and_paused_limit() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\": 1}"]);
    let ready = shell.run_ok(&["task", "explain", "1"]);
    assert_snapshot!(
        expect_numbers(&[1], &normalize_output(&ready)),
        @r#"task 1 is pending: it is ready, and no live worker serves kind "sleep" in queue "default"; start one with `tidegate worker --queues default`, since T (D)"#
    );
    shell.run_ok(&["concurrency", "set", "sleep", "--limit", "0"]);
    let worker = shell.run_ok(&["submit", "noop"]);
    assert_eq!(worker, "2\n");
    let mut worker = shell.command(&["worker"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let blocked = wait::until_some("the task is blocked", || {
        Some(shell.run_ok(&["task", "explain", "1"])).filter(|text| text.contains("blocked"))
    });
    worker.kill().expect("kill the worker");
    worker.wait().expect("wait");
    assert_snapshot!(
        expect_numbers(&[1, 0, 1], &normalize_output(&blocked)),
        @"task 1 is blocked: paused: limit group:sleep is 0 (set by operator); it stands at place 1 in the line, since T (D)"
    );
    assert!(shell.run_ok(&["concurrency", "status"]).contains("group:sleep"));
    shell.run_ok(&["concurrency", "unset", "sleep"]);
}

#[test]
fn explain_suggests_only_workers_that_can_serve() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "mail", "--new-kind"]);
    let mail = shell.run_ok(&["task", "explain", "1"]);
    assert_snapshot!(
        expect_numbers(&[1], &normalize_output(&mail)),
        @r#"task 1 is pending: it is ready, and no live worker serves kind "mail" in queue "default"; start a worker that has a handler for it, since T (D)"#
    );
    shell.run_ok(&["submit", "noop", "--workflow", "w"]);
    assert_snapshot!(
        expect_numbers(&[2], &shell.run_ok(&["task", "explain", "2"])),
        @r#"task 2 is pending: it is at the gate, and no live worker serves kind "noop" in queue "default"; start one with `tidegate worker --queues default`"#
    );
}

#[test]
fn failed_task_shows_its_error() {
    let shell = Shell::new();
    shell.file(
        "a.toml",
        "[[task]]\nkind = \"http\"\nmax_attempts = 1\n\
         payload = { url = \"http://127.0.0.1:1/\" }\n",
    );
    let forbidden = shell.run(&["run", "a.toml"]);
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&forbidden)),
        @"error: the file has tasks of kind `http`, which does nothing that is not allowed; add `--http-allow HOST`"
    );
    let output = shell.run(&["run", "a.toml", "--http-allow", "127.0.0.1"]);
    let output = expect_exit(1, &output);
    assert_eq!(numbers(&output)[0], 0, "{output}");
    assert_snapshot!(
        without_numbers(&last_lines(&output, 2)),
        @"
        submitted N task
        N task failed; `tidegate task list --state failed` shows why
        "
    );
    let list = shell.run_ok(&["task", "list", "--json"]);
    let task: serde_json::Value = serde_json::from_str(&list).expect("one task");
    let (id, error) = (task["id"].to_string(), task["error"].as_str().expect("an error"));
    let told = shell.run_ok(&["task", "explain", &id]);
    assert!(told.contains(error), "{told}");
    assert_snapshot!(expect_numbers(&[2], &normalize_output(&told.replace(error, "ERROR"))), @"task 2 is failed: it has ended; its last error: ERROR, since T (D)");
    let shown = shell.run_ok(&["task", "show", &id]);
    assert!(shown.contains("\nfailed     1 of 1 attempts\n"), "{shown}");
}

/// Starts a run of tasks that take 100 ms each under a limit of 1.
fn start_slowly(shell: &Shell, count: u32) -> Child {
    let tasks = format!("count = {count}\npayload = {{ ms = 100 }}\n");
    let limit = "[[limit]]\ngroup = \"g\"\ncapacity = 1\n";
    shell.file("a.toml", format!("{limit}[[task]]\nkind = \"sleep\"\ngroup = \"g\"\n{tasks}"));
    let mut run = shell.command(&["run", "a.toml"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = || shell.run(&["task", "list", "--json"]);
    wait::until("a task completes", || list().contains("\"completed\""));
    run
}

#[test]
fn limit_raised_during_run_is_no_violation() {
    let shell = Shell::new();
    let run = start_slowly(&shell, 40);
    shell.run_ok(&["concurrency", "set", "g", "--limit", "3"]);
    let output = format_output(&run.wait_with_output().expect("wait"));
    let output = expect_exit(0, &output);
    assert_eq!(numbers(&output)[0], 40, "{output}");
    let changed = output.lines().find(|line| line.starts_with("group:g changed")).expect(&output);
    assert_snapshot!(expect_numbers(&[1, 3, 3], changed), @"group:g changed: 1 to 3, judged by 3");
    let violations = output.lines().find(|line| line.starts_with("violations: ")).expect(&output);
    assert_eq!(numbers(violations)[..2], [0, 40], "{output}");
}

#[test]
fn worker_history_records_limit_changes() {
    let shell = Shell::new();
    shell.run_ok(&["concurrency", "set", "sleep", "--limit", "3"]);
    for _ in 0..24 {
        shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\": 300}"]);
    }
    let mut worker = shell.command(&["worker", "--until-idle", "--history", "a.jsonl"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let list = || shell.run(&["task", "list", "--json"]);
    wait::until("a task completes", || list().contains("\"completed\""));
    shell.run_ok(&["concurrency", "set", "sleep", "--limit", "2"]);
    assert!(worker.wait().expect("wait").success());
    let report = shell.run(&["verify", "a.jsonl"]);
    assert!(report.starts_with("exit 0\n"), "{report}");
    let changed =
        report.lines().find(|line| line.starts_with("group:sleep changed")).expect(&report);
    assert_snapshot!(expect_numbers(&[3, 2, 3], changed), @"group:sleep changed: 3 to 2, judged by 3");
    let strict = shell.run(&["verify", "a.jsonl", "--limit", "group:sleep=2"]);
    assert!(strict.starts_with("exit 1\n") && !strict.contains("changed"), "{strict}");
}

#[test]
fn stalled_run_prints_the_reason() {
    let shell = Shell::new();
    let run = start_slowly(&shell, 60);
    shell.run_ok(&["concurrency", "set", "g", "--limit", "0"]);
    let mut lines = StderrLines::new(run);
    lines.wait_for("nothing runs here, ");
    let why = lines.last();
    let (_, reason) = why.split_once(": paused: ").expect(why);
    assert_eq!(numbers(reason)[0], 0, "the limit: {why}");
    assert_snapshot!(
        without_numbers(reason),
        @"limit group:g is N (set by operator); it stands at place N in the line"
    );
    shell.run_ok(&["concurrency", "set", "g", "--limit", "9"]);
    assert!(lines.end().success());
}

/// What a process says on stderr, line by line.
struct StderrLines {
    child: Child,
    stderr: BufReader<ChildStderr>,
    last: String,
}

impl StderrLines {
    fn new(mut child: Child) -> Self {
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, stderr, last: String::new() }
    }

    /// Reads up to the line that begins so.
    fn wait_for(&mut self, begin: &str) {
        while !self.last.starts_with(begin) {
            self.last.clear();
            let read = self.stderr.read_line(&mut self.last);
            assert!(read.expect("read") > 0, "it ended before it said {begin:?}");
        }
    }

    fn last(&self) -> &str {
        &self.last
    }

    fn end(self) -> ExitStatus {
        let Self { mut child, stderr: said, .. } = self;
        // Nobody must wait for a reader of a pipe.
        std::thread::scope(|scope| {
            scope.spawn(|| said.lines().for_each(drop));
            child.wait().expect("wait")
        })
    }
}

#[test]
fn run_waiting_for_crashed_worker_prints_lease_expiry() {
    let shell = Shell::new();
    let mut dead = start_slowly(&shell, 60);
    dead.kill().expect("kill the run");
    dead.wait().expect("wait");
    let mut run = shell.command(&["run", "a.toml"]);
    let run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
    let mut lines = StderrLines::new(run);
    lines.wait_for("nothing runs here, ");
    let why = lines.last().to_owned();
    lines.child.kill().expect("kill the run");
    lines.end();
    assert_snapshot!(
        without_numbers(&why),
        @"nothing runs here, N tasks left; task N is processing: it runs on worker W, lease ends in T unless renewed, holds group:g slot N"
    );
}

#[test]
fn run_summary_counts_tasks_of_other_processes() {
    let shell = Shell::new();
    let first = start_slowly(&shell, 40);
    let second = shell.run(&["run", "a.toml"]);
    let first = format_output(&first.wait_with_output().expect("wait"));
    assert!(second.starts_with("exit 0\n"), "{second}");
    let all: u64 = [&first, &second].map(|output| tasks_done(output)).into_iter().sum();
    assert_eq!(all, 40, "{first}\n{second}");
    let others = format!("; {} ", tasks_done(&second));
    let told = first.lines().nth(1).expect("a summary");
    let is_told = told.contains(&others) && told.contains("done by other processes");
    assert!(is_told || tasks_done(&second) == 0, "{first}\n{second}");
}

fn tasks_done(output: &str) -> u64 {
    let number = output.lines().nth(1).and_then(|line| line.split(' ').next());
    number.expect("a summary").parse().expect("a number")
}

#[tokio::test]
async fn second_signal_releases_attempts_of_run() {
    let shell = Shell::new();
    shell.file("a.toml", "[[task]]\nkind = \"sleep\"\ncount = 2\npayload = { ms = 60000 }\n");
    let mut run = shell.command(&["run", "a.toml"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = |state: &str| shell.run(&["task", "list", "--json", "--state", state]);
    wait::until("three tasks run", || list("processing").lines().count() == 3);
    let pid = run.id().to_string();
    let interrupt = || Command::new("kill").args(["-INT", &pid]).status().expect("send a signal");
    assert!(interrupt().success());
    let mut lines = StderrLines::new(run);
    lines.wait_for("finishing what runs");
    // What comes sooner counts as the first.
    time::sleep(Duration::from_secs(1)).await;
    assert!(interrupt().success());
    lines.wait_for("stopped: ");
    assert_snapshot!(expect_numbers(&[2], lines.last()), @"stopped: 2 attempts given back");
    assert!(!lines.end().success(), "some are left");
}

#[test]
fn notes_and_singular_forms_are_printed() {
    let shell = Shell::new();
    assert_eq!(shell.run_ok(&["--version"]), "tidegate 0.1.0\n");
    assert_snapshot!(
        expect_output(0, &[1], &shell.run(&["submit", "noop", "--store", "memory:"])),
        @"
        1
        note: the store is in memory: the task is gone with this command
        "
    );
    shell.file("empty.toml", "");
    let empty = shell.run(&["run", "empty.toml"]);
    assert_snapshot!(
        expect_output(0, &[0, 0, 0, 0, 0, 0, 0], &normalize_output(&empty)),
        @"
        0 tasks done in T (0 per second), 0 failed

        tasks of done failed retries wait p50 wait p99 run p50

        limit capacity most held mean held slot use

        violations: 0 in 0 attempts (0 workflows in order)
        warning: empty.toml has no tasks, so there is nothing to run
        submitted 0 tasks
        "
    );
    shell.file("one.toml", "[[task]]\nkind = \"noop\"\n");
    let one = shell.run(&["run", "one.toml"]);
    let one = expect_exit(0, &one);
    assert_eq!(numbers(&one)[0], 1, "{one}");
    assert_snapshot!(
        without_numbers(&one),
        @"
        N task done in T (N per second), N failed

        tasks of done failed retries wait pN wait pN run pN
        kind noop N N N T

        limit capacity most held mean held slot use

        violations: N in N attempt (N workflows in order)
        submitted N task
        "
    );
    let help = shell.run_ok(&["task", "list", "--help"]);
    assert!(help.contains("scheduled, pending, blocked, processing, completed"), "{help}");
    let list = shell.run_ok(&["task", "list"]);
    let head = normalize_output(list.lines().next().expect("a head"));
    assert_snapshot!(head, @"id kind state queue job workflow failed attempts age error");
    assert!(list.contains("  0 of 5  "), "{list}");
}
