//! `tidegate run` from begin to end, and over an interruption.

mod common;

use std::process::{Command, Stdio};

use common::{Shell, shown};

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
    let again = shell.good(&["run", "a.toml"]);
    assert!(again.starts_with("66 tasks done in "), "a finished file begins anew: {again}");
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
    let mut first = shell.command(&["run", "a.toml"]);
    let first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let list = |state: &str| shell.run(&["task", "list", "--json", "--state", state]);
    while !list("completed").contains("\"completed\"") {}
    let told = Command::new("kill").args(["-INT", &first.id().to_string()]).status();
    assert!(told.expect("send a signal").success());
    let output = shown(&first.wait_with_output().expect("wait"));
    assert!(output.starts_with("exit 1\n"), "{output}");
    assert!(output.contains("tasks are left; `tidegate run a.toml` goes on"), "{output}");

    // A worker may do the rest: what is left then is the mark of the run, which is no work.
    if by_worker {
        shell.good(&["worker", "--until-idle"]);
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
    let sql = "select max_attempts, backoff_base_ms, backoff_cap_ms from kind where name = ?1";
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
    while list("processing").lines().count() < 3 {}
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
    assert!(ready.starts_with("task 1 is pending: it is ready, and no live worker"), "{ready}");
    shell.good(&["concurrency", "set", "sleep", "--limit", "0"]);
    let worker = shell.good(&["submit", "noop"]);
    assert_eq!(worker, "2\n");
    let mut worker = shell.command(&["worker"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let blocked = loop {
        let text = shell.good(&["task", "explain", "1"]);
        if text.contains("blocked") {
            break text;
        }
    };
    worker.kill().expect("kill the worker");
    worker.wait().expect("wait");
    assert!(
        blocked.starts_with(
            "task 1 is blocked: it stands at place 1 in the line of group:sleep (0 of 0 slots held)"
        ),
        "{blocked}"
    );
    assert!(shell.good(&["concurrency", "status"]).contains("group:sleep"));
    shell.good(&["concurrency", "unset", "sleep"]);
}
