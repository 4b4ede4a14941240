//! Limits by hand: what `concurrency` says and does.

use crate::common::Shell;
use serde_json::{Value, json};
use tidegate_core::{Kind, Registration, WorkerId};

/// The name of every scope begins a whole name, also where there are no such limits.
#[test]
fn a_limit_of_another_scope_is_not_made_that_of_a_group() {
    let shell = shell();
    assert_eq!(
        shell.run(&["concurrency", "set", "queue:mail", "--limit", "1"]),
        "exit 1\nerror: \"queue\" limits cannot be set; name it group:NAME or job:NAME\n"
    );
    let named = shell.run(&["concurrency", "set", "group:queue:mail", "--limit", "1"]);
    let new = "is new; nothing uses it yet";
    assert_eq!(
        named,
        format!(
            "exit 0\ngroup:queue:mail is 1, set by operator\nnote: limit group:queue:mail {new}\n"
        )
    );
    let other = shell.run(&["concurrency", "set", "eu:mail", "--limit", "1"]);
    assert_eq!(
        other,
        format!("exit 0\ngroup:eu:mail is 1, set by operator\nnote: limit group:eu:mail {new}\n")
    );
}

#[test]
fn a_limit_that_is_not_there_cannot_be_unset() {
    let shell = shell();
    assert_eq!(
        shell.run(&["concurrency", "unset", "nosuch"]),
        "exit 1\nerror: there is no limit \"group:nosuch\"; `tidegate concurrency status` lists \
         all\n"
    );
    shell.good(&["concurrency", "set", "mail", "--limit", "1"]);
    assert_eq!(
        shell.run(&["concurrency", "unset", "mial"]),
        "exit 1\nerror: there is no limit \"group:mial\"; did you mean \"group:mail\"?\n"
    );
}

/// A mistyped group shows as one that nobody has used.
#[test]
fn a_limit_that_something_uses_is_not_called_unused() {
    let shell = shell();
    shell.good(&["submit", "noop", "--group", "mail"]);
    let set = |group: &str| shell.run(&["concurrency", "set", group, "--limit", "1"]);
    let unused = "note: limit group:mial is new; nothing uses it yet\n";
    assert_eq!(set("mial"), format!("exit 0\ngroup:mial is 1, set by operator\n{unused}"));
    assert_eq!(set("mial"), "exit 0\ngroup:mial is 1, set by operator\n", "it is known by now");
    assert_eq!(set("mail"), "exit 0\ngroup:mail is 1, set by operator\n", "a task uses it");
    assert_eq!(set("sleep"), "exit 0\ngroup:sleep is 1, set by operator\n", "a kind uses it");
}

#[test]
fn a_history_without_records_proves_nothing() {
    let shell = shell();
    shell.file("a.jsonl", "");
    assert_eq!(
        shell.run(&["verify", "a.jsonl"]),
        "exit 1\nerror: the files have no records, so there is nothing to verify; workers write \
         them with --history\n"
    );
}

#[test]
fn a_history_that_is_not_there_is_told_once() {
    assert_eq!(
        shell().run(&["verify", "nofile"]),
        "exit 1\nerror: read history nofile: No such file or directory (os error 2)\n"
    );
}

#[test]
fn a_file_can_be_asked_to_be_quicker() {
    let shell = Shell::new();
    let url = "sqlite:quick.db?synchronous=normal";
    assert_eq!(shell.good(&["submit", "noop", "--store", url]), "1\n");
    assert!(shell.path("quick.db").exists());
    shell.good(&["doctor", "--store", url]);
    assert_eq!(
        shell.run(&["doctor", "--store", "sqlite:quick.db?synchronous=of"]),
        "exit 1\nerror: \"sqlite:quick.db?synchronous=of\" has the unknown setting \
         \"synchronous=of\"; known are synchronous=full and synchronous=normal\n"
    );
}

/// A store that knows the kinds and has no limit.
fn shell() -> Shell {
    let shell = Shell::new();
    shell.good(&["migrate"]);
    shell
}

#[test]
fn a_refused_submit_sets_no_limit() {
    let shell = shell();
    let refused = shell.run(&["submit", "noop", "--limit", "3", "--weight", "4"]);
    assert_eq!(
        refused,
        "exit 1\nerror: a task of weight 4 can never run under \"group:noop\", whose limit is 3; \
         lower its weight or raise the limit\n"
    );
    let status = shell.run(&["concurrency", "status"]);
    assert!(status.starts_with("exit 0\nno limits; "), "{status}");
}

#[test]
fn unset_brings_back_what_was_below_and_then_removes_it() {
    let shell = shell();
    shell.good(&["submit", "noop", "--limit", "3"]);
    shell.good(&["concurrency", "set", "noop", "--limit", "5"]);
    let unset = || shell.run(&["concurrency", "unset", "noop"]);
    let below = "exit 0\ngroup:noop is 3, set by submit; `unset` again removes that\n";
    assert_eq!(unset(), below);
    let gone = "exit 0\ngroup:noop is unlimited; the next submit that brings a limit sets it\n";
    assert_eq!(unset(), gone);
}

/// A worker that lives for the rest of the test and registers the kind `mail`.
async fn registers(shell: &Shell, worker: &str, capacity: Option<u32>) {
    registers_kind(shell, "mail", worker, capacity).await;
}

async fn registers_kind(shell: &Shell, kind: &str, worker: &str, capacity: Option<u32>) {
    let registration = Registration {
        kinds: vec![Kind::new(kind)],
        limits: capacity.map(|capacity| (kind.to_owned(), capacity)).into_iter().collect(),
        worker: Some(WorkerId(worker.into())),
        lease_ms: 600_000,
        ..Registration::default()
    };
    shell.store().await.register(registration).await.expect("register");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_brings_another_limit_says_so() {
    let shell = shell();
    registers_kind(&shell, "noop", "one", Some(2)).await;
    let worker = |limit| shell.run(&["worker", "--until-idle", "--max-concurrent", limit]);
    let told = worker("noop=5");
    let words = "warning: the limit of \"noop\" was 2 and is 5 now: of what live workers bring the \
                 latest counts; 1 live worker brings another\n";
    assert!(told.contains(words), "{told}");
    let told = worker("noop=5");
    assert!(!told.contains("warning"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_disagree_about_a_limit_are_shown() {
    let shell = shell();
    registers(&shell, "one", Some(500)).await;
    let head = "limit       capacity  held  waiting  refused        set by  version\n";
    let status = || shell.run(&["concurrency", "status"]);
    let one = || shell.run(&["concurrency", "status", "mail"]);
    let row = "group:mail       500     0        0        0  registration        1\n";
    assert_eq!(status(), format!("exit 0\n{head}{row}"));
    assert_eq!(one(), format!("exit 0\n{head}{row}  registered: 500 by 1 worker\n"));
    registers(&shell, "two", Some(10)).await;
    registers(&shell, "three", Some(10)).await;
    registers(&shell, "four", None).await;
    let row = "group:mail        10     0        0        0  registration        2\n";
    let words = "  live workers disagree: 500 by 1 worker, 10 by 2 workers, no limit by 1 worker; \
                 the latest that brings one counts\n";
    assert_eq!(status(), format!("exit 0\n{head}{row}\ngroup:mail\n{words}"));
    assert_eq!(one(), format!("exit 0\n{head}{row}{words}"));
    shell.good(&["concurrency", "set", "mail", "--limit", "7"]);
    let head = "limit       capacity  held  waiting  refused    set by  version\n";
    let row = "group:mail         7     0        0        0  operator        3\n";
    let below = "  below it: 10, set by registration\n";
    assert_eq!(one(), format!("exit 0\n{head}{row}{below}{words}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_workers_registered_is_in_the_json() {
    let shell = shell();
    registers(&shell, "one", Some(500)).await;
    registers(&shell, "two", None).await;
    let limit: Value =
        serde_json::from_str(&shell.good(&["concurrency", "status", "--json"])).expect("JSON");
    assert_eq!(limit["base"], json!([500, "registration"]));
    let said = json!([{"worker": "one", "capacity": 500}, {"worker": "two", "capacity": null}]);
    assert_eq!((&limit["registered"], &limit["disagree"]), (&said, &json!(true)));
    let workers = shell.good(&["workers", "--json"]);
    let workers: Vec<Value> =
        workers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let registered: Vec<&Value> = workers.iter().map(|worker| &worker["registered"]).collect();
    assert_eq!(registered, [&json!({"mail": 500}), &json!({"mail": null})]);
}
