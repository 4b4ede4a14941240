//! `tidegate run` from begin to end, and over an interruption.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::common::{Shell, shown};
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
fn a_file_is_worked_off_within_its_limits() {
    let shell = Shell::new();
    shell.file("a.toml", FILE);
    let summary = shell.good(&["run", "a.toml"]);
    assert!(summary.starts_with("66 tasks done in "), "{summary}");
    assert!(summary.contains("at most 3 at once of 3 it takes; 0 refused"), "{summary}");
    assert!(summary.contains("violations: 0 in "), "{summary}");
    assert!(summary.contains("(3 workflows in order)"), "{summary}");
    shell.good(&["doctor", "--at-rest"]);
    let again = shell.run(&["run", "a.toml"]);
    assert!(again.starts_with("exit 0\n66 tasks done in "), "a finished file begins anew: {again}");
    let said = "this file was run to its end before; it is submitted again\nsubmitted 66 tasks\n";
    assert!(again.ends_with(said), "{again}");
}

#[test]
fn an_interrupted_file_goes_on_where_it_was() {
    interrupt_and_go_on(false);
}

#[test]
fn a_worker_does_the_rest_of_an_interrupted_file_and_ends() {
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
    let output = shown(&first.wait_with_output().expect("wait"));
    assert!(output.starts_with("exit 1\n"), "{output}");
    let next = "tasks left; `tidegate run a.toml --store sqlite:tidegate.db` goes on\n";
    assert!(output.ends_with(next), "{output}");
    let told = "finishing what runs; Ctrl-C again, at least 1 s later, gives it back\n";
    assert!(output.contains(told), "{output}");

    // A worker may do the rest: what is left then is the mark of the run, which is no work.
    if by_worker {
        let idle = shell.run(&["worker", "--until-idle"]);
        assert!(idle.ends_with("\nidle: no unfinished task is left\n"), "{idle}");
        shell.good(&["doctor", "--at-rest"]);
    }
    let second = shown(&shell.command(&["run", "a.toml"]).output().expect("run"));
    assert!(second.starts_with("exit 0\n"), "{second}");
    assert!(second.contains("continuing: "), "{second}");
    let completed = shell.good(&["task", "list", "--json", "--max", "1000"]);
    assert_eq!(completed.lines().count(), 60, "nothing is doubled: {completed}");
    shell.good(&["doctor", "--at-rest"]);
}

/// What the store knows of a kind: attempts, back-off and its cap.
fn kind(shell: &Shell, name: &str) -> (i64, i64, i64) {
    let database = rusqlite::Connection::open(shell.path("tidegate.db")).expect("open the store");
    let sql = "select max_attempts, backoff_base_ms, backoff_cap_ms from kinds where name = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    database.query_row(sql, [name], row).expect("a known kind")
}

#[test]
fn a_file_changes_no_kind_that_it_does_not_name() {
    let shell = Shell::new();
    let task = "[[task]]\nkind = \"noop\"\n";
    shell.file("a.toml", format!("[[kind]]\nname = \"noop\"\nmax_attempts = 9\n{task}"));
    shell.good(&["run", "a.toml"]);
    let (_, _, cap_ms) = kind(&shell, "noop");
    assert_eq!(kind(&shell, "noop").0, 9);
    shell.file("b.toml", task);
    shell.good(&["run", "b.toml"]);
    shell.good(&["worker", "--until-idle"]);
    assert_eq!(kind(&shell, "noop").0, 9, "another file and a worker leave it");
    shell.file("c.toml", format!("[[kind]]\nname = \"noop\"\nbackoff_ms = 7\n{task}"));
    shell.good(&["run", "c.toml"]);
    assert_eq!(kind(&shell, "noop"), (9, 7, cap_ms), "what a file does not say stays");
}

#[test]
fn a_worker_drains_on_a_signal() {
    let shell = Shell::new();
    shell.good(&["submit", "sleep", "--payload", "{\"ms\": 300}"]);
    shell.good(&["submit", "sleep", "--payload", "{\"ms\": 300}", "--workflow", "w"]);
    let mut worker = shell.command(&["worker"]);
    let worker = worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = |state: &str| shell.run(&["task", "list", "--json", "--state", state]);
    wait::until("three tasks run", || list("processing").lines().count() == 3);
    let told = Command::new("kill").args(["-TERM", &worker.id().to_string()]).status();
    assert!(told.expect("send a signal").success());
    let output = shown(&worker.wait_with_output().expect("wait"));
    assert!(output.starts_with("exit 0\n2 completed, 0 failed"), "{output}");
    assert!(output.contains("draining: what runs may finish"), "{output}");
}

#[test]
fn explain_says_who_holds_the_slot_and_who_is_next() {
    let shell = Shell::new();
    shell.good(&["submit", "sleep", "--payload", "{\"ms\": 1}"]);
    let ready = shell.good(&["task", "explain", "1"]);
    let nobody = "task 1 is pending: it is ready, and no live worker serves kind \"sleep\" in queue \
                  \"default\"; start one with `tidegate worker --queues default`, since ";
    assert!(ready.starts_with(nobody), "{ready}");
    shell.good(&["concurrency", "set", "sleep", "--limit", "0"]);
    let worker = shell.good(&["submit", "noop"]);
    assert_eq!(worker, "2\n");
    let mut worker = shell.command(&["worker"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let blocked = wait::until_some("the task is blocked", || {
        Some(shell.good(&["task", "explain", "1"])).filter(|text| text.contains("blocked"))
    });
    worker.kill().expect("kill the worker");
    worker.wait().expect("wait");
    assert!(
        blocked.starts_with(
            "task 1 is blocked: paused: limit group:sleep is 0 (set by operator); it stands at \
             place 1 in the line, since "
        ),
        "{blocked}"
    );
    assert!(shell.good(&["concurrency", "status"]).contains("group:sleep"));
    shell.good(&["concurrency", "unset", "sleep"]);
}

#[test]
fn explain_sends_nobody_to_a_worker_that_cannot_help() {
    let shell = Shell::new();
    shell.good(&["submit", "mail", "--new-kind"]);
    let mail = shell.good(&["task", "explain", "1"]);
    let nobody = "task 1 is pending: it is ready, and no live worker serves kind \"mail\" in queue \
                  \"default\"; start a worker that has a handler for it, since ";
    assert!(mail.starts_with(nobody), "{mail}");
    shell.good(&["submit", "noop", "--workflow", "w"]);
    assert_eq!(
        shell.good(&["task", "explain", "2"]),
        "task 2 is pending: it is at the gate, and no live worker serves kind \"noop\" in queue \
         \"default\"; start one with `tidegate worker --queues default`\n"
    );
}

#[test]
fn a_task_that_failed_says_how() {
    let shell = Shell::new();
    shell.file(
        "a.toml",
        "[[task]]\nkind = \"http\"\nmax_attempts = 1\n\
         payload = { url = \"http://127.0.0.1:1/\" }\n",
    );
    let forbidden = shell.run(&["run", "a.toml"]);
    let allow = "which does nothing that is not allowed; add `--http-allow HOST`\n";
    assert!(forbidden.starts_with("exit 1\n") && forbidden.ends_with(allow), "{forbidden}");
    let output = shell.run(&["run", "a.toml", "--http-allow", "127.0.0.1"]);
    assert!(output.starts_with("exit 1\n0 tasks done in "), "{output}");
    let list = "1 task failed; `tidegate task list --state failed` shows why\n";
    assert!(output.ends_with(list), "{output}");
    let list = shell.good(&["task", "list", "--json"]);
    let task: serde_json::Value = serde_json::from_str(&list).expect("one task");
    let (id, error) = (task["id"].to_string(), task["error"].as_str().expect("an error"));
    let told = shell.good(&["task", "explain", &id]);
    let words = format!("task {id} is failed: it has ended; its last error: {error}, since ");
    assert!(told.starts_with(&words), "{told}");
    let shown = shell.good(&["task", "show", &id]);
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
fn a_limit_raised_while_it_runs_is_no_violation() {
    let shell = Shell::new();
    let run = start_slowly(&shell, 40);
    shell.good(&["concurrency", "set", "g", "--limit", "3"]);
    let output = shown(&run.wait_with_output().expect("wait"));
    assert!(output.starts_with("exit 0\n40 tasks done in "), "{output}");
    assert!(output.contains("\ngroup:g changed: 1 to 3, judged by 3\n"), "{output}");
    assert!(output.contains("\nviolations: 0 in 40 attempts "), "{output}");
}

#[test]
fn a_worker_writes_down_what_changes() {
    let shell = Shell::new();
    shell.good(&["concurrency", "set", "sleep", "--limit", "3"]);
    for _ in 0..24 {
        shell.good(&["submit", "sleep", "--payload", "{\"ms\": 300}"]);
    }
    let mut worker = shell.command(&["worker", "--until-idle", "--history", "a.jsonl"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let list = || shell.run(&["task", "list", "--json"]);
    wait::until("a task completes", || list().contains("\"completed\""));
    shell.good(&["concurrency", "set", "sleep", "--limit", "2"]);
    assert!(worker.wait().expect("wait").success());
    let report = shell.run(&["verify", "a.jsonl"]);
    assert!(report.starts_with("exit 0\n"), "{report}");
    assert!(report.contains("\ngroup:sleep changed: 3 to 2, judged by 3\n"), "{report}");
    let strict = shell.run(&["verify", "a.jsonl", "--limit", "group:sleep=2"]);
    assert!(strict.starts_with("exit 1\n") && !strict.contains("changed"), "{strict}");
}

#[test]
fn a_run_that_stands_still_says_why() {
    let shell = Shell::new();
    let run = start_slowly(&shell, 60);
    shell.good(&["concurrency", "set", "g", "--limit", "0"]);
    let mut lines = Lines::of(run);
    lines.until("nothing runs here, ");
    let why = lines.last();
    assert!(why.contains(": paused: limit group:g is 0 (set by operator); it stands at "), "{why}");
    shell.good(&["concurrency", "set", "g", "--limit", "9"]);
    assert!(lines.end().success());
}

/// What a process says on stderr, line by line.
struct Lines {
    child: Child,
    said: BufReader<ChildStderr>,
    last: String,
}

impl Lines {
    fn of(mut child: Child) -> Self {
        let said = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, said, last: String::new() }
    }

    /// Reads up to the line that begins so.
    fn until(&mut self, begin: &str) {
        while !self.last.starts_with(begin) {
            self.last.clear();
            let read = self.said.read_line(&mut self.last);
            assert!(read.expect("read") > 0, "it ended before it said {begin:?}");
        }
    }

    fn last(&self) -> &str {
        &self.last
    }

    fn end(self) -> ExitStatus {
        let Self { mut child, said, .. } = self;
        // Nobody must wait for a reader of a pipe.
        std::thread::scope(|scope| {
            scope.spawn(|| said.lines().for_each(drop));
            child.wait().expect("wait")
        })
    }
}

#[test]
fn a_run_that_waits_for_a_dead_worker_says_until_when() {
    let shell = Shell::new();
    let mut dead = start_slowly(&shell, 60);
    dead.kill().expect("kill the run");
    dead.wait().expect("wait");
    let mut run = shell.command(&["run", "a.toml"]);
    let run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start");
    let mut lines = Lines::of(run);
    lines.until("nothing runs here, ");
    let why = lines.last().to_owned();
    lines.child.kill().expect("kill the run");
    lines.end();
    assert!(why.contains(" on worker ") && why.contains(", lease ends in "), "{why}");
}

#[test]
fn work_that_others_did_is_told() {
    let shell = Shell::new();
    let first = start_slowly(&shell, 40);
    let second = shell.run(&["run", "a.toml"]);
    let first = shown(&first.wait_with_output().expect("wait"));
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
async fn a_second_signal_gives_back_what_runs() {
    let shell = Shell::new();
    shell.file("a.toml", "[[task]]\nkind = \"sleep\"\ncount = 2\npayload = { ms = 60000 }\n");
    let mut run = shell.command(&["run", "a.toml"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = |state: &str| shell.run(&["task", "list", "--json", "--state", state]);
    wait::until("three tasks run", || list("processing").lines().count() == 3);
    let pid = run.id().to_string();
    let interrupt = || Command::new("kill").args(["-INT", &pid]).status().expect("send a signal");
    assert!(interrupt().success());
    let mut lines = Lines::of(run);
    lines.until("finishing what runs");
    // What comes sooner counts as the first.
    time::sleep(Duration::from_secs(1)).await;
    assert!(interrupt().success());
    lines.until("stopped: ");
    assert_eq!(lines.last(), "stopped: 2 attempts given back\n");
    assert!(!lines.end().success(), "some are left");
}

#[test]
fn what_is_said_of_small_things() {
    let shell = Shell::new();
    assert_eq!(shell.good(&["--version"]), "tidegate 0.1.0\n");
    assert_eq!(
        shell.run(&["submit", "noop", "--store", "memory:"]),
        "exit 0\n1\nnote: the store is in memory: the task is gone with this command\n"
    );
    shell.file("empty.toml", "");
    let empty = shell.run(&["run", "empty.toml"]);
    assert!(empty.contains("warning: empty.toml has no tasks, so there is"), "{empty}");
    shell.file("one.toml", "[[task]]\nkind = \"noop\"\n");
    let one = shell.run(&["run", "one.toml"]);
    assert!(
        one.starts_with("exit 0\n1 task done in ") && one.ends_with("submitted 1 task\n"),
        "{one}"
    );
    let help = shell.good(&["task", "list", "--help"]);
    assert!(help.contains("scheduled, pending, blocked, processing, completed"), "{help}");
    let list = shell.good(&["task", "list"]);
    assert!(list.contains("  failed attempts  ") && list.contains("  0 of 5  "), "{list}");
}
