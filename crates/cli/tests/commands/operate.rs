//! What an operator sees and does: whole outputs of the commands on a store with known tasks.

use std::process::{Child, Stdio};

use crate::common::{Shell, plain};
use serde_json::Value;
use tidegate_testkit::wait;

/// A store in which a limit is full, a queue has work, and some tasks have ended.
///
/// Tasks 1 to 3 are under the limit of group `partner`, 2; 4 and 5 are steps of `order`; 6 is of
/// job `nightly`; 7 is not due; 8 failed for good; 9 is completed.
fn store() -> Shell {
    let shell = Shell::new();
    shell.good(&["concurrency", "set", "partner", "--limit", "2"]);
    for _ in 0..3 {
        shell.good(&["submit", "sleep", "--payload", "{\"ms\": 60000}", "--group", "partner"]);
    }
    for _ in 0..2 {
        shell.good(&["submit", "noop", "--workflow", "order", "--queue", "later"]);
    }
    shell.good(&["submit", "noop", "--job", "nightly", "--queue", "later"]);
    shell.good(&["submit", "noop", "--delay", "1h"]);
    let hangs = ["submit", "sleep", "--payload", "{\"ms\": 60000}", "--queue", "now"];
    shell.good(&[&hangs[..], &["--timeout", "10ms", "--max-attempts", "1"]].concat());
    shell.good(&["submit", "noop", "--payload", "{\"n\": 1}", "--queue", "now"]);
    shell.good(&["concurrency", "set", "partner", "--limit", "0"]);
    let until = ["worker", "--queues", "now", "--until-idle"];
    let mut worker = Running::start(&shell, &until);
    shell.good(&["task", "wait", "9"]);
    assert!(shell.run(&["task", "wait", "8"]).starts_with("exit 1\n"));
    worker.stop();
    shell.good(&["concurrency", "set", "partner", "--limit", "2"]);
    shell
}

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
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

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a worker that runs tasks 1 and 2 for the rest of the test.
fn with_worker(shell: &Shell) -> Running {
    let worker = Running::start(shell, &["worker", "--queues", "default", "--lease", "60s"]);
    let held = || {
        let limit = json(&shell.good(&["concurrency", "status", "partner", "--json"]));
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

fn seen(shell: &Shell, arguments: &[&str]) -> String {
    plain(&shell.run(arguments))
}

#[test]
fn tasks_are_listed() {
    let shell = store();
    let head = "id kind state queue job workflow failed attempts age error\n";
    assert_eq!(
        seen(&shell, &["task", "list", "--queue", "later"]),
        format!(
            "exit 0\n{head}4 noop pending later - order 0 of 5 T -\n\
             5 noop blocked later - order 0 of 5 T -\n6 noop blocked later nightly - 0 of 5 T -\n"
        )
    );
    let failed = seen(&shell, &["task", "list", "--state", "failed"]);
    assert!(failed.starts_with(&format!("exit 0\n{head}8 sleep failed now - - 1 of 1 T ")));
    let group = json(&shell.good(&["task", "list", "--group", "partner", "--json"]));
    assert_eq!(group.iter().map(|task| task["id"].clone()).collect::<Vec<_>>(), [1, 2, 3]);
    let twice = seen(&shell, &["task", "list", "--state", "failed", "--state", "completed"]);
    assert_eq!(twice.lines().count(), 4);
    let cut = seen(&shell, &["task", "list", "--max", "2"]);
    assert!(
        cut.ends_with("note: there may be more; --after 2 goes on, --max N shows N\n"),
        "{cut}"
    );
    let none = shell.run(&["task", "list", "--kind", "nope", "--json"]);
    assert_eq!(none, "exit 0\nno task meets the filter\n");
}

#[test]
fn a_task_is_shown() {
    let shell = store();
    assert_eq!(
        seen(&shell, &["task", "show", "9"]),
        "exit 0\nid 9\nkind noop\nstate completed\nqueue now\ngroup noop\nweight 1\npriority 0\n\
         failed 0 of 5 attempts\nsubmitted D\nended D\npayload {\"n\": 1}\nresult null\n"
    );
    let whole = json(&shell.good(&["task", "show", "9", "--json"]));
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
        "spent",
        "max_attempts",
        "deaths",
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
fn a_task_says_why_it_waits() {
    let shell = store();
    let _worker = with_worker(&shell);
    assert_eq!(
        seen(&shell, &["task", "explain", "3"]),
        "exit 0\ntask 3 is blocked: it stands at place 1 in the line of group:partner (2 of 2 \
         slots held), since T (D)\n\
         slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed\n\
         slot 1: task 2 (sleep) on worker W, lease ends in T unless renewed\n"
    );
    let told = json(&shell.good(&["task", "explain", "3", "--json"]));
    assert_eq!((&told[0]["reason"]["place"], &told[0]["estimate_ms"]), (&1.into(), &Value::Null));
    assert_eq!(
        seen(&shell, &["task", "explain", "4"]),
        "exit 0\ntask 4 is pending: it is ready, and no live worker serves kind \"noop\" in \
         queue \"later\"; start one with `tidegate worker --queues later`, since T (D)\n"
    );
    shell.good(&["queue", "pause", "later"]);
    assert_eq!(
        seen(&shell, &["task", "explain", "4"]),
        "exit 0\ntask 4 is pending: it is ready; queue \"later\" is paused for T, `tidegate queue \
         resume later` lets it go on, since T (D)\n"
    );
}

#[test]
fn tasks_are_cancelled_and_retried_by_id() {
    let shell = store();
    let _worker = with_worker(&shell);
    assert_eq!(
        seen(&shell, &["task", "cancel", "1", "4", "9", "99"]),
        "exit 1\ntask 1 runs; its worker is told with the next heartbeat\ntask 4 is cancelled\n\
         task 9 has ended already; it stays as it is\n\
         there is no task 99, or it has ended and was removed; see `tidegate task list`\n"
    );
    assert_eq!(
        seen(&shell, &["task", "retry", "4", "7", "8", "9", "5", "99"]),
        "exit 1\ntask 4 starts anew\ntask 7 is due now\ntask 8 starts anew\n\
         task 9 is completed; submit it again to do its work again\n\
         task 5 waits for its turn or runs; `tidegate task explain 5`\n\
         there is no task 99, or it has ended and was removed; see `tidegate task list`\n"
    );
    assert_eq!(
        shell.run(&["task", "cancel", "5", "6", "--json"]),
        "exit 0\n{\"task\":5,\"outcome\":\"cancelled\"}\n{\"task\":6,\"outcome\":\"cancelled\"}\n"
    );
}

#[test]
fn tasks_are_cancelled_and_retried_by_filter() {
    let shell = store();
    let meant = seen(&shell, &["task", "cancel", "--queue", "later", "--dry-run"]);
    assert!(meant.ends_with("3 tasks would be cancelled; nothing was changed\n"), "{meant}");
    assert_eq!(meant.lines().count(), 6, "{meant}");
    assert_eq!(
        seen(&shell, &["task", "cancel", "--queue", "later"]),
        "exit 0\n3 tasks met the filter, 3 cancelled, or told to stop\n"
    );
    assert_eq!(
        seen(&shell, &["task", "retry", "--queue", "later"]),
        "exit 0\n0 tasks met the filter, 0 brought back\n",
        "only what failed, unless a state is named"
    );
    assert_eq!(
        seen(&shell, &["task", "retry", "--queue", "later", "--state", "cancelled"]),
        "exit 0\n3 tasks met the filter, 3 brought back\n"
    );
    assert_eq!(
        shell.run(&["task", "retry", "--all", "--json"]),
        "exit 0\n{\"task\":8,\"outcome\":\"retried\"}\n1 task met the filter, 1 brought back\n"
    );
    assert_eq!(
        seen(&shell, &["task", "retry", "--state", "pending", "--all", "--dry-run"]),
        "exit 0\n0 tasks would be retried; nothing was changed\n",
        "what waits is left alone"
    );
    assert_eq!(
        shell.run(&["task", "cancel", "9", "99", "--dry-run", "--json"]),
        "exit 1\ntask 9 is completed and would stay so\nthere is no task 99, or it has ended and \
         was removed; see `tidegate task list`\n0 tasks would be cancelled; nothing was changed\n"
    );
    assert_eq!(
        shell.run(&["task", "cancel"]),
        "exit 1\nerror: which tasks? Name ids, or filters such as --kind; --all means every \
         unfinished task\n"
    );
    assert_eq!(
        shell.run(&["task", "retry", "1", "--kind", "noop"]),
        "exit 1\nerror: ids and filters do not go together; leave one of them out\n"
    );
}

#[test]
fn many_tasks_are_changed_in_steps() {
    let shell = Shell::new();
    let lines = (0..1500).map(|line| format!("{line}\n")).collect::<String>();
    shell.file("lines", lines);
    let mut submit = shell.command(&["submit", "noop", "--each-line", "--payload", "\"{}\""]);
    submit.stdin(std::fs::File::open(shell.path("lines")).expect("open"));
    assert!(submit.output().expect("submit").status.success());
    let cancelled = shell.run(&["task", "cancel", "--kind", "noop"]);
    assert_eq!(cancelled, "exit 0\n1,500 tasks met the filter, 1500 cancelled, or told to stop\n");
    let meant = shell.run(&["task", "retry", "--state", "cancelled", "--all", "--dry-run"]);
    let end = "1,500 tasks would be retried, of which the first are listed; nothing was changed\n";
    assert!(meant.ends_with(end), "{meant}");
    assert_eq!(meant.lines().count(), 23, "twenty are listed: {meant}");
}

#[test]
fn a_wait_prints_the_result() {
    let shell = store();
    assert_eq!(shell.run(&["task", "wait", "9"]), "exit 0\nnull\n");
    let failed = shell.run(&["task", "wait", "9", "8"]);
    assert!(failed.starts_with("exit 1\nnull\nnull\ntask 8 is failed: "), "{failed}");
    let whole = json(&shell.good(&["task", "wait", "9", "--json"]));
    assert_eq!((&whole[0]["state"], &whole[0]["payload"]["n"]), (&"completed".into(), &1.into()));
    assert_eq!(
        seen(&shell, &["task", "wait", "7", "--timeout", "50ms"]),
        "exit 1\nerror: the time is up; task 7 is scheduled: it is due in T (D)\n"
    );
    assert_eq!(
        shell.run(&["task", "wait", "99"]),
        "exit 1\nerror: there is no task 99, or it has ended and was removed; see `tidegate task \
         list`\n"
    );
    shell.good(&["task", "retry", "7"]);
    let _worker = Running::start(&shell, &["worker"]);
    assert_eq!(shell.run(&["task", "wait", "7", "--timeout", "30s"]), "exit 0\nnull\n");
}

#[test]
fn jobs_are_shown() {
    let shell = store();
    let head = "job concurrency min weight priority delay paused scheduled pending blocked \
                processing completed failed cancelled\n";
    let row = "nightly - 0 1 0 - - 0 0 1 0 0 0 0\n";
    assert_eq!(seen(&shell, &["job", "list"]), format!("exit 0\n{head}{row}"));
    assert_eq!(
        seen(&shell, &["job", "show", "nightly"]),
        format!(
            "exit 0\n{head}{row}0 of its slots are held, 1 wait for one; `tidegate concurrency \
             status job:nightly` names them\n"
        )
    );
    let whole = json(&shell.good(&["job", "show", "nightly", "--json"]));
    assert_eq!((&whole[0]["name"], &whole[0]["limit"]["held"]), (&"nightly".into(), &0.into()));
    assert_eq!(json(&shell.good(&["job", "list", "--json"])).len(), 1);
    assert_eq!(
        shell.run(&["job", "show", "nihgtly"]),
        "exit 1\nerror: there is no job \"nihgtly\"; did you mean \"nightly\"?\n"
    );
}

#[test]
fn workflows_are_shown() {
    let shell = store();
    assert_eq!(
        seen(&shell, &["workflow", "list"]),
        "exit 0\nworkflow halted by scheduled pending blocked processing completed failed \
         cancelled\norder - 0 1 1 0 0 0 0\n"
    );
    assert_eq!(
        seen(&shell, &["workflow", "show", "order"]),
        "exit 0\nstep task kind state ended error\n1 4 noop pending - -\n2 5 noop blocked - -\n"
    );
    let steps = json(&shell.good(&["workflow", "show", "order", "--json", "--max", "1"]));
    assert_eq!((steps.len(), &steps[0]["id"]), (1, &4.into()));
    assert_eq!(
        shell.run(&["workflow", "show", "x"]),
        "exit 1\nerror: there is no workflow \"x\"; `tidegate workflow list` lists all\n"
    );
}

#[test]
fn queues_are_paused_and_resumed() {
    let shell = store();
    let head = "queue scheduled pending blocked processing workers paused for\n";
    assert_eq!(
        seen(&shell, &["queue", "pause", "later"]),
        "exit 0\nqueue \"later\" is paused; `tidegate queue resume later` lets it go on\n"
    );
    let listed = seen(&shell, &["queue", "list"]);
    let rows = "default 1 0 3 0 0 -\nlater 0 1 2 0 0 T\n";
    assert!(listed.starts_with(&format!("exit 0\n{head}{rows}")), "{listed}");
    assert_eq!(
        seen(&shell, &["queue", "pause", "later"]),
        "exit 0\nqueue \"later\" is paused already; `tidegate queue resume later` lets it go on\n"
    );
    let queues = json(&shell.good(&["queue", "list", "--json"]));
    assert!(queues[0]["paused_at"].is_null() && queues[1]["paused_at"].is_i64());
    let _worker = Running::start(&shell, &["worker", "--queues", "later,open"]);
    let open = shell.good(&["submit", "noop", "--queue", "open"]);
    shell.good(&["task", "wait", open.trim(), "--timeout", "30s"]);
    assert_eq!(shell.run(&["task", "wait", "6", "--timeout", "0s"]).lines().next(), Some("exit 1"));
    assert_eq!(shell.run(&["queue", "resume", "later"]), "exit 0\nqueue \"later\" goes on\n");
    assert_eq!(shell.run(&["task", "wait", "6", "--timeout", "30s"]), "exit 0\nnull\n");
    assert_eq!(
        shell.run(&["queue", "resume", "later"]),
        "exit 0\nqueue \"later\" was not paused\n"
    );
}

#[test]
fn workers_are_listed() {
    let shell = store();
    let _worker = with_worker(&shell);
    let listed = json(&shell.good(&["workers", "--json"]));
    let busy: Vec<&Value> = listed.iter().filter(|worker| worker["running"] == 2).collect();
    assert_eq!(busy.len(), 1, "{listed:?}");
    assert_eq!(busy[0]["queues"], serde_json::json!(["default"]));
    let table = seen(&shell, &["workers"]);
    assert!(
        table.starts_with(
            "exit 0\nworker running free memory accepts queues kinds seen again within\n"
        ),
        "{table}"
    );
    assert!(
        table.lines().any(|line| line.contains(" 2 ") && line.ends_with(" default noop,sleep T")),
        "{table}"
    );
    assert_eq!(busy[0]["report"]["maximum"], 16, "{listed:?}");
    assert_eq!(
        Shell::new().run(&["workers", "--store", "memory:"]),
        "exit 0\nno worker lives; start one with `tidegate worker --store memory:`\n"
    );
}

#[test]
fn a_limit_is_shown_with_its_slots_and_its_line() {
    let shell = store();
    let _worker = with_worker(&shell);
    let head = "limit capacity held waiting refused set by version\n";
    let slots = "slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed\n\
                 slot 1: task 2 (sleep) on worker W, lease ends in T unless renewed\n";
    let one = seen(&shell, &["concurrency", "status", "partner"]);
    let row = one.lines().nth(2).expect("a row").to_owned();
    assert!(row.starts_with("group:partner 2 2 1 ") && row.ends_with(" operator 3"), "{row}");
    assert_eq!(one, format!("exit 0\n{head}{row}\n{slots}place 1: task 3 (sleep), waits for T\n"));
    let all = seen(&shell, &["concurrency", "status"]);
    assert!(all.contains(&format!("\n\ngroup:partner\n{slots}")), "{all}");
    let step = "\nworkflow:order\nslot 0: task 4 (noop), not running\n";
    assert!(all.ends_with(step), "{all}");
    let limits = json(&shell.good(&["concurrency", "status", "--json"]));
    let limit = limits.iter().find(|limit| limit["name"] == "group:partner").expect("the limit");
    assert_eq!(limit["holders"][1]["task"], 2);
    assert_eq!(limit["line"][0]["task"], 3);
    assert!(limit["refused"].as_i64() >= Some(1));
}

#[test]
fn a_dry_run_says_what_a_limit_would_do() {
    let shell = store();
    let _worker = with_worker(&shell);
    for _ in 0..2 {
        shell.good(&["submit", "noop", "--queue", "later"]);
    }
    let set = |group: &str, limit: &str| {
        seen(&shell, &["concurrency", "set", group, "--limit", limit, "--dry-run"])
    };
    assert_eq!(
        set("partner", "5"),
        "exit 0\ngroup:partner would be 5 instead of 2; 2 held\nadmits: 1 task (3)\n\
         nothing was changed; other limits of these tasks are not looked at\n"
    );
    assert_eq!(
        set("partner", "1"),
        "exit 0\ngroup:partner would be 1 instead of 2; 2 held\ndrains: 1 slot more must come \
         back before the next task starts; what runs is not touched\n1 task would go on waiting\n\
         nothing was changed; other limits of these tasks are not looked at\n"
    );
    assert_eq!(
        set("noop", "1"),
        "exit 0\ngroup:noop would be 1 instead of unlimited; 0 held\nadmits: 1 task (4)\n\
         blocks: 2 tasks (10, 11)\nnothing was changed; other limits of these tasks are not \
         looked at\n"
    );
    let effect = ["concurrency", "set", "partner", "--limit", "3", "--dry-run", "--json"];
    assert_eq!(json(&shell.good(&effect))[0]["admits"], serde_json::json!([3]));
    let limits = json(&shell.good(&["concurrency", "status", "--json"]));
    assert!(limits.iter().all(|limit| limit["name"] != "group:noop"), "nothing was changed");
}

#[test]
fn a_dry_run_promises_nothing_to_whom_nobody_serves() {
    let shell = store();
    let _worker = with_worker(&shell);
    shell.good(&["submit", "noop", "--queue", "unserved", "--group", "solo", "--limit", "1"]);
    wait::until("it is passed over", || {
        let limits = json(&shell.good(&["concurrency", "status", "solo", "--json"]));
        limits[0]["line"][0]["class"] == "no_worker"
    });
    assert_eq!(
        seen(&shell, &["concurrency", "set", "solo", "--limit", "3", "--dry-run"]),
        "exit 0\ngroup:solo would be 3 instead of 1; 0 held\n1 task would go on waiting\n\
         nothing was changed; other limits of these tasks are not looked at\n"
    );
}

#[test]
fn what_went_wrong_before_is_not_told_of_what_ended_well() {
    let shell = Shell::new();
    shell.good(&["submit", "sleep", "--payload", r#"{"ms": 1, "fail_attempts": 1}"#]);
    shell.good(&["worker", "--until-idle"]);
    let told = seen(&shell, &["task", "explain", "1"]);
    assert!(told.starts_with("exit 0\n") && told.contains("it has ended well"), "{told}");
    assert!(!told.contains("fail_attempts"), "{told}");
}

#[test]
fn a_slot_is_taken_back_only_by_force() {
    let shell = store();
    let _worker = with_worker(&shell);
    assert_eq!(
        seen(&shell, &["concurrency", "release", "partner", "0"]),
        "exit 1\nerror: slot 0: task 1 (sleep) on worker W, lease ends in T unless renewed; its \
         handler may still be running. --force takes the slot all the same\n"
    );
    assert_eq!(
        seen(&shell, &["concurrency", "release", "partner", "0", "--force"]),
        "exit 0\nslot 0 of group:partner is taken from task 1; `tidegate task explain 1` says \
         where it is\n"
    );
    wait::until("the next in line runs", || {
        json(&shell.good(&["task", "show", "3", "--json"]))[0]["state"] == "processing"
    });
    assert_eq!(
        shell.run(&["concurrency", "release", "partner", "7", "--force"]),
        "exit 1\nerror: nobody holds slot 7 of group:partner\n"
    );
    assert_eq!(
        shell.run(&["concurrency", "release", "x", "0", "--force"]),
        "exit 1\nerror: there is no limit \"group:x\"; `tidegate concurrency status` lists all\n"
    );
}

#[test]
fn what_was_kept_long_enough_is_removed() {
    let shell = store();
    assert_eq!(shell.run(&["prune"]), "exit 0\nremoved 0 tasks, 0 limits and 0 kinds\n");
    shell.good(&["concurrency", "set", "idle", "--limit", "1"]);
    shell.good(&["concurrency", "unset", "idle"]);
    assert_eq!(shell.run(&["prune", "--json"]), "exit 0\n{\"tasks\":0,\"limits\":1,\"kinds\":0}\n");
}

/// Who leaves is not waited for.
#[test]
fn a_worker_that_has_ended_is_not_listed() {
    let shell = Shell::new();
    shell.good(&["submit", "noop"]);
    shell.good(&["worker", "--until-idle"]);
    assert_eq!(shell.good(&["workers"]), "");
    shell.good(&["submit", "noop"]);
    let told = shell.good(&["task", "explain", "2"]);
    assert!(told.contains("no live worker serves kind"), "{told}");
}

#[test]
fn lists_of_an_empty_store_say_so() {
    let shell = Shell::new();
    shell.good(&["migrate"]);
    let said = |arguments: &[&str]| shell.run(arguments);
    assert_eq!(said(&["job", "list"]), "exit 0\nno jobs; `tidegate submit --job` makes one\n");
    assert_eq!(
        said(&["workflow", "list"]),
        "exit 0\nno workflows; `tidegate submit --workflow` makes one\n"
    );
    assert_eq!(said(&["queue", "list"]), "exit 0\nno queue has unfinished tasks\n");
    for list in [&["job", "list"][..], &["workflow", "list"], &["queue", "list"], &["workers"]] {
        assert_eq!(said(&[list, &["--json"]].concat()), "exit 0\n", "{list:?}");
    }
    let nowhere = Shell::new().run(&["queue", "pause", "x"]);
    assert!(nowhere.starts_with("exit 1\nerror: "), "a mistyped store is not made: {nowhere}");
}

/// With `TIDEGATE_LOG=tidegate_store=debug` each request to the store is a line, without its payload.
#[test]
fn log_of_the_store_shows_each_request_and_no_payload() {
    let shell = Shell::new();
    shell.good(&["migrate"]);
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
