//! What an operator does with jobs and workflows that have work.

use std::process::{Child, Stdio};

use crate::common::{Shell, plain};
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

const HEAD: &str = "job concurrency min weight priority delay paused scheduled pending blocked \
                    processing completed failed cancelled\n";

fn seen(shell: &Shell, arguments: &[&str]) -> String {
    plain(&shell.run(arguments))
}

#[test]
fn a_job_is_made_and_changed() {
    let shell = Shell::new();
    let set = ["job", "set", "crawl", "--concurrency", "2", "--delay", "500ms"];
    assert_eq!(
        seen(&shell, &set),
        format!(
            "exit 0\n{HEAD}crawl 2 0 1 0 T - 0 0 0 0 0 0 0\nnote: job \"crawl\" is new; nothing uses \
             it yet\n"
        )
    );
    let set =
        ["job", "set", "crawl", "--min-concurrency", "1", "--weight", "4", "--priority", "-3"];
    let row = "crawl 2 1 4 -3 T - 0 0 0 0 0 0 0\n";
    assert_eq!(seen(&shell, &set), format!("exit 0\n{HEAD}{row}"));
    let set = ["job", "set", "crawl", "--concurrency", "unset", "--delay", "0s"];
    let row = "crawl - 1 4 -3 - - 0 0 0 0 0 0 0\n";
    assert_eq!(seen(&shell, &set), format!("exit 0\n{HEAD}{row}"));
    let shown = shell.good(&["job", "list", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let numbers = ["concurrency", "min_concurrency", "weight", "priority", "delay_ms"];
    let numbers = numbers.map(|key| shown[key].as_i64());
    assert_eq!(numbers, [None, Some(1), Some(4), Some(-3), Some(0)]);
}

#[test]
fn bad_changes_of_jobs_say_what_is_wrong() {
    let shell = Shell::new();
    shell.good(&["job", "set", "crawl", "--weight", "2"]);
    let bad: [(&[&str], &str); 6] = [
        (&[], "what is to change? Say --concurrency"),
        (&["--weight", "0"], "must be between 1 and 1000"),
        (&["--priority", "2000"], "must be between -1000 and 1000"),
        (&["--concurrency", "ten"], "give a number, or `unset`"),
        (&["--concurrency", "-1"], "cannot be -1; it must be between 0"),
        (&["--delay=-1s"], "must be between 0 and"),
    ];
    for (arguments, text) in bad {
        let told = shell.run(&[&["job", "set", "crawl"], arguments].concat());
        assert!(!told.starts_with("exit 0") && told.contains(text), "{arguments:?}: {told}");
    }
    for verb in ["pause", "resume", "cancel"] {
        assert_eq!(
            shell.run(&["job", verb, "crowl"]),
            "exit 1\nerror: there is no job \"crowl\"; did you mean \"crawl\"?\n"
        );
    }
}

/// A change is judged by what holds after it, whether it concerns one of the numbers or both.
#[test]
fn a_reserve_above_the_concurrency_is_refused() {
    let shell = Shell::new();
    let set = |flags: &[&str]| seen(&shell, &[&["job", "set", "crawl"], flags].concat());
    let refused = |least: u32, most: u32| {
        format!(
            "exit 1\nerror: the min_concurrency of job \"crawl\" is {least}, and no more than {most} \
             may run at once; lower it or raise the concurrency\n"
        )
    };
    let row = |numbers: &str| format!("exit 0\n{HEAD}crawl {numbers} 1 0 - - 0 0 0 0 0 0 0\n");
    assert_eq!(set(&["--concurrency", "2", "--min-concurrency", "5"]), refused(5, 2));
    assert!(set(&["--min-concurrency", "5"]).starts_with(&row("- 5")), "nobody limits it");
    assert_eq!(set(&["--concurrency", "2"]), refused(5, 2));
    assert_eq!(set(&["--concurrency", "2", "--min-concurrency", "1"]), row("2 1"));
    assert_eq!(set(&["--min-concurrency", "3"]), refused(3, 2));
    assert_eq!(set(&["--min-concurrency", "3", "--concurrency", "4"]), row("4 3"));
    assert_eq!(set(&["--concurrency", "0"]), row("0 3"), "it pauses");
    let warning = "warning: the min_concurrency of job \"crawl\" is 3, and no more than 2 may run at \
                   once: it counts as 2\n";
    let told = shell.run(&["concurrency", "set", "job:crawl", "--limit", "2"]);
    assert_eq!(told, format!("exit 0\njob:crawl is 2, set by operator\n{warning}"));
    let told = set(&["--weight", "1"]);
    assert_eq!(told, row("2 3") + warning, "what it does not concern is told only");
}

#[test]
fn a_job_is_paused_and_resumed() {
    let shell = Shell::new();
    shell.good(&["submit", "noop", "--job", "nightly"]);
    assert_eq!(
        shell.run(&["job", "pause", "nightly"]),
        "exit 0\njob \"nightly\" is paused; `tidegate job resume nightly` lets it go on\n"
    );
    let _worker = Worker::start(&shell, &[]);
    let other = shell.good(&["submit", "noop"]);
    shell.good(&["task", "wait", other.trim(), "--timeout", "30s"]);
    let why = shell.good(&["task", "explain", "1"]);
    assert!(why.contains("job:nightly, which is paused; `tidegate job resume nightly`"), "{why}");
    assert_eq!(shell.run(&["job", "resume", "nightly"]), "exit 0\njob \"nightly\" goes on\n");
    assert_eq!(shell.run(&["task", "wait", "1", "--timeout", "30s"]), "exit 0\nnull\n");
    assert_eq!(
        shell.run(&["job", "resume", "nightly"]),
        "exit 0\njob \"nightly\" was not paused\n"
    );
}

#[test]
fn a_job_without_work_has_nothing_to_cancel() {
    let shell = Shell::new();
    shell.good(&["job", "set", "nightly", "--weight", "2"]);
    let told = "exit 0\njob \"nightly\" had no unfinished tasks; nothing was cancelled\n";
    assert_eq!(shell.run(&["job", "cancel", "nightly"]), told);
}

/// What runs is told, what waits ends, and the job can be used again.
#[test]
fn a_job_is_cancelled() {
    let shell = Shell::new();
    shell.good(&["job", "set", "nightly", "--concurrency", "1"]);
    for _ in 0..3 {
        shell.good(&["submit", "sleep", "--payload", "{\"ms\": 600000}", "--job", "nightly"]);
    }
    let _worker = Worker::start(&shell, &[]);
    wait::until("task 1 runs", || shell.good(&["task", "show", "1"]).contains("processing"));
    assert_eq!(
        shell.run(&["job", "cancel", "nightly"]).lines().last(),
        Some("job \"nightly\": 3 tasks cancelled, nothing is unfinished now")
    );
    let states =
        shell.good(&["task", "list", "--job", "nightly", "--state", "cancelled", "--json"]);
    assert_eq!(states.lines().count(), 3);
    shell.good(&["job", "pause", "nightly"]);
    let again = shell.run(&["job", "cancel", "nightly"]);
    assert!(again.ends_with("nothing was cancelled; it stood still and goes on\n"), "{again}");
    shell.good(&["submit", "noop", "--job", "nightly"]);
    assert_eq!(shell.run(&["task", "wait", "4", "--timeout", "30s"]), "exit 0\nnull\n");
    assert!(
        shell.good(&["doctor"]).contains("no fault")
            || shell.run(&["doctor"]).starts_with("exit 0")
    );
}

/// A workflow of three steps whose second fails as long as a file is not there.
fn halted() -> (Shell, Worker) {
    let shell = Shell::new();
    let path = shell.path("mended").display().to_string();
    let cat = format!("{{\"argv\": [\"cat\", \"{path}\"]}}");
    shell.good(&["submit", "noop", "--workflow", "order"]);
    let step = ["submit", "exec", "--workflow", "order", "--max-attempts", "1", "--payload", &cat];
    shell.good(&step);
    shell.good(&["submit", "noop", "--workflow", "order"]);
    let worker = Worker::start(&shell, &["--exec-allow", "cat"]);
    assert!(shell.run(&["task", "wait", "2", "--timeout", "30s"]).starts_with("exit 1"));
    (shell, worker)
}

#[test]
fn a_halted_workflow_is_resumed() {
    let (shell, _worker) = halted();
    let shown = shell.run(&["workflow", "show", "order"]);
    let told = "halted: task 2 has failed; `tidegate workflow resume order` tries it anew, `tidegate \
                workflow skip order` goes on without it, `tidegate workflow cancel order` ends the \
                workflow";
    assert_eq!(shown.lines().last(), Some(told));
    shell.file("mended", "well");
    assert_eq!(
        shell.run(&["workflow", "resume", "order"]),
        "exit 0\nworkflow \"order\" goes on with task 2, which is tried anew\n"
    );
    assert_eq!(shell.run(&["task", "wait", "3", "--timeout", "30s"]), "exit 0\nnull\n");
    assert_eq!(seen(&shell, &["workflow", "list"]).lines().last(), Some("order - 0 0 0 0 3 0 0"));
    assert_eq!(
        shell.run(&["workflow", "resume", "order"]),
        "exit 0\nworkflow \"order\" was not halted\n"
    );
}

#[test]
fn a_halted_workflow_is_skipped_and_cancelled() {
    let (shell, _worker) = halted();
    assert_eq!(
        shell.run(&["workflow", "skip", "order"]),
        "exit 0\nworkflow \"order\" goes on without task 2\n"
    );
    assert_eq!(shell.run(&["task", "wait", "3", "--timeout", "30s"]), "exit 0\nnull\n");

    let (shell, _worker) = halted();
    assert_eq!(
        shell.run(&["workflow", "cancel", "order"]),
        "exit 0\nworkflow \"order\": 1 step cancelled, nothing is unfinished now; it stood still and goes on\n"
    );
    assert_eq!(seen(&shell, &["workflow", "list"]).lines().last(), Some("order - 0 0 0 0 1 1 1"));
}

#[test]
fn a_workflow_goes_on_where_a_step_says_so() {
    let shell = Shell::new();
    let fails =
        ["submit", "exec", "--workflow", "w", "--max-attempts", "1", "--on-failure", "continue"];
    shell.good(&[&fails[..], &["--payload", "{\"argv\": [\"false\"]}"]].concat());
    shell.good(&["submit", "noop", "--workflow", "w"]);
    let _worker = Worker::start(&shell, &["--exec-allow", "false"]);
    assert_eq!(shell.run(&["task", "wait", "2", "--timeout", "30s"]), "exit 0\nnull\n");
    let told = shell.run(&["submit", "noop", "--on-failure", "continue"]);
    assert!(told.starts_with("exit 2") && told.contains("--workflow"), "{told}");
    let told = shell.run(&["submit", "noop", "--workflow", "w", "--on-failure", "stop"]);
    assert!(told.starts_with("exit 2") && told.contains("`halt`, `continue`"), "{told}");
}
