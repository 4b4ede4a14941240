//! `submit --each-line`: a task for each line of stdin.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use crate::common::{
    Shell, expect_exit, expect_numbers, expect_output, format_output, normalize_output,
};
use insta::assert_snapshot;

/// Runs a command that reads `input`; gives its exit code, stdout and stderr.
fn feed(shell: &Shell, arguments: &[&str], input: impl AsRef<[u8]>) -> String {
    let mut child = start(shell, arguments);
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.as_ref().to_vec();
    // A command that ends early leaves its input unread.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("run the binary");
    writer.join().expect("write to the binary");
    format_output(&output)
}

fn start(shell: &Shell, arguments: &[&str]) -> Child {
    let mut command = shell.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start the binary")
}

/// `submit noop --each-line` with more arguments.
fn submit(shell: &Shell, arguments: &[&str], input: impl AsRef<[u8]>) -> String {
    feed(shell, &[&["submit", "noop", "--each-line"], arguments].concat(), input)
}

fn numbers(to: u32) -> String {
    (1..=to).map(|number| format!("{number}\n")).collect()
}

/// The payloads in the store, in order.
fn payloads(shell: &Shell) -> Vec<String> {
    let ids = shell.run_ok(&["task", "list", "--json"]).lines().count();
    let payload = |id: usize| {
        let told = shell.run_ok(&["task", "show", &id.to_string(), "--json"]);
        let (_, rest) = told.split_once("\"payload\":").expect("a payload");
        let mut values = serde_json::Deserializer::from_str(rest).into_iter();
        let value: serde_json::Value = values.next().expect("a value").expect("JSON");
        value.to_string()
    };
    (1..=ids).map(payload).collect()
}

#[test]
fn each_input_line_becomes_a_task_in_order() {
    let shell = Shell::new();
    let told = submit(&shell, &["--payload", "{\"row\":\"{}\",\"o\":{}}"], numbers(2500));
    let ids = numbers(2500);
    let summary = expect_exit(0, &told);
    let summary = summary.strip_prefix(&ids).expect("the ids");
    assert_snapshot!(expect_numbers(&[2500], summary), @"submitted 2,500 tasks");
    let last = shell.run_ok(&["task", "show", "2500", "--json"]);
    assert!(last.contains("\"payload\":{\"row\":\"2500\",\"o\":{}}"), "{last}");
    shell.run_ok(&["doctor"]);
    let worked = shell.run_ok(&["worker", "--until-idle"]);
    assert!(worked.starts_with("2500 completed, 0 failed"), "{worked}");
    shell.run_ok(&["doctor", "--at-rest"]);
}

#[test]
fn input_line_is_inserted_into_payload_and_names() {
    let shell = Shell::new();
    let lines = "a\"b\\\r\n\n   \n{}\nünïcode, 'quotes' $(x) `y`\n[1]";
    let arguments = ["--payload", "[\"<{}>\",{},\"{}\"]", "--group", "g {}"];
    let told = submit(&shell, &arguments, lines);
    assert_eq!(told, "exit 0\n1\n2\n3\n4\nsubmitted 4 tasks\n");
    assert_eq!(
        payloads(&shell),
        [
            r#"["<a\"b\\>",{},"a\"b\\"]"#,
            r#"["<{}>",{},"{}"]"#,
            r#"["<ünïcode, 'quotes' $(x) `y`>",{},"ünïcode, 'quotes' $(x) `y`"]"#,
            r#"["<[1]>",{},"[1]"]"#,
        ]
    );
    let last = shell.run_ok(&["task", "show", "4", "--json"]);
    assert!(last.contains("\"g [1]\""), "{last}");
}

#[test]
fn input_line_without_payload_flag_is_the_payload() {
    let shell = Shell::new();
    let told = submit(&shell, &[], "{\"a\": 1}\n\"text\"\n3\n");
    assert_eq!(told, "exit 0\n1\n2\n3\nsubmitted 3 tasks\n");
    assert_eq!(payloads(&shell), ["{\"a\":1}", "\"text\"", "3"]);
}

#[test]
fn json_output_has_input_line_of_each_task() {
    let shell = Shell::new();
    let told = submit(&shell, &["--json", "--unique-key", "k-{}"], "1\n\n2\n1\n");
    let is_new = |line: &str| line.contains("\"is_new\":true");
    assert_eq!(told.lines().skip(1).take(3).map(is_new).collect::<Vec<_>>(), [true, true, false]);
    assert_snapshot!(
        expect_output(0, &[1, 1, 3, 2, 4, 1, 2, 1], &told),
        @r#"
        {"line":1,"task":1,"is_new":true}
        {"line":3,"task":2,"is_new":true}
        {"line":4,"task":1,"is_new":false}
        submitted 2 tasks; lines with the unique key of an unfinished task: 1
        "#
    );
    let one = shell.run(&["submit", "noop", "--json"]);
    assert_eq!(one, "exit 0\n{\"task\":3,\"is_new\":true}\n");
}

#[test]
fn input_lines_with_unique_key_can_be_submitted_again() {
    let shell = Shell::new();
    let arguments = ["--unique-key", "import-{}"];
    assert_snapshot!(
        expect_output(0, &[1, 2, 3, 3], &submit(&shell, &arguments, numbers(3))),
        @"
        1
        2
        3
        submitted 3 tasks
        "
    );
    let again = submit(&shell, &arguments, numbers(5));
    assert_snapshot!(
        expect_output(0, &[1, 2, 3, 4, 5, 2, 3], &again),
        @"
        1
        2
        3
        4
        5
        submitted 2 tasks; lines with the unique key of an unfinished task: 3
        "
    );
}

/// What was before a bad line is submitted, wherever the batches end; what is after it is not.
#[test]
fn invalid_input_line_stops_submit_and_keeps_earlier_tasks() {
    let mut errors = String::new();
    let cases: [&[u8]; 3] = [b"{oops\n", b"\"a\xff\"\n", b"[[[["];
    for bad in cases {
        for before in [0, 1, 1500] {
            let shell = Shell::new();
            let input = [numbers(before).as_bytes(), bad, b"\n7\n8\n"].concat();
            let told = submit(&shell, &[], input);
            let (ids, line) = (numbers(before), before + 1);
            let error = expect_exit(1, &told);
            let error = error.strip_prefix(&ids).expect("the ids");
            let found = crate::common::numbers(error);
            let ends = [found.first(), found.last()].map(|number| number.copied());
            assert_eq!(ends, [line, before].map(|number| Some(i64::from(number))), "{error}");
            errors.push_str(error);
            let list = shell.run_ok(&["task", "list", "--max", "5000"]);
            assert_eq!(list.lines().count().saturating_sub(1), before as usize, "{list}");
        }
    }
    assert_snapshot!(
        errors,
        @r#"
        error: line 1: the payload is not JSON: key must be a string at column 2; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 0 tasks
        error: line 2: the payload is not JSON: key must be a string at column 2; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 1 task
        error: line 1501: the payload is not JSON: key must be a string at column 2; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 1,500 tasks
        error: line 1: it is not UTF-8 from byte 3 on; submitted before that: 0 tasks
        error: line 2: it is not UTF-8 from byte 3 on; submitted before that: 1 task
        error: line 1501: it is not UTF-8 from byte 3 on; submitted before that: 1,500 tasks
        error: line 1: the payload is not JSON: EOF while parsing a list at column 4; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 0 tasks
        error: line 2: the payload is not JSON: EOF while parsing a list at column 4; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 1 task
        error: line 1501: the payload is not JSON: EOF while parsing a list at column 4; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 1,500 tasks
        "#
    );
}

#[test]
fn input_line_above_size_limit_is_rejected() {
    let shell = Shell::new();
    let told = submit(&shell, &[], format!("1\n\"{}\"\n", "x".repeat(1 << 20)));
    assert_snapshot!(
        expect_output(1, &[1, 2, 1_048_576, 1], &told),
        @"
        1
        error: line 2: it has more than 1048576 bytes, the most there may be; submitted before that: 1 task
        "
    );
}

#[test]
fn input_line_that_makes_invalid_name_is_rejected() {
    let shell = Shell::new();
    let told = submit(&shell, &["--unique-key", "{}"], format!("1\n\"{}\"\n", "x".repeat(300)));
    assert_snapshot!(
        expect_output(1, &[1, 2, 302, 200, 1], &told),
        @"
        1
        error: line 2: the unique key has 302 bytes; at most 200 are allowed; submitted before that: 1 task
        "
    );
}

#[test]
fn submit_rejected_by_store_names_its_input_lines() {
    let shell = Shell::new();
    let told = submit(&shell, &["--limit", "2", "--weight", "3"], numbers(2));
    assert_snapshot!(
        expect_output(1, &[1, 2, 3, 2, 0], &told),
        @r#"error: lines 1 to 2: a task of weight 3 can never run under "group:noop", whose limit is 2; lower its weight or raise the limit; submitted before that: 0 tasks"#
    );
}

#[test]
fn invalid_command_is_rejected_before_input_is_read() {
    let shell = Shell::new();
    assert_snapshot!(
        expect_exit(1, &submit(&shell, &["--payload", "{\"a\":{}}"], "1\n")),
        @r#"error: nothing uses the lines; put {} into a string of the payload, such as '{"row": "{}"}'; outside of a string it is an empty object. Where a line is to be a number or an object, make it the whole payload and leave --payload out"#
    );
    assert_snapshot!(
        expect_exit(1, &submit(&shell, &["--payload-file", "-"], "1\n")),
        @"error: stdin has the lines; --payload-file needs a file of its own"
    );
    let told = submit(&shell, &["--payload", "order {}"], "1\n");
    assert_snapshot!(
        expect_output(1, &[1, 1], &normalize_output(&told)),
        @r#"error: --payload is JSON with {} for the line, such as '{"row": "{}"}': the payload is not JSON: expected value at line 1 column 1"#
    );
    assert!(!shell.path("tidegate.db").exists(), "a store was made");
    let told = feed(&shell, &["submit", "mial", "--each-line"], "1\n");
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&told)),
        @"error: unknown kind `mial`; known: `exec`, `http`, `noop`, `sleep`; --new-kind submits it all the same"
    );
}

/// The error names the line, what is wrong with it, and what to do.
#[test]
fn input_line_that_is_not_a_payload_is_rejected_with_hint() {
    let shell = Shell::new();
    assert_snapshot!(
        expect_output(1, &[1, 2, 1, 1], &submit(&shell, &[], "1\norder 2\n")),
        @r#"
        1
        error: line 2: the payload is not JSON: expected value at column 1; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 1 task
        "#
    );
    let told = feed(&shell, &["submit", "sleep", "--each-line"], "7\n");
    assert_snapshot!(
        expect_output(1, &[1, 7, 1, 500, 0], &normalize_output(&told)),
        @r#"error: line 1: the payload does not fit kind `sleep`: invalid type: integer `7`, expected struct Payload at column 1; one that does: {"ms": 500}; without --payload the line is the payload, as JSON: --payload '{"row": "{}"}' puts it into one as text; submitted before that: 0 tasks"#
    );
    let payload = ["submit", "sleep", "--each-line", "--payload", "{\"ms\": \"{}\"}"];
    let told = feed(&shell, &payload, "7\n");
    assert_snapshot!(
        expect_output(1, &[1, 7, 1, 10, 500, 0], &normalize_output(&told)),
        @r#"error: line 1: the payload does not fit kind `sleep`: invalid type: string "7", expected u32 at line 1 column 10; one that does: {"ms": 500}; {} puts the line in as text: where it is to be a number or an object, make it the whole payload and leave --payload out; submitted before that: 0 tasks"#
    );
}

#[test]
fn empty_input_is_reported() {
    let told = submit(&Shell::new(), &[], "");
    assert_snapshot!(
        expect_output(0, &[0, 3], &normalize_output(&told)),
        @"
        submitted 0 tasks
        note: stdin is empty; --each-line reads a task from each of its lines, such as those of `seq 3 | tidegate submit noop --each-line`
        "
    );
    let told = submit(&Shell::new(), &[], "\n \n");
    assert_snapshot!(
        expect_output(0, &[0], &told),
        @"
        submitted 0 tasks
        note: stdin has no lines but blank ones
        "
    );
}

/// What comes slowly is submitted as it comes, and not when a batch is full.
#[test]
fn input_line_is_submitted_before_the_next_arrives() {
    let shell = Shell::new();
    let mut child = start(&shell, &["submit", "noop", "--each-line"]);
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut ids = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for number in ["1", "2", "3"] {
        writeln!(stdin, "{number}").expect("write a line");
        assert_eq!(ids.next().expect("an id").expect("read"), number);
    }
    drop(stdin);
    assert!(child.wait().expect("wait").success());
}

/// Who no longer reads the ids wants the tasks all the same.
#[test]
fn closed_stdout_does_not_stop_submit() {
    let shell = Shell::new();
    let mut child = start(&shell, &["submit", "noop", "--each-line"]);
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(numbers(3000).as_bytes()).expect("write the lines");
    drop(stdin);
    let output = child.wait_with_output().expect("wait");
    assert_eq!(format_output(&output), "exit 0\nsubmitted 3,000 tasks\n");
    let list = shell.run_ok(&["task", "list", "--after", "2999", "--json"]);
    assert!(list.contains("\"id\":3000,"), "{list}");
}

#[test]
fn configured_limits_apply_to_jobs_named_by_input_lines() {
    let shell = Shell::new();
    shell.file("tidegate.toml", "[concurrency.limits]\n\"job:a\" = 2\n");
    assert!(submit(&shell, &["--job", "{}", "--payload", "1"], "a\nb\na\n").starts_with("exit 0"));
    let status = shell.run_ok(&["concurrency", "status", "job:a", "--json"]);
    assert!(status.contains("\"capacity\":2,"), "{status}");
}
