//! Bad input: each is answered with a clear error, and nothing is lost or half done.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::common::{Shell, shown};

/// Runs a file and expects one error and no store.
#[track_caller]
fn refused(name: &str, content: impl AsRef<[u8]>, error: &str) {
    let shell = Shell::new();
    shell.file(name, content);
    assert_eq!(shell.run(&["run", name]), format!("exit 1\nerror: {error}\n"));
    assert!(!shell.path("tidegate.db").exists(), "a store was made");
}

/// A store with one task in it.
fn with_a_task() -> Shell {
    let shell = Shell::new();
    assert_eq!(shell.good(&["submit", "noop"]), "1\n");
    shell
}

/// The one task must still be there, and the store must be sound.
#[track_caller]
fn nothing_lost(shell: &Shell) {
    let list = shell.good(&["task", "list", "--json"]);
    assert_eq!(list.lines().count(), 1, "{list}");
    assert!(list.contains("\"id\":1,"), "{list}");
    shell.good(&["doctor"]);
}

#[test]
fn malformed_toml() {
    refused(
        "a.toml",
        "[[task]]\nkind = \"noop\"\ncount == 2\n",
        "a.toml:3:8: extra `=`, expected nothing",
    );
}

#[test]
fn malformed_json_lines() {
    refused(
        "a.jsonl",
        "{\"task\": {\"kind\": \"noop\"}}\n  {\"task\": nil}\n",
        "a.jsonl:2:13: expected ident",
    );
}

#[test]
fn not_utf8() {
    refused("a.toml", b"# caf\xe9\n", "a.toml:1:6: this is not UTF-8; save the file as UTF-8");
}

#[test]
fn neither_toml_nor_json_lines() {
    let error = "a.yaml: a run file is TOML or JSON lines; name it .toml or .jsonl";
    refused("a.yaml", "task:\n", error);
}

#[test]
fn an_unknown_key_is_named_and_a_near_one_suggested() {
    refused(
        "a.toml",
        "[[task]]\nkind = \"noop\"\nprioritty = 2\n",
        "a.toml:3:1: unknown key of task `prioritty`; did you mean `priority`? Known: `kind`, \
         `count`, `payload`, `queue`, `group`, `weight`, `priority`, `delay_ms`, \
         `max_attempts`, `timeout_ms`, `on_failure`, `job`, `workflow`",
    );
}

#[test]
fn an_unknown_kind_in_a_file() {
    refused(
        "a.toml",
        "[[task]]\nkind = \"noop\"\n\n[[task]]\nkind = \"slep\"\n",
        "a.toml:5:8: unknown kind `slep`; did you mean `sleep`? Known: `noop`, `sleep`, `http`, \
         `exec`",
    );
}

#[test]
fn an_unknown_kind_on_the_command_line() {
    let shell = with_a_task();
    assert_eq!(
        shell.run(&["submit", "mail"]),
        "exit 1\nerror: unknown kind `mail`; known: `exec`, `http`, `noop`, `sleep`; --new-kind \
         submits it all the same\n"
    );
    nothing_lost(&shell);
    assert_eq!(shell.good(&["submit", "mail", "--new-kind"]), "2\n");
    assert_eq!(shell.good(&["submit", "mail"]), "3\n", "it is known by now");
}

#[test]
fn a_payload_that_is_too_large() {
    let shell = with_a_task();
    shell.file("large.json", format!("\"{}\"", "x".repeat(1 << 20)));
    assert_eq!(
        shell.run(&["submit", "noop", "--payload-file", "large.json"]),
        "exit 1\nerror: the payload has more than 1048576 bytes, the most that are allowed\n"
    );
    nothing_lost(&shell);
    let line =
        format!("{{\"task\":{{\"kind\":\"noop\",\"payload\":\"{}\"}}}}", "x".repeat(1 << 20));
    refused(
        "a.jsonl",
        line,
        "a.jsonl:1:34: the payload has 1048578 bytes; at most 1048576 are allowed",
    );
}

#[test]
fn a_payload_that_is_too_deep() {
    let shell = with_a_task();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let expected = "the payload is nested deeper than 64 levels";
    shell.file("deep.json", &deep);
    assert_eq!(
        shell.run(&["submit", "noop", "--payload-file", "deep.json"]),
        format!("exit 1\nerror: {expected}\n")
    );
    nothing_lost(&shell);
    let line = format!("{{\"task\":{{\"kind\":\"noop\",\"payload\":{deep}}}}}");
    refused("a.jsonl", line, &format!("a.jsonl:1:34: {expected}"));
}

#[test]
fn a_payload_that_is_not_json() {
    let shell = with_a_task();
    assert_eq!(
        shell.run(&["submit", "noop", "--payload", "{ms: 5}"]),
        "exit 1\nerror: the payload is not JSON: key must be a string at line 1 column 2\n"
    );
    nothing_lost(&shell);
}

#[test]
fn a_payload_that_does_not_fit_its_kind() {
    let shell = with_a_task();
    assert_eq!(
        shell.run(&["submit", "sleep", "--payload", "{\"ms\": \"long\"}"]),
        "exit 1\nerror: the payload does not fit kind `sleep`: invalid type: string \"long\", \
         expected u32 at line 1 column 13; one that does: {\"ms\": 500}\n"
    );
    nothing_lost(&shell);
}

#[test]
fn nul_and_control_characters_in_names() {
    refused(
        "a.toml",
        "[[limit]]\ngroup = \"a\\u0000b\"\ncapacity = 1\n",
        "a.toml:2:9: the group \"a\\0b\" has the control character '\\0' at byte 1; remove it",
    );
    let shell = with_a_task();
    assert_eq!(
        shell.run(&["submit", "noop", "--queue", "a\tb"]),
        "exit 1\nerror: the queue \"a\\tb\" has the control character '\\t' at byte 1; remove it\n"
    );
    assert_eq!(
        shell.run(&["concurrency", "set", "a\u{7f}", "--limit", "1"]),
        "exit 1\nerror: the name of the limit \"a\\u{7f}\" has the control character '\\u{7f}' at \
         byte 1; remove it\n"
    );
    nothing_lost(&shell);
}

#[test]
fn a_negative_limit() {
    let text = |name: &str, number: i32| {
        format!(
            "the limit {name:?} cannot be {number}; it must be between 0 (paused) and 2147483647; \
             where nobody sets a limit there is none"
        )
    };
    refused(
        "a.toml",
        "[[limit]]\ngroup = \"x\"\ncapacity = -1\n",
        &format!("a.toml:3:12: {}", text("group:x", -1)),
    );
    let shell = with_a_task();
    assert_eq!(
        shell.run(&["concurrency", "set", "x", "--limit", "-1"]),
        format!("exit 1\nerror: {}\n", text("group:x", -1))
    );
    assert_eq!(
        shell.run(&["submit", "noop", "--limit", "-7"]),
        format!("exit 1\nerror: {}\n", text("group:noop", -7))
    );
    nothing_lost(&shell);
}

#[test]
fn a_store_of_an_unknown_scheme() {
    let shell = Shell::new();
    assert_eq!(
        shell.run(&["task", "list", "--store", "mysql://host/db"]),
        "exit 1\nerror: \"mysql://host/db\" has the scheme \"mysql\", which is no store; known are \
         sqlite:PATH, postgres://... and memory:\n"
    );
}

#[test]
fn variables_of_libpq_are_read() {
    let shell = Shell::new();
    for (variable, value, word) in [
        ("PGSERVICE", "production", "PGSERVICE"),
        ("PGSSLMODE", "verify-full", "sslmode=verify-full needs"),
        ("PGSSLROOTCERT", "no/such/ca.crt", "sslrootcert no/such/ca.crt cannot be read"),
        ("PGSSLCERT", "client.crt", "sslcert"),
        ("PGSSLKEY", "client.key", "sslcert"),
    ] {
        let mut command = shell.command(&["doctor", "--store", "postgres://me@127.0.0.1:1/db"]);
        let printed = command.env_remove("HOME").env(variable, value).output();
        let printed = shown(&printed.expect("run the binary"));
        assert!(printed.starts_with("exit 1\n") && printed.contains(word), "{variable}: {printed}");
    }
}

#[test]
fn password_of_a_store_is_in_no_output() {
    let shell = Shell::new();
    for url in [
        "postgres://me:s3cr3t@127.0.0.1:1/db",
        "postgres://127.0.0.1:1/db?user=me&password=s3cr3t",
        "postgres://me:s3@s3cr3t@127.0.0.1:1/db",
        "postgres://me:s3cr3t@127.0.0.1:1/db?sslmood=require",
        "postgres://me:s3cr3t@127.0.0.1:port/db",
        "postgres://me:s3cr3t@127.0.0.1:1/db?sslmode=verify-full",
        "postgress://me:s3cr3t@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=s3cr3t",
    ] {
        for arguments in
            [&["doctor"][..], &["config"], &["task", "list"], &["submit", "noop"], &["worker"]]
        {
            for variable in ["TIDEGATE_STORE", "none"] {
                let mut command = shell.command(arguments);
                command.env("TIDEGATE_LOG", "trace").env(variable, url);
                if variable == "none" {
                    command.args(["--store", url]);
                }
                let printed = shown(&command.output().expect("run the binary"));
                assert!(!printed.contains("s3cr3t"), "{arguments:?} {url}: {printed}");
            }
        }
    }
}

/// The user and the password are not told.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let shell = Shell::new();
    let asked = |url: &str| shell.run(&["task", "list", "--store", url]);
    let refused = asked("postgres://me:secret@127.0.0.1:1/db");
    let place = "exit 1\nerror: 127.0.0.1:1: PostgreSQL cannot be reached: ";
    assert!(refused.starts_with(place) && !refused.contains("secret"), "{refused}");
    let missing = asked("postgres://%2Fno%2Fsuch/db?user=me");
    let place = "exit 1\nerror: /no/such/.s.PGSQL.5432: PostgreSQL cannot be reached: ";
    assert!(missing.starts_with(place), "{missing}");
}

#[test]
fn a_store_that_is_not_there_is_not_made_by_looking() {
    let shell = Shell::new();
    assert_eq!(
        shell.run(&["task", "list"]),
        "exit 1\nerror: there is no store at tidegate.db; name another with --store, or make this \
         one with `tidegate migrate`\n"
    );
    assert!(!shell.path("tidegate.db").exists());
}

#[test]
fn a_file_of_a_newer_version() {
    let shell = with_a_task();
    let database = rusqlite::Connection::open(shell.path("tidegate.db")).unwrap();
    let version: i64 = database.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    database.pragma_update(None, "user_version", version + 1).unwrap();
    let expected = format!(
        "exit 1\nerror: tidegate.db: the file has schema {}, made by a newer version of tidegate; \
         this one knows schemas up to {version}, use the newer one\n",
        version + 1
    );
    assert_eq!(shell.run(&["submit", "noop"]), expected);
    assert_eq!(shell.run(&["task", "list"]), expected);
    database.pragma_update(None, "user_version", version).unwrap();
    drop(database);
    nothing_lost(&shell);
}

#[test]
fn a_file_that_is_no_database() {
    let shell = Shell::new();
    shell.file(
        "notes.txt",
        "These are notes, and long enough to be taken for a header.\n".repeat(9),
    );
    assert_eq!(
        shell.run(&["submit", "noop", "--store", "notes.txt"]),
        "exit 1\nerror: notes.txt: this is not an SQLite database; give another path\n"
    );
}

#[test]
fn a_file_that_cannot_be_written_to() {
    let shell = with_a_task();
    let mode = |path: &str, mode: u32| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(shell.path(path), permissions).unwrap();
    };
    for (path, bits) in [("tidegate.db", 0o444), ("tidegate.db-lock", 0o444), (".", 0o555)] {
        mode(path, bits);
    }
    let output = shown(&held_back(shell.command(&["submit", "noop"])).output().unwrap());
    mode(".", 0o755);
    mode("tidegate.db", 0o644);
    mode("tidegate.db-lock", 0o644);
    assert!(output.starts_with("exit 1\nerror: tidegate.db: the file cannot be "), "{output}");
    assert_eq!(output.lines().count(), 2, "{output}");
    nothing_lost(&shell);
}

/// Beside a file that nobody has open, SQLite makes the log and its index anew, also to read.
#[test]
fn a_folder_that_cannot_be_written_to_cannot_be_read_from() {
    let shell = with_a_task();
    // The last one to close the file takes them away.
    drop(rusqlite::Connection::open(shell.path("tidegate.db")).unwrap().execute_batch("VACUUM"));
    let mode = |mode: u32| {
        std::fs::set_permissions(shell.path("."), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o555);
    let verbs: [&[&str]; 3] = [&["task", "list"], &["concurrency", "status"], &["doctor"]];
    let outputs =
        verbs.map(|verb| shown(&held_back(shell.command(verb)).output().expect("run the binary")));
    mode(0o755);
    for output in outputs {
        assert!(output.starts_with("exit 1\nerror: tidegate.db: the file cannot be "), "{output}");
        let need = " of its folder: a reader too makes the files -wal and -shm there\n";
        assert!(output.ends_with(need), "{output}");
    }
    nothing_lost(&shell);
}

/// Permissions do not hold root back.
fn held_back(mut command: Command) -> Command {
    if is_root() {
        command.uid(65534);
    }
    command
}

/// A bound on the size of files stands in for a full disk, which not every system lets a test
/// make. The same command works without the bound, so it is the bound that refuses it.
#[test]
fn a_file_that_may_not_grow() {
    let shell = with_a_task();
    shell.file("large.json", format!("\"{}\"", "x".repeat(900_000)));
    // 512 bytes each. Without the trap the system ends who writes too much.
    let bounded = |arguments: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 1600; exec $TIDEGATE {arguments}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(shell.path(""));
        command.env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate")).env_remove("TIDEGATE_STORE");
        shown(&command.output().expect("run a shell"))
    };
    let refused = bounded("submit noop --payload-file large.json");
    assert!(refused.starts_with("exit 1\nerror: tidegate.db: "), "{refused}");
    assert_eq!(refused.lines().count(), 2, "{refused}");
    nothing_lost(&shell);
    assert_eq!(bounded("submit noop"), "exit 0\n2\n", "the bound leaves room for a small one");
    assert_eq!(shell.good(&["submit", "noop", "--payload-file", "large.json"]), "3\n");
    shell.good(&["doctor"]);
}

/// Fills a file system of its own, which needs a namespace of its own. Where a system forbids
/// that, [`a_file_that_may_not_grow`] has shown that a failed write loses nothing.
#[test]
fn a_full_disk() {
    let shell = with_a_task();
    shell.file(
        "fill.sh",
        "set -e\n\
         mkdir disk\n\
         mount -t tmpfs -o size=2m tmpfs disk\n\
         $TIDEGATE submit noop --store disk/a.db\n\
         head -c 4m /dev/zero > disk/filler 2>/dev/null || true\n\
         $TIDEGATE submit noop --store disk/a.db || true\n\
         truncate -s -300K disk/filler\n\
         $TIDEGATE submit noop --store disk/a.db --payload-file large.json || true\n\
         rm disk/filler\n\
         $TIDEGATE task list --store disk/a.db --json | wc -l\n\
         $TIDEGATE doctor --store disk/a.db | tail -n 1\n\
         $TIDEGATE submit noop --store disk/a.db\n",
    );
    shell.file("large.json", format!("\"{}\"", "x".repeat(500_000)));
    let script = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "fill.sh"])
        .current_dir(shell.path(""))
        .env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate"))
        .env_remove("TIDEGATE_STORE")
        .output();
    let output = match script {
        Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("unshare") => output,
        refused => {
            eprintln!("not tested, no file system of its own: {refused:?}");
            return;
        }
    };
    assert_eq!(
        shown(&output),
        "exit 0\n1\n1\nclean: every rule holds\n2\n\
         error: disk/a.db: the disk is full; nothing was written, make room and try again\n\
         error: disk/a.db: the disk is full; nothing was written, make room and try again\n"
    );
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("ask who we are");
    id.stdout == b"0\n"
}

#[cfg(not(feature = "top"))]
#[test]
fn a_binary_without_top_says_how_it_is_built() {
    let told = with_a_task().run(&["top"]);
    assert!(told.starts_with("exit 1\nerror: this binary was built without top; "), "{told}");
    assert!(told.contains("--features top"), "{told}");
}

#[test]
fn top_looks_neither_too_often_nor_too_seldom() {
    for interval in ["99ms", "0s", "-1s", "61m"] {
        let told = with_a_task().run(&["top", &format!("--interval={interval}")]);
        assert!(told.starts_with("exit 1\nerror: --interval is from 100ms to 1h, not "), "{told}");
    }
}

/// A flag that cannot be read names the bound or the unit.
#[test]
fn a_number_out_of_bounds_and_a_duration_without_a_unit() {
    let shell = with_a_task();
    let bound = "it must be between 1 and 100000";
    let unit = "5 has no unit: write 5s or 5ms";
    let cases: [(&[&str], &str); 12] = [
        (&["worker", "--concurrency", "3000000000"], bound),
        (&["worker", "--concurrency", "-1"], bound),
        (&["worker", "--workers", "5000000000"], bound),
        (&["worker", "--max-concurrent-tasks", "5000000000"], "between 0 and 100000"),
        (&["worker", "--claim-batch", "0"], "it must be between 1 and "),
        (&["run", "a.toml", "--concurrency", "3000000000"], bound),
        (&["job", "set", "a", "--min-concurrency", "5000000000"], "between 0 and 2147483647"),
        (&["submit", "noop", "--delay", "5"], unit),
        (&["submit", "noop", "--timeout", "5"], unit),
        (&["job", "set", "a", "--delay", "5"], unit),
        (&["worker", "--lease", "5"], unit),
        (&["task", "wait", "1", "--timeout", "soon"], "such as 1h30m, 90s or 500ms"),
    ];
    for (arguments, text) in cases {
        let told = shell.run(arguments);
        assert!(told.starts_with("exit 2\nerror: invalid value '"), "{arguments:?}: {told}");
        assert!(told.contains(text), "{arguments:?}: {told}");
    }
    nothing_lost(&shell);
}
