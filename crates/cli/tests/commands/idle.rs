//! `worker --until-idle`: when a worker ends by itself, and what it says where it does not.

use std::io::{BufRead as _, Write as _};
use std::process::Stdio;

use crate::common::{Shell, expect_numbers, expect_output, format_output, normalize_output};
use insta::assert_snapshot;

#[test]
fn worker_until_idle_prints_why_tasks_remain() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "exec", "--payload", "{\"argv\": [\"true\"]}"]);
    shell.run_ok(&["submit", "noop"]);
    shell.run_ok(&["concurrency", "set", "noop", "--limit", "0"]);
    let mut command = shell.command(&["worker", "--until-idle"]);
    let mut worker = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start");
    let mut lines = std::io::BufReader::new(worker.stderr.take().expect("stderr")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    let first = next();
    assert_snapshot!(
        expect_numbers(&[16], &normalize_output(&first)),
        @"worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop, sleep"
    );
    let why = next();
    assert_snapshot!(
        expect_numbers(&[2, 2, 0, 1], &normalize_output(&why)),
        @"nothing runs, 2 tasks left; task 2 is blocked: paused: limit group:noop is 0 (set by operator); it stands at place 1 in the line"
    );
    worker.kill().expect("kill");
    worker.wait().expect("wait");
}

/// It ends when nothing is left that it serves, and says what is left for others. What it serves is
/// found behind any number of tasks that it does not.
#[test]
fn worker_until_idle_ends_when_no_served_task_remains() {
    let shell = Shell::new();
    let exec = ["submit", "exec", "--payload", "{\"argv\": [\"true\"]}"];
    shell.run_ok(&exec);
    let mut command = shell.command(&["submit", "noop", "--each-line", "--queue", "mail"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start");
    let lines = "1\n".repeat(600);
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("write");
    assert!(child.wait().expect("wait").success());
    shell.run_ok(&["submit", "noop", "--workflow", "w"]);
    let told = shell.run(&["worker", "--until-idle"]);
    assert!(told.starts_with("exit 0\n1 completed, 0 failed"), "{told}");
    assert_snapshot!(
        expect_output(0, &[1, 0, 0, 0, 0, 0, 0, 16, 601, 1], &normalize_output(&told)),
        @r#"
        1 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop, sleep
        idle: nothing is left that this worker serves; 601 tasks left for others: task 1 is pending: it is ready, and no live worker serves kind "exec" in queue "default"; start one with `tidegate worker --queues default --exec-allow COMMAND`
        "#
    );
    let told = shell.run(&["worker", "--until-idle", "--queues", "mail", "--kinds", "noop"]);
    assert!(told.starts_with("exit 0\n600 completed, 0 failed"), "{told}");
    assert_snapshot!(
        expect_output(0, &[600, 0, 0, 0, 0, 0, 0, 16, 1, 1], &normalize_output(&told)),
        @r#"
        600 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop
        idle: nothing is left that this worker serves; 1 task left for others: task 1 is pending: it is ready, and no live worker serves kind "exec" in queue "default"; start one with `tidegate worker --queues default --exec-allow COMMAND`
        "#
    );
    let told = shell.run(&["worker", "--until-idle", "--exec-allow", "true"]);
    assert!(told.starts_with("exit 0\n1 completed"), "{told}");
    assert_snapshot!(
        expect_output(0, &[1, 0, 0, 0, 0, 0, 0, 16], &normalize_output(&told)),
        @"
        1 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop, sleep, exec
        idle: no unfinished task is left
        "
    );
}

/// A step that waits for one that others serve is its work all the same.
#[test]
fn worker_until_idle_waits_for_step_blocked_by_another_worker() {
    let shell = Shell::new();
    let exec = ["submit", "exec", "--workflow", "w", "--payload", "{\"argv\": [\"true\"]}"];
    shell.run_ok(&exec);
    shell.run_ok(&["submit", "noop", "--workflow", "w"]);
    let mut command = shell.command(&["worker", "--until-idle"]);
    let waits = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let other = ["worker", "--until-idle", "--kinds", "exec", "--exec-allow", "true"];
    assert!(shell.run(&other).starts_with("exit 0\n1 completed"));
    let told = format_output(&waits.wait_with_output().expect("wait"));
    assert!(told.starts_with("exit 0\n1 completed"), "{told}");
}
