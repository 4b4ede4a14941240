//! What an operator sees and does: whole outputs of the commands on a store with known tasks.

use std::process::{Child, Stdio};

use crate::common::{
    Shell, Transcript, expect_exit, expect_numbers, expect_output, normalize_output,
};
use insta::assert_snapshot;

use serde_json::Value;
use tidegate_testkit::wait;

/// A store in which a limit is full, a queue has work, and some tasks have ended.
///
/// Tasks 1 to 3 are under the limit of group `partner`, 2; 4 and 5 are steps of `order`; 6 is of
/// job `nightly`; 7 is not due; 8 failed for good; 9 is completed.
fn store() -> Shell {
    let shell = Shell::new();
    shell.run_ok(&["concurrency", "set", "partner", "--limit", "2"]);
    for _ in 0..3 {
        shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\": 60000}", "--group", "partner"]);
    }
    for _ in 0..2 {
        shell.run_ok(&["submit", "noop", "--workflow", "order", "--queue", "later"]);
    }
    shell.run_ok(&["submit", "noop", "--job", "nightly", "--queue", "later"]);
    shell.run_ok(&["submit", "noop", "--delay", "1h"]);
    let hangs = ["submit", "sleep", "--payload", "{\"ms\": 60000}", "--queue", "now"];
    shell.run_ok(&[&hangs[..], &["--timeout", "10ms", "--max-attempts", "1"]].concat());
    shell.run_ok(&["submit", "noop", "--payload", "{\"n\": 1}", "--queue", "now"]);
    shell.run_ok(&["concurrency", "set", "partner", "--limit", "0"]);
    let until = ["worker", "--queues", "now", "--until-idle"];
    let mut worker = WorkerProcess::start(&shell, &until);
    shell.run_ok(&["task", "wait", "9"]);
    assert!(shell.run(&["task", "wait", "8"]).starts_with("exit 1\n"));
    worker.stop();
    shell.run_ok(&["concurrency", "set", "partner", "--limit", "2"]);
    shell
}

/// A process that does not outlive the test.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(shell: &Shell, arguments: &[&str]) -> Self {
        let mut command = shell.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("start a worker"))
    }

    /// As with kill -9.
    fn stop(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a worker that runs tasks 1 and 2 for the rest of the test.
fn with_worker(shell: &Shell) -> WorkerProcess {
    let worker = WorkerProcess::start(shell, &["worker", "--queues", "default", "--lease", "60s"]);
    let held = || {
        let limit = json(&shell.run_ok(&["concurrency", "status", "partner", "--json"]));
        let on_a_worker = |holder: &Value| !holder["worker"].is_null();
        let holders = limit[0]["holders"].as_array().expect("holders").clone();
        holders.iter().filter(|holder| on_a_worker(holder)).count() == 2 && limit[0]["waiting"] == 1
    };
    wait::until("tasks 1 and 2 run", held);
    worker
}

fn json(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
}

fn states(shell: &Shell, ids: &[&str]) -> Vec<Value> {
    let state =
        |id: &&str| json(&shell.run_ok(&["task", "show", id, "--json"]))[0]["state"].clone();
    ids.iter().map(state).collect()
}

fn normalized_output(shell: &Shell, arguments: &[&str]) -> String {
    normalize_output(&shell.run(arguments))
}

#[test]
fn task_list_filters_and_pages() {
    let shell = store();
    let mut transcript = Transcript::of(&shell);
    transcript
        .run(0, &["task", "list", "--queue", "later"])
        .run(0, &["task", "list", "--state", "failed"])
        .run(0, &["task", "list", "--state", "failed", "--state", "completed"])
        .run(0, &["task", "list", "--max", "2"])
        .run(0, &["task", "list", "--kind", "nope", "--json"]);
    assert_snapshot!(transcript);
    let ids = |arguments: &[&str]| {
        let tasks = json(&shell.run_ok(arguments));
        tasks.iter().map(|task| task["id"].as_u64().expect("an id")).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["task", "list", "--queue", "later", "--json"]), [4, 5, 6]);
    assert_eq!(ids(&["task", "list", "--group", "partner", "--json"]), [1, 2, 3]);
    let all = ["1", "2", "4", "5", "6", "8", "9"];
    let wanted = ["blocked", "blocked", "pending", "blocked", "blocked", "failed", "completed"];
    assert_eq!(states(&shell, &all), wanted);
    assert_eq!(ids(&["task", "list", "--state", "failed", "--json"]), [8]);
    assert_eq!(
        ids(&["task", "list", "--state", "failed", "--state", "completed", "--json"]),
        [8, 9]
    );
    assert_eq!(ids(&["task", "list", "--max", "2", "--json"]), [1, 2]);
}

#[test]
fn task_show_prints_every_field() {
    let shell = store();
    assert_snapshot!(
        expect_output(0, &[9, 1, 0, 0, 5, 1], &normalized_output(&shell, &["task", "show", "9"])),
        @r#"
        id 9
        kind noop
        state completed
        queue now
        group noop
        weight 1
        priority 0
        failed 0 of 5 attempts
        submitted D
        ended D
        payload {"n": 1}
        result null
        "#
    );
    let whole = json(&shell.run_ok(&["task", "show", "9", "--json"]));
    assert_eq!(whole[0]["state"], "completed");
    let mut names: Vec<&String> = whole[0].as_object().expect("an object").keys().collect();
    names.sort_unstable();
    let mut wanted = [
        "id",
        "kind",
        "queue",
        "state",
        "group",
        "job",
        "workflow",
        "unique_key",
        "weight",
        "priority",
        "attempts_used",
        "max_attempts",
        "crashes",
        "created_at",
        "run_at",
        "finished_at",
        "error",
        "progress",
        "payload",
        "result",
    ];
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}

#[test]
fn task_explain_prints_why_task_waits() {
    let shell = store();
    let _worker = with_worker(&shell);
    assert_eq!(states(&shell, &["3", "4"]), ["blocked", "pending"]);
    assert_snapshot!(
        expect_output(0, &[3, 1, 2, 2, 0, 1, 1, 2], &normalized_output(&shell, &["task", "explain", "3"])),
        @"
        task 3 is blocked: it stands at place 1 in the line of group:partner (2 of 2 slots held), since T (D)
        slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed
        slot 1: task 2 (sleep) on worker W, lease ends in T unless renewed
        "
    );
    let told = json(&shell.run_ok(&["task", "explain", "3", "--json"]));
    assert_eq!(
        (&told[0]["reason"]["queue_position"], &told[0]["estimated_wait_ms"]),
        (&1.into(), &Value::Null)
    );
    assert_snapshot!(
        expect_output(0, &[4], &normalized_output(&shell, &["task", "explain", "4"])),
        @r#"task 4 is pending: it is ready, and no live worker serves kind "noop" in queue "later"; start one with `tidegate worker --queues later`, since T (D)"#
    );
    shell.run_ok(&["queue", "pause", "later"]);
    assert_snapshot!(
        expect_output(0, &[4], &normalized_output(&shell, &["task", "explain", "4"])),
        @r#"task 4 is pending: it is ready; queue "later" is paused for T, `tidegate queue resume later` lets it go on, since T (D)"#
    );
}

#[test]
fn task_cancel_and_retry_by_id_print_outcomes() {
    let shell = store();
    let _worker = with_worker(&shell);
    assert_snapshot!(
        expect_output(1, &[1, 4, 9, 99], &normalized_output(&shell, &["task", "cancel", "1", "4", "9", "99"])),
        @"
        task 1 runs; its worker is told with the next heartbeat
        task 4 is cancelled
        task 9 has ended already; it stays as it is
        there is no task 99, or it has ended and was removed; see `tidegate task list`
        "
    );
    assert_snapshot!(
        expect_output(1, &[4, 7, 8, 9, 5, 5, 99], &normalized_output(&shell, &["task", "retry", "4", "7", "8", "9", "5", "99"])),
        @"
        task 4 starts anew
        task 7 is due now
        task 8 starts anew
        task 9 is completed; submit it again to do its work again
        task 5 waits for its turn or runs; `tidegate task explain 5`
        there is no task 99, or it has ended and was removed; see `tidegate task list`
        "
    );
    assert_eq!(
        shell.run(&["task", "cancel", "5", "6", "--json"]),
        "exit 0\n{\"task\":5,\"outcome\":\"cancelled\"}\n{\"task\":6,\"outcome\":\"cancelled\"}\n"
    );
}

#[test]
fn task_cancel_and_retry_by_filter_change_matching_tasks() {
    let shell = store();
    let meant = normalized_output(&shell, &["task", "cancel", "--queue", "later", "--dry-run"]);
    assert_snapshot!(
        expect_output(0, &[4, 0, 5, 5, 0, 5, 6, 0, 5, 3], &normalize_output(&meant)),
        @"
        id kind state queue job workflow failed attempts age error
        4 noop pending later - order 0 of 5 T -
        5 noop blocked later - order 0 of 5 T -
        6 noop blocked later nightly - 0 of 5 T -
        3 tasks would be cancelled; nothing was changed
        "
    );
    assert_eq!(meant.lines().count(), 6, "{meant}");
    assert_snapshot!(
        expect_output(0, &[3, 3], &normalized_output(&shell, &["task", "cancel", "--queue", "later"])),
        @"3 tasks met the filter, 3 cancelled, or told to stop"
    );
    // Only what failed, unless a state is named.
    assert_snapshot!(
        expect_output(0, &[0, 0], &normalized_output(&shell, &["task", "retry", "--queue", "later"])),
        @"0 tasks met the filter, 0 brought back"
    );
    assert_snapshot!(
        expect_output(0, &[3, 3], &normalized_output(&shell, &["task", "retry", "--queue", "later", "--state", "cancelled"])),
        @"3 tasks met the filter, 3 brought back"
    );
    let retried = shell.run(&["task", "retry", "--all", "--json"]);
    assert_eq!(retried.lines().nth(1), Some("{\"task\":8,\"outcome\":\"retried\"}"));
    assert_snapshot!(
        expect_output(0, &[8, 1, 1], &retried),
        @r#"
        {"task":8,"outcome":"retried"}
        1 task met the filter, 1 brought back
        "#
    );
    // What waits is left alone.
    assert_snapshot!(
        expect_output(0, &[0], &normalized_output(&shell, &["task", "retry", "--state", "pending", "--all", "--dry-run"])),
        @"0 tasks would be retried; nothing was changed"
    );
    assert_snapshot!(
        expect_output(1, &[9, 99, 0], &shell.run(&["task", "cancel", "9", "99", "--dry-run", "--json"])),
        @"
        task 9 is completed and would stay so
        there is no task 99, or it has ended and was removed; see `tidegate task list`
        0 tasks would be cancelled; nothing was changed
        "
    );
    assert_snapshot!(
        expect_exit(1, &shell.run(&["task", "cancel"])),
        @"error: which tasks? Name ids, or filters such as --kind; --all means every unfinished task"
    );
    assert_snapshot!(
        expect_exit(1, &shell.run(&["task", "retry", "1", "--kind", "noop"])),
        @"error: ids and filters do not go together; leave one of them out"
    );
}

#[test]
fn task_cancel_of_many_tasks_runs_in_batches() {
    let shell = Shell::new();
    let lines = (0..1500).map(|line| format!("{line}\n")).collect::<String>();
    shell.file("lines", lines);
    let mut submit = shell.command(&["submit", "noop", "--each-line", "--payload", "\"{}\""]);
    submit.stdin(std::fs::File::open(shell.path("lines")).expect("open"));
    assert!(submit.output().expect("submit").status.success());
    let cancelled = shell.run(&["task", "cancel", "--kind", "noop"]);
    assert_snapshot!(
        expect_output(0, &[1500, 1500], &cancelled),
        @"1,500 tasks met the filter, 1500 cancelled, or told to stop"
    );
    let meant = shell.run(&["task", "retry", "--state", "cancelled", "--all", "--dry-run"]);
    assert_snapshot!(
        expect_output(0, &[1, 0, 5, 2, 0, 5, 3, 0, 5, 4, 0, 5, 5, 0, 5, 6, 0, 5, 7, 0, 5, 8, 0, 5, 9, 0, 5, 10, 0, 5, 11, 0, 5, 12, 0, 5, 13, 0, 5, 14, 0, 5, 15, 0, 5, 16, 0, 5, 17, 0, 5, 18, 0, 5, 19, 0, 5, 20, 0, 5, 1500], &normalize_output(&meant)),
        @"
        id kind state queue job workflow failed attempts age error
        1 noop cancelled default - - 0 of 5 T -
        2 noop cancelled default - - 0 of 5 T -
        3 noop cancelled default - - 0 of 5 T -
        4 noop cancelled default - - 0 of 5 T -
        5 noop cancelled default - - 0 of 5 T -
        6 noop cancelled default - - 0 of 5 T -
        7 noop cancelled default - - 0 of 5 T -
        8 noop cancelled default - - 0 of 5 T -
        9 noop cancelled default - - 0 of 5 T -
        10 noop cancelled default - - 0 of 5 T -
        11 noop cancelled default - - 0 of 5 T -
        12 noop cancelled default - - 0 of 5 T -
        13 noop cancelled default - - 0 of 5 T -
        14 noop cancelled default - - 0 of 5 T -
        15 noop cancelled default - - 0 of 5 T -
        16 noop cancelled default - - 0 of 5 T -
        17 noop cancelled default - - 0 of 5 T -
        18 noop cancelled default - - 0 of 5 T -
        19 noop cancelled default - - 0 of 5 T -
        20 noop cancelled default - - 0 of 5 T -
        1,500 tasks would be retried, of which the first are listed; nothing was changed
        "
    );
    assert_eq!(meant.lines().count(), 23, "twenty are listed: {meant}");
}

#[test]
fn task_wait_prints_the_result() {
    let shell = store();
    assert_eq!(states(&shell, &["7", "8"]), ["scheduled", "failed"]);
    assert_eq!(shell.run(&["task", "wait", "9"]), "exit 0\nnull\n");
    let failed = shell.run(&["task", "wait", "9", "8"]);
    assert_snapshot!(
        expect_output(1, &[8, 10], &normalize_output(&failed)),
        @"
        null
        null
        task 8 is failed: timed out after 10ms
        "
    );
    let whole = json(&shell.run_ok(&["task", "wait", "9", "--json"]));
    assert_eq!((&whole[0]["state"], &whole[0]["payload"]["n"]), (&"completed".into(), &1.into()));
    assert_snapshot!(
        expect_output(1, &[7], &normalized_output(&shell, &["task", "wait", "7", "--timeout", "50ms"])),
        @"error: the time is up; task 7 is scheduled: it is due in T (D)"
    );
    assert_snapshot!(
        expect_output(1, &[99], &shell.run(&["task", "wait", "99"])),
        @"error: there is no task 99, or it has ended and was removed; see `tidegate task list`"
    );
    shell.run_ok(&["task", "retry", "7"]);
    let _worker = WorkerProcess::start(&shell, &["worker"]);
    assert_eq!(shell.run(&["task", "wait", "7", "--timeout", "30s"]), "exit 0\nnull\n");
}

#[test]
fn job_list_and_show_print_jobs() {
    let shell = store();
    assert_snapshot!(
        expect_output(0, &[0, 1, 0, 0, 0, 1, 0, 0, 0, 0], &normalized_output(&shell, &["job", "list"])),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        nightly - 0 1 0 - - 0 0 1 0 0 0 0
        "
    );
    assert_snapshot!(
        expect_output(0, &[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1], &normalized_output(&shell, &["job", "show", "nightly"])),
        @"
        job concurrency min weight priority delay paused scheduled pending blocked processing completed failed cancelled
        nightly - 0 1 0 - - 0 0 1 0 0 0 0
        0 of its slots are held, 1 wait for one; `tidegate concurrency status job:nightly` names them
        "
    );
    let whole = json(&shell.run_ok(&["job", "show", "nightly", "--json"]));
    assert_eq!((&whole[0]["name"], &whole[0]["limit"]["held"]), (&"nightly".into(), &0.into()));
    assert_eq!(json(&shell.run_ok(&["job", "list", "--json"])).len(), 1);
    assert_snapshot!(
        expect_exit(1, &shell.run(&["job", "show", "nihgtly"])),
        @r#"error: there is no job "nihgtly"; did you mean "nightly"?"#
    );
}

#[test]
fn workflow_list_and_show_print_steps() {
    let shell = store();
    assert_eq!(states(&shell, &["4", "5"]), ["pending", "blocked"]);
    assert_snapshot!(
        expect_output(0, &[0, 1, 1, 0, 0, 0, 0], &normalized_output(&shell, &["workflow", "list"])),
        @"
        workflow halted by scheduled pending blocked processing completed failed cancelled
        order - 0 1 1 0 0 0 0
        "
    );
    assert_snapshot!(
        expect_output(0, &[1, 4, 2, 5], &normalized_output(&shell, &["workflow", "show", "order"])),
        @"
        step task kind state ended error
        1 4 noop pending - -
        2 5 noop blocked - -
        "
    );
    let steps = json(&shell.run_ok(&["workflow", "show", "order", "--json", "--max", "1"]));
    assert_eq!((steps.len(), &steps[0]["id"]), (1, &4.into()));
    assert_snapshot!(
        expect_exit(1, &shell.run(&["workflow", "show", "x"])),
        @r#"error: there is no workflow "x"; `tidegate workflow list` lists all"#
    );
}

#[test]
fn queue_is_paused_and_resumed() {
    let shell = store();
    assert_snapshot!(
        expect_exit(0, &normalized_output(&shell, &["queue", "pause", "later"])),
        @r#"queue "later" is paused; `tidegate queue resume later` lets it go on"#
    );
    let listed = expect_exit(0, &normalized_output(&shell, &["queue", "list"]));
    let rows: Vec<&str> = listed.lines().take(3).collect();
    assert_snapshot!(
        expect_numbers(&[1, 0, 3, 0, 0, 0, 1, 2, 0, 0], &rows.join("\n")),
        @"
        queue scheduled pending blocked processing workers paused for
        default 1 0 3 0 0 -
        later 0 1 2 0 0 T
        "
    );
    assert_snapshot!(
        expect_exit(0, &normalized_output(&shell, &["queue", "pause", "later"])),
        @r#"queue "later" is paused already; `tidegate queue resume later` lets it go on"#
    );
    let queues = json(&shell.run_ok(&["queue", "list", "--json"]));
    assert!(queues[0]["paused_at"].is_null() && queues[1]["paused_at"].is_i64());
    let _worker = WorkerProcess::start(&shell, &["worker", "--queues", "later,open"]);
    let open = shell.run_ok(&["submit", "noop", "--queue", "open"]);
    shell.run_ok(&["task", "wait", open.trim(), "--timeout", "30s"]);
    assert_eq!(shell.run(&["task", "wait", "6", "--timeout", "0s"]).lines().next(), Some("exit 1"));
    assert_snapshot!(
        expect_exit(0, &shell.run(&["queue", "resume", "later"])),
        @r#"queue "later" goes on"#
    );
    assert_eq!(shell.run(&["task", "wait", "6", "--timeout", "30s"]), "exit 0\nnull\n");
    assert_snapshot!(
        expect_exit(0, &shell.run(&["queue", "resume", "later"])),
        @r#"queue "later" was not paused"#
    );
}

#[test]
fn worker_list_prints_capacity_and_kinds() {
    let shell = store();
    let _worker = with_worker(&shell);
    let listed = json(&shell.run_ok(&["workers", "--json"]));
    let busy: Vec<&Value> = listed.iter().filter(|worker| worker["running"] == 2).collect();
    assert_eq!(busy.len(), 1, "{listed:?}");
    assert_eq!(busy[0]["queues"], serde_json::json!(["default"]));
    let table = normalized_output(&shell, &["workers"]);
    assert_snapshot!(
        table.lines().nth(1).expect("a head"),
        @"worker running free memory accepts queues kinds seen again within"
    );
    assert!(
        table.lines().any(|line| line.contains(" 2 ") && line.ends_with(" default noop,sleep T")),
        "{table}"
    );
    assert_eq!(busy[0]["report"]["concurrency"], 16, "{listed:?}");
    assert_snapshot!(
        expect_exit(0, &Shell::new().run(&["workers", "--store", "memory:"])),
        @"no worker lives; start one with `tidegate worker --store memory:`"
    );
}

#[test]
fn concurrency_status_prints_slots_and_waiters() {
    let shell = store();
    let _worker = with_worker(&shell);
    let one = normalized_output(&shell, &["concurrency", "status", "partner"]);
    let row = one.lines().nth(2).expect("a row").to_owned();
    assert!(row.starts_with("group:partner 2 2 1 ") && row.ends_with(" operator 3"), "{row}");
    assert_snapshot!(
        expect_output(0, &[0, 1, 1, 2, 1, 3], &one.replace(&row, "ROW")),
        @"
        limit capacity held waiting refused set by version
        ROW
        slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed
        slot 1: task 2 (sleep) on worker W, lease ends in T unless renewed
        place 1: task 3 (sleep), waits for T
        "
    );
    let all = normalized_output(&shell, &["concurrency", "status"]);
    let (_, details) =
        all.split_once("\n\n").expect("a part for each limit with slots or a wait queue");
    assert_snapshot!(
        expect_numbers(&[0, 1, 1, 2, 0, 4], details),
        @"
        group:partner
        slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed
        slot 1: task 2 (sleep) on worker W, lease ends in T unless renewed

        workflow:order
        slot 0: task 4 (noop), not running
        "
    );
    let limits = json(&shell.run_ok(&["concurrency", "status", "--json"]));
    let limit = limits.iter().find(|limit| limit["name"] == "group:partner").expect("the limit");
    assert_eq!(limit["holders"][1]["task"], 2);
    assert_eq!(limit["line"][0]["task"], 3);
    assert!(limit["parked_total"].as_i64() >= Some(1));
}

#[test]
fn concurrency_set_dry_run_prints_effect() {
    let shell = store();
    let _worker = with_worker(&shell);
    for _ in 0..2 {
        shell.run_ok(&["submit", "noop", "--queue", "later"]);
    }
    let set = |group: &str, limit: &str| {
        normalized_output(&shell, &["concurrency", "set", group, "--limit", limit, "--dry-run"])
    };
    assert_snapshot!(
        expect_output(0, &[5, 2, 2, 1, 3], &set("partner", "5")),
        @"
        group:partner would be 5 instead of 2; 2 held
        admits: 1 task (3)
        nothing was changed; other limits of these tasks are not looked at
        "
    );
    assert_snapshot!(
        expect_output(0, &[1, 2, 2, 1, 1], &set("partner", "1")),
        @"
        group:partner would be 1 instead of 2; 2 held
        drains: 1 slot more must come back before the next task starts; what runs is not touched
        1 task would go on waiting
        nothing was changed; other limits of these tasks are not looked at
        "
    );
    assert_snapshot!(
        expect_output(0, &[1, 0, 1, 4, 2, 10, 11], &set("noop", "1")),
        @"
        group:noop would be 1 instead of unlimited; 0 held
        admits: 1 task (4)
        blocks: 2 tasks (10, 11)
        nothing was changed; other limits of these tasks are not looked at
        "
    );
    let effect = ["concurrency", "set", "partner", "--limit", "3", "--dry-run", "--json"];
    assert_eq!(json(&shell.run_ok(&effect))[0]["admits"], serde_json::json!([3]));
    let limits = json(&shell.run_ok(&["concurrency", "status", "--json"]));
    assert!(limits.iter().all(|limit| limit["name"] != "group:noop"), "nothing was changed");
}

#[test]
fn concurrency_set_dry_run_excludes_unserved_tasks() {
    let shell = store();
    let _worker = with_worker(&shell);
    shell.run_ok(&["submit", "noop", "--queue", "unserved", "--group", "solo", "--limit", "1"]);
    wait::until("it is passed over", || {
        let limits = json(&shell.run_ok(&["concurrency", "status", "solo", "--json"]));
        limits[0]["line"][0]["wait_reason"] == "no_worker"
    });
    assert_snapshot!(
        expect_output(0, &[3, 1, 0, 1], &normalized_output(&shell, &["concurrency", "set", "solo", "--limit", "3", "--dry-run"])),
        @"
        group:solo would be 3 instead of 1; 0 held
        1 task would go on waiting
        nothing was changed; other limits of these tasks are not looked at
        "
    );
}

#[test]
fn task_explain_of_completed_task_omits_earlier_error() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "sleep", "--payload", r#"{"ms": 1, "fail_attempts": 1}"#]);
    shell.run_ok(&["worker", "--until-idle"]);
    let told = normalized_output(&shell, &["task", "explain", "1"]);
    assert_snapshot!(
        expect_output(0, &[1], &normalize_output(&told)),
        @"task 1 is completed: it has ended well, since T (D)"
    );
    assert!(!told.contains("fail_attempts"), "{told}");
}

#[test]
fn concurrency_release_requires_force() {
    let shell = store();
    let _worker = with_worker(&shell);
    assert_snapshot!(
        expect_output(1, &[0, 1], &normalized_output(&shell, &["concurrency", "release", "partner", "0"])),
        @"error: slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed; its handler may still be running. --force takes the slot all the same"
    );
    assert_snapshot!(
        expect_output(0, &[0, 1, 1], &normalized_output(&shell, &["concurrency", "release", "partner", "0", "--force"])),
        @"slot 0 of group:partner is taken from task 1; `tidegate task explain 1` says where it is"
    );
    wait::until("the next in line runs", || {
        json(&shell.run_ok(&["task", "show", "3", "--json"]))[0]["state"] == "processing"
    });
    assert_snapshot!(
        expect_output(1, &[7], &shell.run(&["concurrency", "release", "partner", "7", "--force"])),
        @"error: nobody holds slot 7 of group:partner"
    );
    assert_snapshot!(
        expect_exit(1, &shell.run(&["concurrency", "release", "x", "0", "--force"])),
        @r#"error: there is no limit "group:x"; `tidegate concurrency status` lists all"#
    );
}

#[test]
fn prune_removes_unused_limits() {
    let shell = store();
    assert_snapshot!(
        expect_output(0, &[0, 0, 0], &shell.run(&["prune"])),
        @"removed 0 tasks, 0 limits and 0 kinds"
    );
    shell.run_ok(&["concurrency", "set", "idle", "--limit", "1"]);
    shell.run_ok(&["concurrency", "unset", "idle"]);
    assert_eq!(shell.run(&["prune", "--json"]), "exit 0\n{\"tasks\":0,\"limits\":1,\"kinds\":0}\n");
}

/// Who leaves is not waited for.
#[test]
fn deregistered_worker_is_not_listed() {
    let shell = Shell::new();
    shell.run_ok(&["submit", "noop"]);
    shell.run_ok(&["worker", "--until-idle"]);
    assert_eq!(shell.run_ok(&["workers"]), "");
    shell.run_ok(&["submit", "noop"]);
    let told = shell.run_ok(&["task", "explain", "2"]);
    assert_snapshot!(
        expect_numbers(&[2], &normalize_output(&told)),
        @r#"task 2 is pending: it is ready, and no live worker serves kind "noop" in queue "default"; start one with `tidegate worker --queues default`, since T (D)"#
    );
}

#[test]
fn lists_of_empty_store_print_a_note() {
    let shell = Shell::new();
    shell.run_ok(&["migrate"]);
    let said = |arguments: &[&str]| shell.run(arguments);
    assert_snapshot!(
        expect_exit(0, &said(&["job", "list"])),
        @"no jobs; `tidegate submit --job` makes one"
    );
    assert_snapshot!(
        expect_exit(0, &said(&["workflow", "list"])),
        @"no workflows; `tidegate submit --workflow` makes one"
    );
    assert_snapshot!(expect_exit(0, &said(&["queue", "list"])), @"no queue has unfinished tasks");
    for list in [&["job", "list"][..], &["workflow", "list"], &["queue", "list"], &["workers"]] {
        assert_eq!(said(&[list, &["--json"]].concat()), "exit 0\n", "{list:?}");
    }
    let nowhere = Shell::new().run(&["queue", "pause", "x"]);
    assert!(nowhere.starts_with("exit 1\nerror: "), "a mistyped store is not made: {nowhere}");
}

/// With `TIDEGATE_LOG=tidegate_store=debug` each request to the store is a line, without its payload.
#[test]
fn store_log_shows_each_request_without_payload() {
    let shell = Shell::new();
    shell.run_ok(&["migrate"]);
    let submit = ["submit", "noop", "--payload", "\"s3cr3t\""];
    let log = |levels: &str| {
        let output = shell.command(&submit).env("TIDEGATE_LOG", levels).output().expect("submit");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let lines = log("tidegate_store=debug");
    let is_request = |line: &&str| {
        line.contains("store request{verb=\"submit\" path=\"general\"}: ") && line.contains("close")
    };
    assert_eq!(lines.lines().filter(is_request).count(), 1, "{lines}");
    assert!(!lines.contains("s3cr3t"), "{lines}");
    assert!(!log("info").contains("store request"), "only where it is asked for");
}
