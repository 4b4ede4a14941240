//! Bad input: each is answered with a clear error, and nothing is lost or half done.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::common::{
    Shell, Transcript, expect_exit, expect_numbers, expect_output, format_output, normalize_output,
    numbers,
};
use insta::{allow_duplicates, assert_snapshot};

/// Runs a file and expects one error and no store; returns the error.
#[track_caller]
fn refused(name: &str, content: impl AsRef<[u8]>) -> String {
    let shell = Shell::new();
    shell.file(name, content);
    let error = expect_exit(1, &shell.run(&["run", name]));
    assert!(error.starts_with("error: ") && error.lines().count() == 1, "{error}");
    assert!(!shell.path("tidegate.db").exists(), "a store was made");
    error
}

/// A store with one task in it.
fn with_a_task() -> Shell {
    let shell = Shell::new();
    assert_eq!(shell.run_ok(&["submit", "noop"]), "1\n");
    shell
}

/// The one task must still be there, and the store must be sound.
#[track_caller]
fn nothing_lost(shell: &Shell) {
    let list = shell.run_ok(&["task", "list", "--json"]);
    assert_eq!(list.lines().count(), 1, "{list}");
    assert!(list.contains("\"id\":1,"), "{list}");
    shell.run_ok(&["doctor"]);
}

#[test]
fn malformed_toml_is_rejected() {
    assert_snapshot!(
        expect_numbers(&[3, 8], &refused("a.toml", "[[task]]\nkind = \"noop\"\ncount == 2\n")),
        @"error: a.toml:3:8: extra `=`, expected nothing"
    );
}

#[test]
fn malformed_json_lines_are_rejected() {
    assert_snapshot!(
        expect_numbers(&[2, 13], &refused("a.jsonl", "{\"task\": {\"kind\": \"noop\"}}\n  {\"task\": nil}\n")),
        @"error: a.jsonl:2:13: expected ident"
    );
}

#[test]
fn file_that_is_not_utf8_is_rejected() {
    assert_snapshot!(
        expect_numbers(&[1, 6], &refused("a.toml", b"# caf\xe9\n")),
        @"error: a.toml:1:6: this is not UTF-8; save the file as UTF-8"
    );
}

#[test]
fn file_of_unknown_format_is_rejected() {
    assert_snapshot!(
        refused("a.yaml", "task:\n"),
        @"error: a.yaml: a run file is TOML or JSON lines; name it .toml or .jsonl"
    );
}

#[test]
fn unknown_key_is_rejected_with_suggestion() {
    assert_snapshot!(
        expect_numbers(&[3, 1], &refused("a.toml", "[[task]]\nkind = \"noop\"\nprioritty = 2\n")),
        @"error: a.toml:3:1: unknown key of task `prioritty`; did you mean `priority`? Known: `kind`, `count`, `payload`, `queue`, `group`, `weight`, `priority`, `delay_ms`, `max_attempts`, `timeout_ms`, `on_failure`, `job`, `workflow`"
    );
}

#[test]
fn unknown_kind_in_file_is_rejected() {
    assert_snapshot!(
        expect_numbers(&[5, 8], &refused("a.toml", "[[task]]\nkind = \"noop\"\n\n[[task]]\nkind = \"slep\"\n")),
        @"error: a.toml:5:8: unknown kind `slep`; did you mean `sleep`? Known: `noop`, `sleep`, `http`, `exec`"
    );
}

#[test]
fn unknown_kind_on_command_line_is_rejected() {
    let shell = with_a_task();
    assert_snapshot!(
        expect_exit(1, &shell.run(&["submit", "mail"])),
        @"error: unknown kind `mail`; known: `exec`, `http`, `noop`, `sleep`; --new-kind submits it all the same"
    );
    nothing_lost(&shell);
    assert_eq!(shell.run_ok(&["submit", "mail", "--new-kind"]), "2\n");
    assert_eq!(shell.run_ok(&["submit", "mail"]), "3\n", "it is known by now");
}

#[test]
fn payload_above_size_limit_is_rejected() {
    let shell = with_a_task();
    shell.file("large.json", format!("\"{}\"", "x".repeat(1 << 20)));
    assert_snapshot!(
        expect_output(1, &[1_048_576], &shell.run(&["submit", "noop", "--payload-file", "large.json"])),
        @"error: the payload has more than 1048576 bytes, the most that are allowed"
    );
    nothing_lost(&shell);
    let line =
        format!("{{\"task\":{{\"kind\":\"noop\",\"payload\":\"{}\"}}}}", "x".repeat(1 << 20));
    assert_snapshot!(
        expect_numbers(&[1, 34, 1_048_578, 1_048_576], &refused("a.jsonl", line)),
        @"error: a.jsonl:1:34: the payload has 1048578 bytes; at most 1048576 are allowed"
    );
}

#[test]
fn payload_above_depth_limit_is_rejected() {
    let shell = with_a_task();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    shell.file("deep.json", &deep);
    assert_snapshot!(
        expect_output(1, &[64], &shell.run(&["submit", "noop", "--payload-file", "deep.json"])),
        @"error: the payload is nested deeper than 64 levels"
    );
    nothing_lost(&shell);
    let line = format!("{{\"task\":{{\"kind\":\"noop\",\"payload\":{deep}}}}}");
    assert_snapshot!(
        expect_numbers(&[1, 34, 64], &refused("a.jsonl", line)),
        @"error: a.jsonl:1:34: the payload is nested deeper than 64 levels"
    );
}

#[test]
fn payload_that_is_not_json_is_rejected() {
    let shell = with_a_task();
    assert_snapshot!(
        expect_output(1, &[1, 2], &shell.run(&["submit", "noop", "--payload", "{ms: 5}"])),
        @"error: the payload is not JSON: key must be a string at line 1 column 2"
    );
    nothing_lost(&shell);
}

#[test]
fn payload_that_does_not_match_its_kind_is_rejected() {
    let shell = with_a_task();
    assert_snapshot!(
        expect_output(1, &[1, 13, 500], &shell.run(&["submit", "sleep", "--payload", "{\"ms\": \"long\"}"])),
        @r#"error: the payload does not fit kind `sleep`: invalid type: string "long", expected u32 at line 1 column 13; one that does: {"ms": 500}"#
    );
    nothing_lost(&shell);
}

#[test]
fn name_with_control_character_is_rejected() {
    assert_snapshot!(
        expect_numbers(&[2, 9, 0, 0, 1], &refused("a.toml", "[[limit]]\ngroup = \"a\\u0000b\"\ncapacity = 1\n")),
        @r#"error: a.toml:2:9: the group "a\0b" has the control character '\0' at byte 1; remove it"#
    );
    let shell = with_a_task();
    assert_snapshot!(
        expect_output(1, &[1], &shell.run(&["submit", "noop", "--queue", "a\tb"])),
        @r#"error: the queue "a\tb" has the control character '\t' at byte 1; remove it"#
    );
    assert_snapshot!(
        expect_output(1, &[7, 7, 1], &shell.run(&["concurrency", "set", "a\u{7f}", "--limit", "1"])),
        @r#"error: the name of the limit "a\u{7f}" has the control character '\u{7f}' at byte 1; remove it"#
    );
    nothing_lost(&shell);
}

#[test]
fn negative_limit_is_rejected() {
    assert_snapshot!(
        expect_numbers(&[3, 12, -1, 0, 2_147_483_647], &refused("a.toml", "[[limit]]\ngroup = \"x\"\ncapacity = -1\n")),
        @r#"error: a.toml:3:12: the limit "group:x" cannot be -1; it must be between 0 (paused) and 2147483647; where nobody sets a limit there is none"#
    );
    let shell = with_a_task();
    assert_snapshot!(
        expect_output(1, &[-1, 0, 2_147_483_647], &shell.run(&["concurrency", "set", "x", "--limit", "-1"])),
        @r#"error: the limit "group:x" cannot be -1; it must be between 0 (paused) and 2147483647; where nobody sets a limit there is none"#
    );
    assert_snapshot!(
        expect_output(1, &[-7, 0, 2_147_483_647], &shell.run(&["submit", "noop", "--limit", "-7"])),
        @r#"error: the limit "group:noop" cannot be -7; it must be between 0 (paused) and 2147483647; where nobody sets a limit there is none"#
    );
    nothing_lost(&shell);
}

#[test]
fn store_of_unknown_scheme_is_rejected() {
    let shell = Shell::new();
    assert_snapshot!(
        expect_exit(1, &shell.run(&["task", "list", "--store", "mysql://host/db"])),
        @r#"error: "mysql://host/db" has the scheme "mysql", which is no store; known are sqlite:PATH, postgres://... and memory:"#
    );
}

#[test]
fn libpq_variables_are_read() {
    let shell = Shell::new();
    let mut text = String::new();
    for (variable, value) in [
        ("PGSERVICE", "production"),
        ("PGSSLMODE", "verify-full"),
        ("PGSSLROOTCERT", "no/such/ca.crt"),
        ("PGSSLCERT", "client.crt"),
        ("PGSSLKEY", "client.key"),
    ] {
        let mut command = shell.command(&["doctor", "--store", "postgres://me@127.0.0.1:1/db"]);
        let printed = command.env_remove("HOME").env(variable, value).output();
        let printed = format_output(&printed.expect("run the binary"));
        text.push_str(&format!("{variable}={value}\n{}", expect_exit(1, &printed)));
    }
    assert_snapshot!(
        text,
        @r#"
        PGSERVICE=production
        error: PGSERVICE is set, but connection service files are not supported; unset it and write the parameters into the URL
        PGSSLMODE=verify-full
        error: sslmode=verify-full needs the certificate of the CA: set sslrootcert to its file, or to "system" for the CAs of the operating system
        PGSSLROOTCERT=no/such/ca.crt
        error: 127.0.0.1:1: sslrootcert no/such/ca.crt cannot be read: No such file or directory (os error 2)
        PGSSLCERT=client.crt
        error: 127.0.0.1:1: sslcert client.crt cannot be read: No such file or directory (os error 2)
        PGSSLKEY=client.key
        error: sslkey is set without sslcert: set the file of the certificate
        "#
    );
}

#[test]
fn store_password_is_not_in_any_output() {
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
                let printed = format_output(&command.output().expect("run the binary"));
                assert!(!printed.contains("s3cr3t"), "{arguments:?} {url}: {printed}");
            }
        }
    }
}

/// The user and the password are not told.
#[test]
fn unreachable_server_is_named_without_password() {
    let shell = Shell::new();
    let asked = |url: &str| shell.run(&["task", "list", "--store", url]);
    let refused = asked("postgres://me:secret@127.0.0.1:1/db");
    assert_snapshot!(
        expect_output(1, &[127, 0, 0, 1, 1, 111], &normalize_output(&refused)),
        @"error: 127.0.0.1:1: PostgreSQL cannot be reached: error connecting to server: Connection refused (os error 111)"
    );
    assert!(!refused.contains("secret"), "{refused}");
    let missing = asked("postgres://%2Fno%2Fsuch/db?user=me");
    assert_snapshot!(
        expect_output(1, &[5432, 2], &normalize_output(&missing)),
        @"error: /no/such/.s.PGSQL.5432: PostgreSQL cannot be reached: error connecting to server: No such file or directory (os error 2)"
    );
}

#[test]
fn missing_store_is_not_created_by_reading() {
    let shell = Shell::new();
    assert_snapshot!(
        expect_exit(1, &shell.run(&["task", "list"])),
        @"error: there is no store at tidegate.db; name another with --store, or make this one with `tidegate migrate`"
    );
    assert!(!shell.path("tidegate.db").exists());
}

#[test]
fn file_of_newer_version_is_rejected() {
    let shell = with_a_task();
    let database = rusqlite::Connection::open(shell.path("tidegate.db")).unwrap();
    let version: i64 = database.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    database.pragma_update(None, "user_version", version + 1).unwrap();
    let refused = shell.run(&["submit", "noop"]);
    let error = expect_output(1, &[version + 1, version], &refused);
    let error = error.replace(&format!("schema {}", version + 1), "schema NEW");
    assert_snapshot!(
        error.replace(&format!("up to {version},"), "up to KNOWN,"),
        @"error: tidegate.db: the file has schema NEW, made by a newer version of tidegate; this one knows schemas up to KNOWN, use the newer one"
    );
    assert_eq!(shell.run(&["task", "list"]), refused);
    database.pragma_update(None, "user_version", version).unwrap();
    drop(database);
    nothing_lost(&shell);
}

#[test]
fn file_that_is_not_a_database_is_rejected() {
    let shell = Shell::new();
    shell.file(
        "notes.txt",
        "These are notes, and long enough to be taken for a header.\n".repeat(9),
    );
    assert_snapshot!(
        expect_exit(1, &shell.run(&["submit", "noop", "--store", "notes.txt"])),
        @"error: notes.txt: this is not an SQLite database; give another path"
    );
}

#[test]
fn read_only_file_rejects_submit() {
    let shell = with_a_task();
    let mode = |path: &str, mode: u32| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(shell.path(path), permissions).unwrap();
    };
    for (path, bits) in [("tidegate.db", 0o444), ("tidegate.db-lock", 0o444), (".", 0o555)] {
        mode(path, bits);
    }
    let output = format_output(&held_back(shell.command(&["submit", "noop"])).output().unwrap());
    mode(".", 0o755);
    mode("tidegate.db", 0o644);
    mode("tidegate.db-lock", 0o644);
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&output)),
        @"error: tidegate.db: the file cannot be written to (attempt to write a readonly database); nothing was written, mend the permissions of the file and of its folder: a reader too makes the files -wal and -shm there"
    );
    assert_eq!(output.lines().count(), 2, "{output}");
    nothing_lost(&shell);
}

/// Beside a file that nobody has open, SQLite makes the log and its index anew, also to read.
#[test]
fn read_only_directory_rejects_reads() {
    let shell = with_a_task();
    // The last one to close the file takes them away.
    drop(rusqlite::Connection::open(shell.path("tidegate.db")).unwrap().execute_batch("VACUUM"));
    let mode = |mode: u32| {
        std::fs::set_permissions(shell.path("."), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o555);
    let verbs: [&[&str]; 3] = [&["task", "list"], &["concurrency", "status"], &["doctor"]];
    let outputs = verbs.map(|verb| {
        format_output(&held_back(shell.command(verb)).output().expect("run the binary"))
    });
    mode(0o755);
    for output in outputs {
        allow_duplicates! {
            assert_snapshot!(
                expect_exit(1, &output),
                @"error: tidegate.db: the file cannot be written to (attempt to write a readonly database); nothing was written, mend the permissions of the file and of its folder: a reader too makes the files -wal and -shm there"
            );
        }
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
fn file_size_limit_rejects_submit_and_loses_nothing() {
    let shell = with_a_task();
    shell.file("large.json", format!("\"{}\"", "x".repeat(900_000)));
    // 512 bytes each. Without the trap the system ends who writes too much.
    let bounded = |arguments: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 1600; exec $TIDEGATE {arguments}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(shell.path(""));
        command.env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate")).env_remove("TIDEGATE_STORE");
        format_output(&command.output().expect("run a shell"))
    };
    let refused = bounded("submit noop --payload-file large.json");
    assert!(refused.starts_with("exit 1\nerror: tidegate.db: "), "{refused}");
    assert_eq!(refused.lines().count(), 2, "{refused}");
    nothing_lost(&shell);
    assert_eq!(bounded("submit noop"), "exit 0\n2\n", "the bound leaves room for a small one");
    assert_eq!(shell.run_ok(&["submit", "noop", "--payload-file", "large.json"]), "3\n");
    shell.run_ok(&["doctor"]);
}

/// Fills a file system of its own, which needs a namespace of its own. Where a system forbids
/// that, [`file_size_limit_rejects_submit_and_loses_nothing`] has shown that a failed write loses nothing.
#[test]
fn full_disk_rejects_submit_and_loses_nothing() {
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
    assert_snapshot!(
        expect_output(0, &[1, 1, 2], &format_output(&output)),
        @"
        1
        1
        clean: every rule holds
        2
        error: disk/a.db: the disk is full; nothing was written, make room and try again
        error: disk/a.db: the disk is full; nothing was written, make room and try again
        "
    );
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("ask who we are");
    id.stdout == b"0\n"
}

#[cfg(not(feature = "top"))]
#[test]
fn binary_without_top_names_the_feature() {
    let told = with_a_task().run(&["top"]);
    assert!(told.starts_with("exit 1\nerror: this binary was built without top; "), "{told}");
    assert!(told.contains("--features top"), "{told}");
}

#[test]
fn top_interval_out_of_bounds_is_rejected() {
    let shell = with_a_task();
    let mut transcript = Transcript::of(&shell);
    for interval in ["99ms", "0s", "-1s", "61m"] {
        let arguments = ["top", &format!("--interval={interval}")];
        let bounds = numbers(&expect_exit(1, &shell.run(&arguments)));
        assert_eq!(bounds[..2], [100, 1], "milliseconds and hours");
        transcript.run(1, &arguments);
    }
    assert_snapshot!(
        transcript,
        @"
        $ tidegate top --interval=99ms
        error: --interval is from 100ms to 1h, not 99ms
        $ tidegate top --interval=0s
        error: --interval is from 100ms to 1h, not 0s
        $ tidegate top --interval=-1s
        error: --interval is from 100ms to 1h, not 1s ago
        $ tidegate top --interval=61m
        error: --interval is from 100ms to 1h, not 1h 1m
        "
    );
}

/// A flag that cannot be read names the bound or the unit.
#[test]
fn number_out_of_bounds_and_duration_without_unit_are_rejected() {
    let shell = with_a_task();
    let mut transcript = Transcript::of(&shell);
    let unit: &[i64] = &[5, 5, 5, 5];
    let cases: [(&[&str], &[i64]); 10] = [
        (&["worker", "--concurrency", "3000000000"], &[3_000_000_000, 3_000_000_000, 1, 100_000]),
        (&["worker", "--concurrency", "-1"], &[-1, -1, 1, 100_000]),
        (&["worker", "--claim-batch", "0"], &[0, 0, 1, 10_000]),
        (
            &["run", "a.toml", "--concurrency", "3000000000"],
            &[3_000_000_000, 3_000_000_000, 1, 100_000],
        ),
        (
            &["job", "set", "a", "--min-concurrency", "5000000000"],
            &[5_000_000_000, 0, 2_147_483_647],
        ),
        (&["submit", "noop", "--delay", "5"], unit),
        (&["submit", "noop", "--timeout", "5"], unit),
        (&["job", "set", "a", "--delay", "5"], unit),
        (&["worker", "--lease", "5"], unit),
        (&["task", "wait", "1", "--timeout", "soon"], &[1, 90, 500]),
    ];
    for (arguments, numbers) in cases {
        expect_numbers(numbers, &expect_exit(2, &shell.run(arguments)));
        transcript.run(2, arguments);
    }
    assert_snapshot!(transcript);
    nothing_lost(&shell);
}
