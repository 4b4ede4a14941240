//! Limits by hand: what `concurrency` says and does.

mod common;

use common::Shell;

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
