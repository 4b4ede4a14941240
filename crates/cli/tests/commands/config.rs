//! `tidegate.toml` and the variables: who is heard, what is refused, and what holds afterwards.

use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use crate::common::{
    Shell, expect_exit, expect_numbers, expect_output, format_output, normalize_output,
};
use insta::{allow_duplicates, assert_snapshot};
use tidegate_testkit::wait;

/// A shell with a configuration.
fn shell(config: impl AsRef<[u8]>) -> Shell {
    let shell = Shell::new();
    shell.file("tidegate.toml", config);
    shell
}

/// What `config --json` says of a setting.
fn held(shell: &Shell, variables: &[(&str, &str)], arguments: &[&str], setting: &str) -> String {
    let mut command = shell.command(&["config", "--json"]);
    let output = command.args(arguments).envs(variables.iter().copied()).output().expect("run");
    let text = format_output(&output);
    let line = text.lines().find(|line| line.contains(&format!("\"{setting}\"")));
    line.unwrap_or(&text).to_owned()
}

#[test]
fn config_without_file_shows_defaults() {
    assert_eq!(
        Shell::new().run(&["config"]),
        "exit 0\n\
         setting                                               value     from\n\
         store                                    sqlite:tidegate.db  default\n\
         log                                                    warn  default\n\
         profile                                                   -  default\n\
         run.concurrency                                          64  default\n\
         worker.concurrency                                       16  default\n\
         worker.workers                                            1  default\n\
         worker.max_concurrent_tasks                               0  default\n\
         worker.claim_batch                                      100  default\n\
         worker.poll_interval_ms                                1000  default\n\
         worker.permits_low_percent                               10  default\n\
         worker.memory_high_percent                               80  default\n\
         worker.latency_high_ms                                  500  default\n\
         worker.queues                                             -  default\n\
         worker.kinds                                              -  default\n\
         worker.metrics                                            -  default\n\
         concurrency.default_lease_duration_secs                  30  default\n\
         concurrency.limits                                        -  default\n\
         postgres.connect_timeout_ms                           10000  default\n\
         postgres.pool_wait_timeout_ms                         10000  default\n\
         postgres.request_timeout_ms                           10000  default\n\
         postgres.heartbeat_timeout_ms                          5000  default\n\
         postgres.read_timeout_ms                             300000  default\n\
         postgres.maintenance_timeout_ms                     3600000  default\n\
         postgres.tcp_keepalive_ms                             10000  default\n\
         postgres.tcp_user_timeout_ms                          10000  default\n\
         http.allow                                                -  default\n\
         exec.allow                                                -  default\n"
    );
}

#[test]
fn flag_overrides_variable_and_variable_overrides_file() {
    let shell = shell("store = \"file.db\"\n[worker]\nconcurrency = 5\n");
    let store = |variables: &[(&str, &str)], arguments: &[&str]| {
        held(&shell, variables, arguments, "store")
    };
    let line = |value: &str, from: &str| {
        format!("{{\"setting\":\"store\",\"value\":\"sqlite:{value}\",\"from\":\"{from}\"}}")
    };
    let variable = [("TIDEGATE_STORE", "variable.db")];
    assert_eq!(store(&[], &[]), line("file.db", "tidegate.toml:1"));
    assert_eq!(store(&variable, &[]), line("variable.db", "TIDEGATE_STORE"));
    assert_eq!(store(&variable, &["--store", "flag.db"]), line("flag.db", "--store"));
    assert_eq!(store(&[("TIDEGATE_STORE", "")], &[]), line("file.db", "tidegate.toml:1"));
    assert_eq!(
        held(&shell, &[], &[], "worker.concurrency"),
        "{\"setting\":\"worker.concurrency\",\"value\":5,\"from\":\"tidegate.toml:3\"}"
    );
    shell.run_ok(&["submit", "noop"]);
    assert!(shell.path("file.db").exists(), "the file names the store");
}

#[test]
fn profile_has_lowest_precedence() {
    let shell = shell("profile = \"staging\"\n[worker]\nconcurrency = 7\n");
    let line = |setting: &str, value: u32, from: &str| {
        format!("{{\"setting\":\"{setting}\",\"value\":{value},\"from\":\"{from}\"}}")
    };
    let workers = |variables: &[(&str, &str)], arguments: &[&str]| {
        held(&shell, variables, arguments, "worker.workers")
    };
    assert_eq!(workers(&[], &[]), line("worker.workers", 20, "profile staging"));
    assert_eq!(
        held(&shell, &[], &[], "worker.concurrency"),
        line("worker.concurrency", 7, "tidegate.toml:3")
    );
    let development = [("TIDEGATE_ENV", "development")];
    assert_eq!(workers(&development, &[]), line("worker.workers", 5, "profile development"));
    assert_eq!(
        workers(&development, &["--profile", "production"]),
        line("worker.workers", 100, "profile production")
    );
    assert_eq!(
        held(&shell, &[], &["--profile", "production"], "profile"),
        "{\"setting\":\"profile\",\"value\":\"production\",\"from\":\"--profile\"}"
    );
    assert_eq!(workers(&[("WORKERS", "3")], &[]), line("worker.workers", 3, "WORKERS"));
    let both = [("WORKERS", "3"), ("TIDEGATE_WORKERS", "4")];
    assert_eq!(workers(&both, &[]), line("worker.workers", 4, "TIDEGATE_WORKERS"));
    assert_eq!(
        shell.run(&["config", "--profile", "prod"]).lines().next(),
        Some("exit 1"),
        "an unknown profile"
    );
}

/// A profile is the worker's; whoever gives it to another command means something else.
#[test]
fn profile_flag_is_accepted_only_by_commands_that_use_it() {
    let shell = Shell::new();
    for command in ["submit noop", "task list", "job list", "workers", "migrate", "doctor"] {
        let words = command.split(' ').chain(["--profile", "staging"]);
        let told = shell.run(&words.collect::<Vec<_>>());
        let error = expect_exit(2, &told);
        allow_duplicates! {
            assert_snapshot!(error.lines().next().expect(command), @"error: unexpected argument '--profile' found");
        }
    }
    let told = shell.run(&["worker", "--until-idle", "--profile", "staging"]);
    assert_snapshot!(
        expect_output(0, &[0, 0, 0, 0, 0, 0, 0, 60, 20, 3], &normalize_output(&told)),
        @"
        0 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        worker W works on sqlite:tidegate.db: 60 tasks at once (20 workers x 3), profile staging, kinds noop, sleep
        idle: no unfinished task is left
        "
    );
}

#[test]
fn worker_prints_its_concurrency() {
    let shell = Shell::new();
    let told = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = shell.command(&["worker", "--until-idle"]);
        command.args(arguments).envs(variables.iter().copied());
        let text = format_output(&command.output().expect("run"));
        let line = text.lines().find(|line| line.contains(" works on ")).unwrap_or(&text);
        let (_, said) = line.split_once("tidegate.db: ").expect(line);
        said.split_once(", kinds").expect(said).0.to_owned()
    };
    let production = [("TIDEGATE_ENV", "production")];
    assert_snapshot!(expect_numbers(&[16], &told(&[], &[])), @"16 tasks at once");
    assert_snapshot!(
        expect_numbers(&[500, 100, 5], &told(&production, &[])),
        @"500 tasks at once (100 workers x 5), profile production"
    );
    assert_snapshot!(
        expect_numbers(&[10], &told(&production, &["--concurrency", "10"])),
        @"10 tasks at once"
    );
    assert_snapshot!(
        expect_numbers(&[1000], &told(&[("MAX_CONCURRENT_TASKS", "1000")], &[])),
        @"1,000 tasks at once"
    );
    assert_snapshot!(
        expect_numbers(&[6, 2, 3], &told(&[("WORKERS", "2"), ("WORKER_CONCURRENCY", "3")], &[])),
        @"6 tasks at once (2 workers x 3)"
    );
    let all = [("MAX_CONCURRENT_TASKS", "100"), ("WORKERS", "2"), ("WORKER_CONCURRENCY", "3")];
    assert_snapshot!(expect_numbers(&[100], &told(&all, &[])), @"100 tasks at once");
    assert_snapshot!(expect_numbers(&[4], &told(&all, &["--concurrency", "4"])), @"4 tasks at once");
    let mut many = shell.command(&["worker"]);
    let many = many.envs([("WORKERS", "1000"), ("WORKER_CONCURRENCY", "1000")]).output();
    assert_snapshot!(
        expect_output(1, &[1000, 1000, 100_000], &normalize_output(&format_output(&many.expect("run")))),
        @"error: 1,000 workers with 1000 tasks each are more than 100000 tasks at once, the most of one process"
    );
}

#[test]
fn kind_concurrency_flag_is_printed_and_validated() {
    let shell = Shell::new();
    let told = |values: &[&str]| {
        let flags = values.iter().flat_map(|value| ["--kind-concurrency", value]);
        shell.run(&["worker", "--until-idle"].into_iter().chain(flags).collect::<Vec<_>>())
    };
    let good = told(&["noop=4", "sleep=16"]);
    assert_snapshot!(
        expect_output(0, &[0, 0, 0, 0, 0, 0, 0, 16, 4, 16], &normalize_output(&good)),
        @"
        0 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop (at most 4 at once), sleep (at most 16 at once)
        idle: no unfinished task is left
        "
    );
    assert!(!good.contains("warning"), "{good}");
    let above = told(&["noop=17"]);
    assert_snapshot!(
        expect_output(0, &[0, 0, 0, 0, 0, 0, 0, 17, 16, 16, 17], &normalize_output(&above)),
        @"
        0 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        warning: --kind-concurrency noop=17 changes nothing: the worker runs 16 tasks at once
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop (at most 17 at once), sleep
        idle: no unfinished task is left
        "
    );
    let bad: [(&[&str], &[i64]); 7] = [
        (&["noop=0"], &[0, 1, 100_000]),
        (&["noop=-1"], &[-1, 1, 100_000]),
        (&["noop=many"], &[4]),
        (&["noop"], &[4]),
        (&["nop=1"], &[]),
        (&["http=2"], &[2]),
        (&["noop=1", "noop=2"], &[]),
    ];
    let mut errors = String::new();
    for (values, numbers) in bad {
        errors.push_str(&expect_output(1, numbers, &told(values)));
    }
    assert_snapshot!(
        errors,
        @r#"
        error: --kind-concurrency "noop=0" is out of bounds: at least 1 and at most 100000 run at once; a kind of which none is to run is left out of --kinds
        error: --kind-concurrency "noop=-1" is out of bounds: at least 1 and at most 100000 run at once; a kind of which none is to run is left out of --kinds
        error: --kind-concurrency "noop=many" is not KIND=N, such as noop=4: "many" is no whole number
        error: --kind-concurrency "noop" is not KIND=N, such as noop=4
        error: unknown kind `nop`; did you mean `noop`? Known: `noop`, `sleep`, `http`, `exec`; this worker has handlers for these only
        error: --kind-concurrency "http=2" is of a kind that this worker does not serve; it serves noop, sleep: leave it out, or let it serve `http` by `--http-allow HOST`
        error: --kind-concurrency names kind `noop` twice; say it once
        "#
    );
}

#[test]
fn config_flag_requires_existing_file_and_empty_variable_disables_it() {
    let shell = shell("log = \"info\"\n");
    shell.file("other.toml", "\nlog = \"error\"\n");
    let log =
        |variables: &[(&str, &str)], arguments: &[&str]| held(&shell, variables, arguments, "log");
    let other = "{\"setting\":\"log\",\"value\":\"error\",\"from\":\"other.toml:2\"}";
    let variable = |path| [("TIDEGATE_CONFIG", path)];
    assert_eq!(log(&[], &["--config", "other.toml"]), other);
    assert_eq!(log(&variable("other.toml"), &[]), other);
    assert_eq!(log(&variable("no.toml"), &["--config", "other.toml"]), other);
    let none = "{\"setting\":\"log\",\"value\":\"warn\",\"from\":\"default\"}";
    assert_eq!(log(&variable(""), &[]), none);
    assert_snapshot!(
        expect_output(1, &[2], &shell.run(&["config", "--config", "no.toml"])),
        @"error: read no.toml: No such file or directory (os error 2)"
    );
}

#[test]
fn config_does_not_show_password() {
    let shell = shell("store = \"postgres://me:secret@host:1/db?password=secret\"\n");
    for arguments in [&["config"][..], &["config", "--json"]] {
        let told = shell.run(arguments);
        assert!(told.contains("postgres://host:1/db") && !told.contains("secret"), "{told}");
    }
    shell.file("tidegate.toml", "store = \"mysql://me:secret@host/db\"\n");
    assert_snapshot!(
        expect_output(1, &[1, 9], &shell.run(&["config"])),
        @r#"error: tidegate.toml:1:9: "mysql://host/db" has the scheme "mysql", which is no store; known are sqlite:PATH, postgres://... and memory:"#
    );
}

/// The limits of the file hold for what is submitted; an operator's word is stronger and stays.
#[test]
fn file_limits_apply_below_operator_override() {
    let shell = shell("[concurrency.limits]\npartner = 3\n\"group:mail\" = 0\n");
    assert_eq!(
        shell.run(&["submit", "noop", "--group", "partner", "--limit", "9"]),
        "exit 0\n1\n",
        "a submit is weaker"
    );
    let status = || shell.run_ok(&["concurrency", "status"]);
    assert_snapshot!(
        expect_numbers(&[0, 0, 0, 0, 1, 3, 0, 0, 0, 1], &status()),
        @"
        limit          capacity  held  waiting  refused         set by  version
        group:mail            0     0        0        0  configuration        1
        group:partner         3     0        0        0  configuration        1
        "
    );
    shell.run_ok(&["concurrency", "set", "partner", "--limit", "1"]);
    let worker = shell.run(&["worker", "--until-idle", "--max-concurrent", "noop=2"]);
    assert_snapshot!(
        expect_output(0, &[1, 0, 0, 0, 0, 0, 0, 1, 16], &normalize_output(&worker)),
        @r#"
        1 completed, 0 failed, 0 to be retried, 0 snoozed, 0 released, 0 cancelled, 0 lost
        note: the limit of "partner" stays 1, set by operator
        worker W works on sqlite:tidegate.db: 16 tasks at once, kinds noop, sleep
        idle: no unfinished task is left
        "#
    );
    let submit = shell.run(&["submit", "noop"]);
    assert_eq!(submit, "exit 0\n2\n", "a submit does not speak of it");
    let unset = shell.run(&["concurrency", "unset", "partner"]);
    assert_snapshot!(
        expect_output(0, &[3], &normalize_output(&unset)),
        @"group:partner is 3, set by configuration; `unset` again removes that"
    );
    shell.file("tidegate.toml", "[concurrency.limits]\npartner = 7\nnoop = 4\n");
    shell.run_ok(&["worker", "--until-idle", "--max-concurrent", "noop=2"]);
    // What the file no longer names stays; the file goes before a worker.
    assert_snapshot!(
        expect_numbers(&[0, 0, 0, 0, 1, 4, 0, 0, 0, 2, 7, 0, 0, 0, 4], &status()),
        @"
        limit          capacity  held  waiting  refused         set by  version
        group:mail            0     0        0        0  configuration        1
        group:noop            4     0        0        0  configuration        2
        group:partner         7     0        0        0  configuration        4
        "
    );
}

#[test]
fn file_limit_of_job_applies_from_its_first_task() {
    let shell = shell("[concurrency.limits]\n\"job:nightly\" = 2\n");
    shell.run_ok(&["submit", "noop", "--job", "nightly"]);
    let capacity = |told: &str| {
        let line = told.lines().find(|line| line.starts_with("job:nightly"));
        line.map(|line| line.split_whitespace().nth(1) == Some("2"))
    };
    let first = shell.run_ok(&["concurrency", "status"]);
    assert_eq!(capacity(&first), Some(true), "{first}");
    shell.run_ok(&["worker", "--until-idle"]);
    let then = shell.run_ok(&["concurrency", "status"]);
    assert!(then.contains("configuration") && capacity(&then) == Some(true), "{then}");
}

#[test]
fn run_uses_configured_limits() {
    let limits = "[concurrency.limits]\nsleep = 2\nnoop = 3\n\"job:night\" = 4\n";
    let shell = shell(format!("{limits}[run]\nconcurrency = 3\n"));
    let file = "[[limit]]\ngroup = \"noop\"\ncapacity = 9\n[[job]]\nname = \"night\"\n\
                [[task]]\nkind = \"sleep\"\ncount = 6\njob = \"night\"\npayload = { ms = 5 }\n";
    shell.file("a.toml", file);
    let summary = shell.run_ok(&["run", "a.toml"]);
    assert!(summary.contains("violations: 0 in "), "{summary}");
    let status = shell.run_ok(&["concurrency", "status"]);
    for limit in ["group:sleep 2", "group:noop 9", "job:night 4"] {
        let is_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[..2].join(" ") == limit && words[5] == "configuration"
        };
        assert!(status.lines().any(is_it), "{limit}: {status}");
    }
}

/// What is set for the machine would falsify what is measured: here it would never end.
#[test]
fn bench_ignores_configuration() {
    let shell = shell("store = \"never.db\"\n[concurrency.limits]\nnoop = 0\nsleep = 0\n");
    let size = ["--tasks", "50", "--processes", "1", "--permits", "20", "--json"];
    let mut command = shell.command(&[&["bench", "limits"][..], &size].concat());
    let output = command.env("TIDEGATE_CONCURRENCY_LIMITS", "noop=0").output().expect("run");
    let told = format_output(&output);
    assert!(told.contains("\"completed\":51,"), "{told}");
    assert!(!shell.path("never.db").exists(), "the store of the file was taken");
}

/// The lease of a worker is that of the file where no flag says another.
#[test]
fn worker_uses_lease_of_the_file() {
    let shell = shell("[concurrency]\ndefault_lease_duration_secs = 7200\n");
    shell.run_ok(&["submit", "sleep", "--payload", "{\"ms\":600000}", "--limit", "1"]);
    let mut worker = shell.command(&["worker"]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let status = wait::until_some("the task is on a worker", || {
        let status = shell.run(&["concurrency", "status", "sleep"]);
        status.contains("on worker").then_some(status)
    });
    // A signal that comes a second after the first stops the attempts.
    wait::until("the worker ends", || {
        let id = worker.id().to_string();
        let sent = Command::new("kill").args(["-INT", &id]).stderr(Stdio::null()).status();
        sent.expect("run kill");
        worker.try_wait().expect("look at the worker").is_some()
    });
    let lease = status.lines().find(|line| line.contains("slot 0: ")).expect("a slot");
    let (_, lease) = lease.split_once(", ").expect("words of the lease");
    assert_eq!(crate::common::numbers(lease), [1, 59], "an hour and 59 minutes: {lease}");
    assert_snapshot!(normalize_output(lease), @"lease ends in T unless renewed");
}

#[test]
fn invalid_variable_is_rejected_and_mistyped_one_is_noted() {
    let shell = Shell::new();
    let run = |name: &str, value: &str| {
        format_output(&shell.command(&["config"]).env(name, value).output().expect("run"))
    };
    let cases: [(&str, &str, &[i64]); 4] = [
        ("WORKER_CONCURRENCY", "0", &[0, 1, 100_000]),
        ("WORKER_CONCURRENCY", "many", &[]),
        ("CONCURRENCY_LIMITS", "mail", &[]),
        ("CONCURRENCY_LIMITS", "mail=1,group:mail=2", &[]),
    ];
    let mut errors = String::new();
    for (name, value, numbers) in cases {
        errors.push_str(&expect_output(1, numbers, &run(&format!("TIDEGATE_{name}"), value)));
    }
    assert_snapshot!(
        errors,
        @r#"
        error: read TIDEGATE_WORKER_CONCURRENCY: it is 0; it must be between 1 and 100000
        error: read TIDEGATE_WORKER_CONCURRENCY: it is no whole number: "many"
        error: read TIDEGATE_CONCURRENCY_LIMITS: the limit "mail" is not NAME=N
        error: read TIDEGATE_CONCURRENCY_LIMITS: the limit "group:mail" is there twice
        "#
    );
    let told = run("TIDEGATE_WORKER_KINDS", "noop,slep");
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&told)),
        @"error: read TIDEGATE_WORKER_KINDS: unknown kind `slep`; did you mean `sleep`? Known: `noop`, `sleep`, `http`, `exec`"
    );
    let told = expect_exit(0, &run("TIDEGATE_STOER", "x"));
    assert_snapshot!(
        told.lines().last().unwrap_or_default(),
        @"note: unknown variable TIDEGATE_STOER; did you mean TIDEGATE_STORE?"
    );
    let mut command = shell.command(&["config"]);
    command.env("TIDEGATE_LOG", std::ffi::OsStr::from_bytes(b"\xff"));
    let told = format_output(&command.output().expect("run"));
    assert_snapshot!(expect_exit(1, &told), @"error: TIDEGATE_LOG is not UTF-8");
    assert!(!run("TIDEGATE_PG_DIR", "x").contains("note"), "it is somebody else's");
}

/// Whatever is wrong is told with its place, and no store is made.
#[test]
fn invalid_configuration_file_is_rejected() {
    let deep = format!("store = {}\n", "[".repeat(100_000));
    let cases: Vec<(&[u8], &str, &[i64])> = vec![
        (b"stroe = \"a.db\"\n", "1:1", &[]),
        (b"[wroker]\n", "1:2", &[]),
        (b"zebra = 1\n", "1:1", &[]),
        (b"[worker]\n\nconcurency = 3\n", "3:1", &[]),
        (b"default_lease_duration_secs = 3\n", "1:1", &[]),
        (b"worker = 4\n", "1:10", &[]),
        (b"store = 4\n", "1:9", &[]),
        (b"worker.concurrency = 1.5\n", "1:22", &[]),
        (b"worker.concurrency = -1\n", "1:22", &[-1, 1, 100_000]),
        (b"worker.concurrency = 99999999999999999999\n", "1:22", &[]),
        (b"worker.queues = [\"a\", 3]\n", "1:23", &[]),
        (b"http.allow = [\" \"]\n", "1:15", &[]),
        (b"[concurrency.limits]\na = -1\n", "2:1", &[-1, 0, 2_147_483_647]),
        (b"[concurrency.limits]\n\"workflow:a\" = 1\n", "2:1", &[]),
        (b"[concurrency.limits]\na = \"1\"\n", "2:5", &[]),
        (b"[concurrency.limits]\na = 1\n\"group:a\" = 2\n", "3:1", &[]),
        (b"[concurrency.limits]\n\"\" = 1\n", "2:1", &[]),
        (b"store = \"a\"\nstore = \"b\"\n", "2:1", &[]),
        (b"store = \n", "1:9", &[]),
        (deep.as_bytes(), "1:89", &[]),
        (b"# caf\xe9\n", "1:6", &[]),
    ];
    let mut errors = String::new();
    for (text, place, numbers) in cases {
        let shell = shell(text);
        let told = shell.run(&["submit", "noop"]);
        let text = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
        let error = expect_exit(1, &told);
        let (start, words) = error.split_at("error: tidegate.toml:".len() + place.len());
        assert_eq!(start, format!("error: tidegate.toml:{place}"), "{text}");
        expect_numbers(numbers, words);
        errors.push_str(&error);
        assert!(!shell.path("tidegate.db").exists(), "a store was made: {text}");
    }
    assert_snapshot!(errors);
}

#[test]
fn unknown_kind_in_configuration_is_rejected() {
    let told = shell("worker.kinds = [\"noop\", \"slep\"]\n").run(&["config"]);
    assert_snapshot!(
        expect_output(1, &[1, 25], &normalize_output(&told)),
        @"error: tidegate.toml:1:25: unknown kind `slep`; did you mean `sleep`? Known: `noop`, `sleep`, `http`, `exec`"
    );
}

#[test]
fn configuration_file_above_size_limit_is_rejected() {
    assert_snapshot!(
        expect_output(1, &[1_048_576], &shell("#".repeat((1 << 20) + 1)).run(&["config"])),
        @"error: tidegate.toml has more than 1048576 bytes, the most that a configuration may have"
    );
    assert_snapshot!(
        expect_output(1, &[1_048_576], &Shell::new().run(&["config", "--config", "/dev/zero"])),
        @"error: /dev/zero has more than 1048576 bytes, the most that a configuration may have"
    );
}

#[test]
fn shell_completions_are_printed_even_with_invalid_file() {
    let shell = shell("this is no TOML");
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = shell.run_ok(&["completions", name]);
        assert!(script.contains("tidegate") && script.contains("until-idle"), "{name}");
    }
    let told = shell.run(&["completions", "tcsh"]);
    assert_snapshot!(
        expect_output(2, &[], &normalize_output(&told)),
        @"
        error: invalid value 'tcsh' for '<SHELL>'
        [possible values: bash, elvish, fish, powershell, zsh]

        tip: a similar value exists: 'zsh'

        For more information, try '--help'.
        "
    );
}

/// A shell takes the script without complaint.
#[test]
fn bash_accepts_its_completions() {
    let shell = Shell::new();
    shell.file("tidegate.bash", shell.run_ok(&["completions", "bash"]));
    let source = "set -eu; source ./tidegate.bash; complete -p tidegate";
    let mut command = Command::new("bash");
    let output = command.args(["-c", source]).current_dir(shell.path(".")).output();
    let told = format_output(&output.expect("run bash"));
    assert!(told.starts_with("exit 0\ncomplete "), "{told}");
}
