//! Limits by hand: what `concurrency` says and does.

mod common;

use common::Shell;

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
