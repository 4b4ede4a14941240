//! Names and payloads that somebody's escaping, folding, sorting or terminal gets wrong, through
//! every command: they come back byte by byte, or they are refused with an error and nothing is
//! lost. Nothing panics.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Output, Stdio};

use crate::common::{Shell, format_output};
use serde_json::Value;
use serde_json::value::RawValue;
use tidegate_core::bounds::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_DEPTH_MAX};
use tidegate_testkit::postgres::{Database, Server};

/// Names that are taken as they are.
fn good_names() -> Vec<String> {
    let mut names: Vec<String> = [
        " x ",
        "'; drop table task; --",
        "\"quoted\" \\ $1 ?1 :name @p `id` $(id)",
        "%_*[a-z]",
        "--help",
        "-",
        "a:b:c",
        "null",
        "{}",
        "{\"a\": [1]}",
        "\u{e9}",
        "e\u{301}",
        "עברית \u{202e}tfel \u{2066}",
        "👩\u{200d}👩\u{200d}👧",
        "\u{fffd}\u{feff}\u{10ffff}",
        "<script>alert(1)</script>",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("ß".repeat(NAME_BYTES_MAX / 2));
    names
}

/// Names that are refused: empty, too long, not text, or with characters that move a cursor.
fn bad_names() -> Vec<OsString> {
    let mut names: Vec<OsString> =
        ["", "a\nb", "\ttab", "\u{7f}", "\u{1b}[2J\u{1b}]0;owned\u{7}", "\u{85}"]
            .map(OsString::from)
            .to_vec();
    names.push("x".repeat(NAME_BYTES_MAX + 1).into());
    names.push("x".repeat(100_000).into());
    names.push(OsString::from_vec(b"caf\xe9".to_vec()));
    names.push(OsString::from_vec(vec![0xed, 0xa0, 0x80]));
    names
}

/// Payloads that are stored byte by byte.
fn good_payloads() -> Vec<String> {
    let mut payloads: Vec<String> = [
        "null",
        "\"\"",
        "-0",
        "1e308",
        "123456789012345678901234567890.10",
        "{\"b\":1,\"a\":2,\"b\":3}",
        " { \"spaces\" :\t[ 1 , 2 ] } ",
        "\"\\u0000\\u001b[2J\\ud83d\\ude00\"",
        "\"\u{202e}עברית 👩\u{200d}👧\"",
        "{\"'; drop table task; --\": \"$(id)\"}",
    ]
    .map(str::to_owned)
    .to_vec();
    payloads.push(nested(PAYLOAD_DEPTH_MAX));
    payloads.push(format!("\"{}\"", "x".repeat(100_000)));
    payloads
}

/// Payloads that are refused.
fn bad_payloads() -> Vec<Vec<u8>> {
    let mut payloads: Vec<Vec<u8>> =
        ["", "{", "nul", "{'a': 1}", "NaN", "1 2", "[1,]", "\"\u{1}\""]
            .map(|text| text.as_bytes().to_vec())
            .to_vec();
    payloads.push(b"\"caf\xe9\"".to_vec());
    payloads.push(b"\xef\xbb\xbf{}".to_vec());
    payloads.push(nested(PAYLOAD_DEPTH_MAX + 1).into_bytes());
    payloads.push(nested(100_000).into_bytes());
    payloads.push(format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_MAX)).into_bytes());
    payloads
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// A store, and the binary on it.
struct HostileHarness {
    shell: Shell,
    url: String,
    database: Option<Database>,
}

impl HostileHarness {
    fn on_sqlite() -> Self {
        let shell = Shell::new();
        Self { url: "sqlite:t.db".to_owned(), shell, database: None }.migrated()
    }

    fn on_postgres() -> Self {
        let database = Server::shared().database();
        Self { shell: Shell::new(), url: database.url(), database: Some(database) }.migrated()
    }

    fn migrated(self) -> Self {
        self.good(&["migrate"]);
        self
    }

    fn output(&self, arguments: &[OsString], stdin: &[u8]) -> Output {
        let mut command = self.shell.command(&[]);
        command.args(arguments).env("TIDEGATE_STORE", &self.url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("run the binary");
        // Who does not read its input has said all it has to say without it.
        let _ = child.stdin.take().expect("stdin").write_all(stdin);
        let output = child.wait_with_output().expect("wait for the binary");
        let told = format_output(&output);
        assert!(!told.contains("panicked"), "{arguments:?}: {told}");
        assert!(output.status.code().is_some(), "{arguments:?} was killed: {told}");
        output
    }

    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        self.good_with(arguments, b"")
    }

    #[track_caller]
    fn good_with(&self, arguments: &[&str], stdin: &[u8]) -> String {
        let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let output = self.output(&words, stdin);
        assert!(output.status.success(), "{arguments:?}: {}", format_output(&output));
        String::from_utf8(output.stdout).expect("stdout is UTF-8")
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let lines = self.good(arguments);
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Refused with an error that can be read on a terminal, and nothing is changed.
    fn assert_refused(&self, arguments: &[OsString], stdin: &[u8]) {
        let output = self.output(arguments, stdin);
        let told = format_output(&output);
        let shortened: Vec<String> = arguments.iter().map(|word| format!("{word:.60?}")).collect();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{shortened:?}: {told:.300}");
        let talk = String::from_utf8(output.stderr).expect("stderr is UTF-8");
        assert!(talk.contains("error"), "{shortened:?}: {talk:.300}");
        assert!(output.stdout.is_empty(), "{shortened:?}: {told:.300}");
        let is_raw = |c: char| c.is_control() && c != '\n';
        assert!(!talk.contains(is_raw), "{shortened:?}: {talk:.300?}");
    }

    fn tasks(&self) -> usize {
        self.json(&["task", "list", "--max", "100000", "--json"]).len()
    }

    fn assert_sound(&self) {
        self.good(&["doctor"]);
    }
}

fn each_store(case: impl Fn(&HostileHarness)) {
    for bench in [HostileHarness::on_sqlite(), HostileHarness::on_postgres()] {
        case(&bench);
        bench.assert_sound();
    }
}

/// A flag with its value in one word, so that a value may begin with a dash.
fn flag(flag: &str, value: &str) -> String {
    format!("--{flag}={value}")
}

#[test]
fn hostile_names_round_trip_through_every_command() {
    each_store(|bench| {
        // On PostgreSQL a command takes longer; the conformance suite has all names there.
        let step = if bench.database.is_some() { 4 } else { 1 };
        for name in good_names().into_iter().step_by(step) {
            let names =
                ["queue", "group", "job", "workflow", "unique-key"].map(|of| flag(of, &name));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let id = bench.good(&[&["submit", "noop"], &names[..]].concat());
            let id = id.trim();
            assert_round_trip(bench, id, &name);
            assert_operations(bench, id, &name);
        }
    });
}

/// What `submit` was given is in every list, byte by byte.
fn assert_round_trip(bench: &HostileHarness, id: &str, name: &str) {
    let shown = bench.json(&["task", "show", id, "--json"]);
    for field in ["queue", "group", "job", "workflow", "unique_key"] {
        assert_eq!(shown[0][field], name, "{field}");
    }
    for filter in ["queue", "group", "job", "workflow"] {
        let found = bench.json(&["task", "list", &flag(filter, name), "--json"]);
        assert_eq!((found.len(), found[0]["id"].to_string().as_str()), (1, id), "{filter} {name}");
    }
    for list in [["queue", "list"], ["job", "list"], ["workflow", "list"]] {
        let listed = bench.json(&[&list[..], &["--json"]].concat());
        assert!(listed.iter().any(|one| one["name"] == name), "{list:?} {name}");
        bench.good(&list);
    }
    assert_eq!(bench.json(&["job", "show", "--json", "--", name])[0]["name"], name);
    assert_eq!(bench.json(&["workflow", "show", "--json", "--", name])[0]["workflow"], name);
    for verb in ["show", "explain"] {
        bench.good(&["task", verb, id]);
    }
    bench.good(&["task", "list"]);
}

/// The verbs take it, too.
fn assert_operations(bench: &HostileHarness, id: &str, name: &str) {
    let limit = format!("group:{name}");
    bench.good(&["concurrency", "set", "--limit", "3", "--dry-run", "--", &limit]);
    bench.good(&["concurrency", "set", "--limit", "3", "--", &limit]);
    let status = bench.json(&["concurrency", "status", "--json", "--", &limit]);
    assert_eq!((status[0]["name"].as_str(), &status[0]["capacity"]), (Some(&*limit), &3.into()));
    bench.good(&["concurrency", "status"]);
    bench.good(&["concurrency", "unset", "--", &limit]);
    bench.good(&["queue", "pause", "--", name]);
    bench.good(&["task", "explain", id]);
    bench.good(&["queue", "resume", "--", name]);
    let dry = bench.json(&["task", "cancel", &flag("queue", name), "--dry-run", "--json"]);
    assert_eq!(dry[0]["queue"], name);
    bench.good(&["task", "cancel", &flag("queue", name)]);
    let retried =
        bench.json(&["task", "retry", &flag("queue", name), "--state", "cancelled", "--json"]);
    assert_eq!(retried[0]["outcome"], "retried");
    bench.good(&["worker", "--until-idle", &flag("queues", name)]);
    assert_eq!(bench.good(&["task", "wait", id, "--timeout", "30s"]), "null\n");
}

#[test]
fn hostile_names_are_escaped_in_tables() {
    let bench = HostileHarness::on_sqlite();
    bench.good(&["submit", "noop", "--queue", "\u{202e}eueuq", "--job", "\u{2066}job"]);
    for list in
        [&["task", "list"][..], &["queue", "list"], &["job", "list"], &["task", "show", "1"]]
    {
        let text = bench.good(list);
        assert!(!text.contains(['\u{202e}', '\u{2066}']), "{list:?}: {text}");
    }
}

#[test]
fn invalid_names_are_rejected_by_every_command() {
    each_store(|bench| {
        bench.good(&["submit", "noop"]);
        let before = bench.tasks();
        for name in bad_names() {
            for command in commands_with(&name) {
                bench.assert_refused(&command, b"");
            }
        }
        assert_eq!(bench.tasks(), before);
        assert_eq!(bench.json(&["concurrency", "status", "--json"]), [] as [Value; 0]);
    });
}

/// Every place of a command that takes a name which must be one.
fn commands_with(name: &OsString) -> Vec<Vec<OsString>> {
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let mut commands = Vec::new();
    for of in ["queue", "group", "job", "workflow", "unique-key"] {
        let mut value = OsString::from(format!("--{of}="));
        value.push(name);
        commands.push([words(&["submit", "noop"]), vec![value]].concat());
    }
    for before in [
        &["submit", "--"][..],
        &["job", "show", "--"],
        &["workflow", "show", "--"],
        &["queue", "pause", "--"],
        &["queue", "resume", "--"],
        &["concurrency", "status", "--"],
        &["concurrency", "set", "--limit", "1", "--"],
        &["concurrency", "unset", "--"],
        &["concurrency", "release", "--force", "--"],
        &["task", "show", "--"],
        &["task", "explain", "--"],
        &["task", "wait", "--"],
        &["task", "cancel", "--"],
        &["task", "retry", "--"],
        &["completions", "--"],
        &["run", "--"],
        &["verify", "--"],
    ] {
        let mut command = words(before);
        command.push(name.clone());
        if before[1] == "release" {
            command.push("0".into());
        }
        commands.push(command);
    }
    for verb in ["list", "cancel", "retry"] {
        for of in ["kind", "queue", "group", "job", "workflow"] {
            let mut value = OsString::from(format!("--{of}="));
            value.push(name);
            commands.push([words(&["task", verb]), vec![value]].concat());
        }
    }
    for before in [&["task", "list", "--state"][..], &["worker", "--kinds"], &["worker", "--lease"]]
    {
        let mut command = words(before);
        command.push(name.clone());
        commands.push(command);
    }
    commands
}

#[test]
fn payload_is_stored_unchanged() {
    each_store(|bench| {
        for payload in good_payloads() {
            let id =
                bench.good_with(&["submit", "noop", "--payload-file", "-"], payload.as_bytes());
            let shown = bench.good(&["task", "show", id.trim(), "--json"]);
            assert_eq!(raw(&shown, "payload"), payload.trim(), "{payload:.60}");
            if payload.len() < 1000 {
                bench.good(&["submit", "noop", &flag("payload", &payload)]);
            }
            let words = bench.good(&["task", "show", id.trim()]);
            assert!(words.contains("\npayload    "), "{words:.300}");
        }
    });
}

/// A field of a JSON object as it is written there.
fn raw(object: &str, field: &str) -> String {
    let fields: std::collections::BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(object).expect("a JSON object");
    fields[field].get().to_owned()
}

#[test]
fn invalid_payload_is_rejected() {
    each_store(|bench| {
        for payload in bad_payloads() {
            let words = ["submit", "noop", "--payload-file", "-"].map(OsString::from);
            bench.assert_refused(&words, &payload);
            if payload.len() < 100_000 {
                let payload = OsString::from_vec(payload);
                let mut value = OsString::from("--payload=");
                value.push(payload);
                bench.assert_refused(&["submit".into(), "noop".into(), value], b"");
            }
        }
        assert_eq!(bench.tasks(), 0);
    });
}

/// A line stands in a string of the payload as it is, whatever it looks like.
#[test]
fn input_lines_of_bulk_submit_are_stored_unchanged() {
    each_store(|bench| {
        let names = good_names();
        let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
        let submit = ["submit", "noop", "--each-line", "--payload", "{\"line\": \"<{}>\"}"];
        let ids = bench.good_with(&submit, lines.as_bytes());
        assert_eq!(ids.lines().count(), names.len());
        for (id, name) in ids.lines().zip(&names) {
            let shown = bench.json(&["task", "show", id, "--json"]);
            assert_eq!(shown[0]["payload"]["line"], format!("<{name}>"));
        }
        let before = bench.tasks();
        for bad in [&b"caf\xe9\n"[..], b"\xed\xa0\x80\n"] {
            bench.assert_refused(&submit.map(OsString::from), bad);
        }
        for bad in [&b"{\n"[..], b"nul\n", &[nested(100_000).as_bytes(), b"\n"].concat()] {
            bench.assert_refused(&["submit", "noop", "--each-line"].map(OsString::from), bad);
        }
        assert_eq!(bench.tasks(), before);
    });
}

/// Files that hold no configuration and no run.
#[test]
fn hostile_files_are_rejected() {
    let bench = HostileHarness::on_sqlite();
    let deep = format!("a = {}", nested(100_000)).into_bytes();
    let long = format!("\"{}\" = 1", "k".repeat(1 << 20)).into_bytes();
    let files: [&[u8]; 9] = [
        b"\xff\xfe\x00",
        b"caf\xe9 = 1",
        b"= 1",
        b"[worker]\nconcurrency = -1",
        b"\x1b[2J = 1",
        b"\"\\u202e\" = 1",
        b"[worker]\n[worker]",
        &deep,
        &long,
    ];
    for content in files {
        bench.shell.file("bad.toml", content);
        for command in [&["config", "--config", "bad.toml"][..], &["run", "bad.toml"]] {
            let words: Vec<OsString> = command.iter().map(OsString::from).collect();
            bench.assert_refused(&words, b"");
        }
    }
    for content in [&b"\xff\n"[..], b"{\n", &[nested(100_000).as_bytes(), b"\n"].concat()] {
        bench.shell.file("bad.jsonl", content);
        for command in [["run", "bad.jsonl"], ["verify", "bad.jsonl"]] {
            bench.assert_refused(&command.map(OsString::from), b"");
        }
    }
    assert_eq!(bench.tasks(), 0);
}

#[test]
fn hostile_urls_are_rejected() {
    let bench = HostileHarness::on_sqlite();
    let urls = [
        "postgres://[::1",
        "postgres://\u{202e}/x",
        "s3://",
        "sqlite:",
        "sqlite:t.db?x=\n",
        "http://x",
        "memory:x",
        "sqlite:/no/such/folder/t.db",
        "postgres://u:secret@127.0.0.1:1/x",
    ];
    for url in urls {
        let command = ["task".into(), "list".into(), OsString::from(flag("store", url))];
        let output = bench.output(&command, b"");
        let told = format_output(&output);
        assert!(!output.status.success() && !told.contains("secret"), "{url:?}: {told}");
    }
    let bytes = OsString::from_vec(b"--store=sqlite:\xff.db".to_vec());
    bench.assert_refused(&["task".into(), "list".into(), bytes], b"");
}
