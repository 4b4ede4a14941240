//! Limits by hand: what `concurrency` says and does.

use crate::common::{Shell, expect_exit, expect_output, normalize_output};
use insta::assert_snapshot;
use serde_json::{Value, json};
use tidegate_core::{Kind, Registration, WorkerId};

/// The name of every scope begins a whole name, also where there are no such limits.
#[test]
fn limit_name_with_unsupported_scope_is_rejected() {
    let shell = shell();
    assert_snapshot!(
        expect_exit(1, &shell.run(&["concurrency", "set", "queue:mail", "--limit", "1"])),
        @r#"error: "queue" limits cannot be set; name it group:NAME or job:NAME"#
    );
    let named = shell.run(&["concurrency", "set", "group:queue:mail", "--limit", "1"]);
    assert_snapshot!(
        expect_output(0, &[1], &named),
        @"
        group:queue:mail is 1, set by operator
        note: limit group:queue:mail is new; nothing uses it yet
        "
    );
    let other = shell.run(&["concurrency", "set", "eu:mail", "--limit", "1"]);
    assert_snapshot!(
        expect_output(0, &[1], &other),
        @"
        group:eu:mail is 1, set by operator
        note: limit group:eu:mail is new; nothing uses it yet
        "
    );
}

#[test]
fn unset_of_missing_limit_is_rejected() {
    let shell = shell();
    assert_snapshot!(
        expect_exit(1, &shell.run(&["concurrency", "unset", "nosuch"])),
        @r#"error: there is no limit "group:nosuch"; `tidegate concurrency status` lists all"#
    );
    shell.run_ok(&["concurrency", "set", "mail", "--limit", "1"]);
    assert_snapshot!(
        expect_exit(1, &shell.run(&["concurrency", "unset", "mial"])),
        @r#"error: there is no limit "group:mial"; did you mean "group:mail"?"#
    );
}

/// A mistyped group shows as one that nobody has used.
#[test]
fn new_limit_note_is_printed_only_if_limit_is_unused() {
    let shell = shell();
    shell.run_ok(&["submit", "noop", "--group", "mail"]);
    let set = |group: &str| shell.run(&["concurrency", "set", group, "--limit", "1"]);
    assert_snapshot!(
        expect_output(0, &[1], &set("mial")),
        @"
        group:mial is 1, set by operator
        note: limit group:mial is new; nothing uses it yet
        "
    );
    // It is known by now.
    assert_snapshot!(expect_output(0, &[1], &set("mial")), @"group:mial is 1, set by operator");
    // A task uses it.
    assert_snapshot!(expect_output(0, &[1], &set("mail")), @"group:mail is 1, set by operator");
    // A kind uses it.
    assert_snapshot!(expect_output(0, &[1], &set("sleep")), @"group:sleep is 1, set by operator");
}

#[test]
fn verify_of_empty_history_is_rejected() {
    let shell = shell();
    shell.file("a.jsonl", "");
    assert_snapshot!(
        expect_exit(1, &shell.run(&["verify", "a.jsonl"])),
        @"error: the files have no records, so there is nothing to verify; workers write them with --history"
    );
}

#[test]
fn verify_of_missing_history_prints_one_error() {
    assert_snapshot!(
        expect_output(1, &[2], &shell().run(&["verify", "nofile"])),
        @"error: read history nofile: No such file or directory (os error 2)"
    );
}

#[test]
fn store_url_sets_synchronous_mode() {
    let shell = Shell::new();
    let url = "sqlite:quick.db?synchronous=normal";
    assert_eq!(shell.run_ok(&["submit", "noop", "--store", url]), "1\n");
    assert!(shell.path("quick.db").exists());
    shell.run_ok(&["doctor", "--store", url]);
    assert_snapshot!(
        expect_exit(1, &shell.run(&["doctor", "--store", "sqlite:quick.db?synchronous=of"])),
        @r#"error: "sqlite:quick.db?synchronous=of" has the unknown setting "synchronous=of"; known are synchronous=full and synchronous=normal"#
    );
}

/// A store that knows the kinds and has no limit.
fn shell() -> Shell {
    let shell = Shell::new();
    shell.run_ok(&["migrate"]);
    shell
}

#[test]
fn rejected_submit_sets_no_limit() {
    let shell = shell();
    let refused = shell.run(&["submit", "noop", "--limit", "3", "--weight", "4"]);
    assert_snapshot!(
        expect_output(1, &[4, 3], &refused),
        @r#"error: a task of weight 4 can never run under "group:noop", whose limit is 3; lower its weight or raise the limit"#
    );
    let status = shell.run(&["concurrency", "status"]);
    assert_snapshot!(
        expect_output(0, &[], &normalize_output(&status)),
        @"no limits; `tidegate concurrency set GROUP --limit N` sets one"
    );
}

#[test]
fn unset_restores_next_source_and_then_removes_limit() {
    let shell = shell();
    shell.run_ok(&["submit", "noop", "--limit", "3"]);
    shell.run_ok(&["concurrency", "set", "noop", "--limit", "5"]);
    let unset = || shell.run(&["concurrency", "unset", "noop"]);
    assert_snapshot!(
        expect_output(0, &[3], &unset()),
        @"group:noop is 3, set by submit; `unset` again removes that"
    );
    assert_snapshot!(
        expect_exit(0, &unset()),
        @"group:noop is unlimited; the next submit that brings a limit sets it"
    );
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
async fn worker_warns_when_its_limit_replaces_another() {
    let shell = shell();
    registers_kind(&shell, "noop", "one", Some(2)).await;
    let worker = |limit| shell.run(&["worker", "--until-idle", "--max-concurrent", limit]);
    let told = worker("noop=5");
    assert_snapshot!(
        expect_output(0, &[0, 0, 0, 0, 0, 0, 0, 2, 5, 1, 16], &normalize_output(&told)),
        @r#"
        0 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        warning: the limit of "noop" was 2 and is 5 now: of what live workers bring the latest counts; 1 live worker brings another
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop, sleep
        idle: no unfinished task is left
        "#
    );
    let told = worker("noop=5");
    assert!(!told.contains("warning"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_workers_that_disagree_about_a_limit() {
    let shell = shell();
    registers(&shell, "one", Some(500)).await;
    let status = || shell.run(&["concurrency", "status"]);
    let one = || shell.run(&["concurrency", "status", "mail"]);
    assert_snapshot!(
        expect_output(0, &[500, 0, 0, 0, 1], &status()),
        @"
        limit       capacity  held  waiting  refused        set by  version
        group:mail       500     0        0        0  registration        1
        "
    );
    assert_snapshot!(
        expect_output(0, &[500, 0, 0, 0, 1, 500, 1], &one()),
        @"
        limit       capacity  held  waiting  refused        set by  version
        group:mail       500     0        0        0  registration        1
          registered: 500 by 1 worker
        "
    );
    registers(&shell, "two", Some(10)).await;
    registers(&shell, "three", Some(10)).await;
    registers(&shell, "four", None).await;
    assert_snapshot!(
        expect_output(0, &[10, 0, 0, 0, 2, 500, 1, 10, 2, 1], &status()),
        @"
        limit       capacity  held  waiting  refused        set by  version
        group:mail        10     0        0        0  registration        2

        group:mail
          live workers disagree: 500 by 1 worker, 10 by 2 workers, no limit by 1 worker; the latest that brings one counts
        "
    );
    assert_snapshot!(
        expect_output(0, &[10, 0, 0, 0, 2, 500, 1, 10, 2, 1], &one()),
        @"
        limit       capacity  held  waiting  refused        set by  version
        group:mail        10     0        0        0  registration        2
          live workers disagree: 500 by 1 worker, 10 by 2 workers, no limit by 1 worker; the latest that brings one counts
        "
    );
    shell.run_ok(&["concurrency", "set", "mail", "--limit", "7"]);
    assert_snapshot!(
        expect_output(0, &[7, 0, 0, 0, 3, 10, 500, 1, 10, 2, 1], &one()),
        @"
        limit       capacity  held  waiting  refused    set by  version
        group:mail         7     0        0        0  operator        3
          below it: 10, set by registration
          live workers disagree: 500 by 1 worker, 10 by 2 workers, no limit by 1 worker; the latest that brings one counts
        "
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_capacities_are_in_json() {
    let shell = shell();
    registers(&shell, "one", Some(500)).await;
    registers(&shell, "two", None).await;
    let limit: Value =
        serde_json::from_str(&shell.run_ok(&["concurrency", "status", "--json"])).expect("JSON");
    assert_eq!(limit["capacity_without_override"], json!([500, "registration"]));
    let said = json!([{"worker": "one", "capacity": 500}, {"worker": "two", "capacity": null}]);
    assert_eq!((&limit["registered"], &limit["disagree"]), (&said, &json!(true)));
    let workers = shell.run_ok(&["workers", "--json"]);
    let workers: Vec<Value> =
        workers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let registered: Vec<&Value> =
        workers.iter().map(|worker| &worker["registered_capacities"]).collect();
    assert_eq!(registered, [&json!({"mail": 500}), &json!({"mail": null})]);
}
