//! What an operator does with jobs and workflows that have work.

use std::process::{Child, Stdio};

use crate::common::{
    Shell, Transcript, expect_exit, expect_numbers, expect_output, normalize_output,
};
use insta::{allow_duplicates, assert_snapshot};
use tidegate_testkit::wait;

/// A worker that is stopped with the test.
struct Worker(Child);

impl Worker {
    fn start(shell: &Shell, arguments: &[&str]) -> Self {
        let mut command = shell.command(&[&["worker", "--lease", "1s"], arguments].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("start a worker"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn normalized_output(shell: &Shell, arguments: &[&str]) -> String {
    normalize_output(&shell.run(arguments))
}

#[test]
fn job_set_creates_and_changes_job() {
    let shell = Shell::new();
    let set = ["job", "set", "crawl", "--concurrency", "2", "--delay", "500ms"];
    assert_snapshot!(
        expect_output(0, &[2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &normalized_output(&shell, &set)),
        @r#"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl 2 0 1 0 T - 0 0 0 0 0 0 0
        note: job "crawl" is new; nothing uses it yet
        "#
    );
    let set =
        ["job", "set", "crawl", "--min-concurrency", "1", "--weight", "4", "--priority", "-3"];
    assert_snapshot!(
        expect_output(0, &[2, 1, 4, -3, 0, 0, 0, 0, 0, 0, 0], &normalized_output(&shell, &set)),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl 2 1 4 -3 T - 0 0 0 0 0 0 0
        "
    );
    let set = ["job", "set", "crawl", "--concurrency", "unset", "--delay", "0s"];
    assert_snapshot!(
        expect_output(0, &[1, 4, -3, 0, 0, 0, 0, 0, 0, 0], &normalized_output(&shell, &set)),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl - 1 4 -3 - - 0 0 0 0 0 0 0
        "
    );
    let shown = shell.run_ok(&["job", "list", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let numbers = ["concurrency", "min_concurrency", "weight", "priority", "delay_ms"];
    let numbers = numbers.map(|key| shown[key].as_i64());
    assert_eq!(numbers, [None, Some(1), Some(4), Some(-3), Some(0)]);
}

#[test]
fn invalid_job_change_is_rejected_with_reason() {
    let shell = Shell::new();
    shell.run_ok(&["job", "set", "crawl", "--weight", "2"]);
    let bad: [(i32, &[&str], &[i64]); 6] = [
        (1, &[], &[]),
        (1, &["--weight", "0"], &[0, 1, 1000]),
        (1, &["--priority", "2000"], &[2000, -1000, 1000]),
        (2, &["--concurrency", "ten"], &[]),
        (2, &["--concurrency", "-1"], &[-1, -1, 0, 2_147_483_647]),
        (1, &["--delay=-1s"], &[-1000, 0, 31_622_400_000]),
    ];
    let mut transcript = Transcript::of(&shell);
    for (code, flags, numbers) in bad {
        let arguments = [&["job", "set", "crawl"], flags].concat();
        expect_output(code, numbers, &shell.run(&arguments));
        transcript.run(code, &arguments);
    }
    assert_snapshot!(transcript);
    for verb in ["pause", "resume", "cancel"] {
        allow_duplicates! {
            assert_snapshot!(
                expect_exit(1, &shell.run(&["job", verb, "crowl"])),
                @r#"error: there is no job "crowl"; did you mean "crawl"?"#
            );
        }
    }
}

/// A change is judged by what holds after it, whether it concerns one of the numbers or both.
#[test]
fn min_concurrency_above_concurrency_is_rejected() {
    let shell = Shell::new();
    let set =
        |flags: &[&str]| normalized_output(&shell, &[&["job", "set", "crawl"], flags].concat());
    assert_snapshot!(
        expect_output(1, &[5, 2], &set(&["--concurrency", "2", "--min-concurrency", "5"])),
        @r#"error: the min_concurrency of job "crawl" is 5, and no more than 2 may run at once; lower it or raise the concurrency"#
    );
    // There is no limit.
    assert_snapshot!(
        expect_output(0, &[5, 1, 0, 0, 0, 0, 0, 0, 0, 0], &set(&["--min-concurrency", "5"])),
        @r#"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl - 5 1 0 - - 0 0 0 0 0 0 0
        note: job "crawl" is new; nothing uses it yet
        "#
    );
    assert_snapshot!(
        expect_output(1, &[5, 2], &set(&["--concurrency", "2"])),
        @r#"error: the min_concurrency of job "crawl" is 5, and no more than 2 may run at once; lower it or raise the concurrency"#
    );
    assert_snapshot!(
        expect_output(0, &[2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], &set(&["--concurrency", "2", "--min-concurrency", "1"])),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl 2 1 1 0 - - 0 0 0 0 0 0 0
        "
    );
    assert_snapshot!(
        expect_output(1, &[3, 2], &set(&["--min-concurrency", "3"])),
        @r#"error: the min_concurrency of job "crawl" is 3, and no more than 2 may run at once; lower it or raise the concurrency"#
    );
    assert_snapshot!(
        expect_output(0, &[4, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0], &set(&["--min-concurrency", "3", "--concurrency", "4"])),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl 4 3 1 0 - - 0 0 0 0 0 0 0
        "
    );
    // It pauses.
    assert_snapshot!(
        expect_output(0, &[0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0], &set(&["--concurrency", "0"])),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl 0 3 1 0 - - 0 0 0 0 0 0 0
        "
    );
    let told = shell.run(&["concurrency", "set", "job:crawl", "--limit", "2"]);
    assert_snapshot!(
        expect_output(0, &[2, 3, 2, 2], &told),
        @r#"
        job:crawl is 2, set by operator
        warning: the min_concurrency of job "crawl" is 3, and no more than 2 may run at once: it counts as 2
        "#
    );
    // What it does not concern is told only.
    assert_snapshot!(
        expect_output(0, &[2, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 2, 2], &set(&["--weight", "1"])),
        @r#"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        crawl 2 3 1 0 - - 0 0 0 0 0 0 0
        warning: the min_concurrency of job "crawl" is 3, and no more than 2 may run at once: it counts as 2
        "#
    );
}

#[test]
fn job_is_paused_and_resumed() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "noop", "--job", "nightly"]);
    assert_snapshot!(
        expect_exit(0, &shell.run(&["job", "pause", "nightly"])),
        @r#"job "nightly" is paused; `tidegate job resume nightly` lets it go on"#
    );
    let _worker = Worker::start(&shell, &[]);
    let other = shell.run_ok(&["submit", "noop"]);
    shell.run_ok(&["task", "wait", other.trim(), "--timeout", "30s"]);
    let why = shell.run_ok(&["task", "explain", "1"]);
    assert_snapshot!(
        expect_numbers(&[1, 1], &normalize_output(&why)),
        @"task 1 is blocked: it stands at place 1 in the line of job:nightly, which is paused; `tidegate job resume nightly` lets it go on, since T (D)"
    );
    assert_snapshot!(
        expect_exit(0, &shell.run(&["job", "resume", "nightly"])),
        @r#"job "nightly" goes on"#
    );
    assert_eq!(shell.run(&["task", "wait", "1", "--timeout", "30s"]), "exit 0\nnull\n");
    assert_snapshot!(
        expect_exit(0, &shell.run(&["job", "resume", "nightly"])),
        @r#"job "nightly" was not paused"#
    );
}

#[test]
fn job_cancel_without_tasks_cancels_nothing() {
    let shell = Shell::new();
    shell.run_ok(&["job", "set", "nightly", "--weight", "2"]);
    assert_snapshot!(
        expect_exit(0, &shell.run(&["job", "cancel", "nightly"])),
        @r#"job "nightly" had no unfinished tasks; nothing was cancelled"#
    );
}

/// What runs is told, what waits ends, and the job can be used again.
#[test]
fn job_cancel_ends_running_and_waiting_tasks() {
    let shell = Shell::new();
    shell.run_ok(&["job", "set", "nightly", "--concurrency", "1"]);
    for _ in 0..3 {
        shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\": 600000}", "--job", "nightly"]);
    }
    let _worker = Worker::start(&shell, &[]);
    wait::until("task 1 runs", || shell.run_ok(&["task", "show", "1"]).contains("processing"));
    assert_snapshot!(
        expect_numbers(&[3], shell.run(&["job", "cancel", "nightly"]).lines().last().unwrap_or_default()),
        @r#"job "nightly": 3 tasks cancelled, nothing is unfinished now"#
    );
    let states =
        shell.run_ok(&["task", "list", "--job", "nightly", "--state", "cancelled", "--json"]);
    assert_eq!(states.lines().count(), 3);
    shell.run_ok(&["job", "pause", "nightly"]);
    let again = shell.run(&["job", "cancel", "nightly"]);
    assert_snapshot!(
        expect_exit(0, &normalize_output(&again)),
        @r#"job "nightly" had no unfinished tasks; nothing was cancelled; it stood still and goes on"#
    );
    shell.run_ok(&["submit", "noop", "--job", "nightly"]);
    assert_eq!(shell.run(&["task", "wait", "4", "--timeout", "30s"]), "exit 0\nnull\n");
    shell.run_ok(&["doctor"]);
}

/// A workflow of three steps whose second fails as long as a file is not there.
fn halted() -> (Shell, Worker) {
    let shell = Shell::new();
    let path = shell.path("mended").display().to_string();
    let cat = format!("{{\"argv\": [\"cat\", \"{path}\"]}}");
    shell.run_ok(&["submit", "noop", "--workflow", "order"]);
    let step = ["submit", "exec", "--workflow", "order", "--max-attempts", "1", "--payload", &cat];
    shell.run_ok(&step);
    shell.run_ok(&["submit", "noop", "--workflow", "order"]);
    let worker = Worker::start(&shell, &["--exec-allow", "cat"]);
    assert!(shell.run(&["task", "wait", "2", "--timeout", "30s"]).starts_with("exit 1"));
    (shell, worker)
}

#[test]
fn workflow_paused_by_failure_is_resumed() {
    let (shell, _worker) = halted();
    let shown = shell.run(&["workflow", "show", "order"]);
    let told = "halted: task 2 has failed; `tidegate workflow resume order` tries it anew, `tidegate \
                workflow skip order` goes on without it, `tidegate workflow cancel order` ends the \
                workflow";
    assert_eq!(shown.lines().last(), Some(told));
    shell.file("mended", "well");
    assert_snapshot!(
        expect_output(0, &[2], &shell.run(&["workflow", "resume", "order"])),
        @r#"workflow "order" goes on with task 2, which is tried anew"#
    );
    assert_eq!(shell.run(&["task", "wait", "3", "--timeout", "30s"]), "exit 0\nnull\n");
    assert_eq!(
        normalized_output(&shell, &["workflow", "list"]).lines().last(),
        Some("order - 0 0 0 0 3 0 0")
    );
    assert_snapshot!(
        expect_exit(0, &shell.run(&["workflow", "resume", "order"])),
        @r#"workflow "order" was not halted"#
    );
}

#[test]
fn workflow_paused_by_failure_is_skipped_or_cancelled() {
    let (shell, _worker) = halted();
    assert_snapshot!(
        expect_output(0, &[2], &shell.run(&["workflow", "skip", "order"])),
        @r#"workflow "order" goes on without task 2"#
    );
    assert_eq!(shell.run(&["task", "wait", "3", "--timeout", "30s"]), "exit 0\nnull\n");

    let (shell, _worker) = halted();
    assert_snapshot!(
        expect_output(0, &[1], &shell.run(&["workflow", "cancel", "order"])),
        @r#"workflow "order": 1 step cancelled, nothing is unfinished now; it stood still and goes on"#
    );
    assert_eq!(
        normalized_output(&shell, &["workflow", "list"]).lines().last(),
        Some("order - 0 0 0 0 1 1 1")
    );
}

#[test]
fn workflow_continues_after_failure_with_on_failure_continue() {
    let shell = Shell::new();
    let fails =
        ["submit", "exec", "--workflow", "w", "--max-attempts", "1", "--on-failure", "continue"];
    shell.run_ok(&[&fails[..], &["--payload", "{\"argv\": [\"false\"]}"]].concat());
    shell.run_ok(&["submit", "noop", "--workflow", "w"]);
    let _worker = Worker::start(&shell, &["--exec-allow", "false"]);
    assert_eq!(shell.run(&["task", "wait", "2", "--timeout", "30s"]), "exit 0\nnull\n");
    let told = shell.run(&["submit", "noop", "--on-failure", "continue"]);
    assert!(told.starts_with("exit 2") && told.contains("--workflow"), "{told}");
    let told = shell.run(&["submit", "noop", "--workflow", "w", "--on-failure", "stop"]);
    assert_snapshot!(
        expect_exit(2, &normalize_output(&told)),
        @"
        error: invalid value 'stop' for '--on-failure <WORD>': unknown word `stop`; known: `halt`, `continue`

        For more information, try '--help'.
        "
    );
}
