//! `exec` through the real binary: nothing starts that is not allowed, nothing is left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Shell, expect_exit, expect_numbers, expect_output, normalize_output};
use insta::assert_snapshot;
use serde_json::{Value, json};
use tidegate_core::{CancelOutcome, ReleaseOutcome, ReleaseSlot, TaskId};
use tidegate_testkit::wait;

/// Submits one attempt of an `exec` task; its id, or why it is refused at the door.
fn submit(shell: &Shell, payload: &Value, more: &[&str]) -> Result<String, String> {
    shell.file("payload.json", payload.to_string());
    let words = ["submit", "exec", "--max-attempts", "1", "--payload-file", "payload.json"];
    let told = shell.run(&[&words[..], more].concat());
    match told.strip_prefix("exit 0\n") {
        Some(id) => Ok(id.trim().to_owned()),
        None => Err(told),
    }
}

fn task(shell: &Shell, id: &str) -> Value {
    serde_json::from_str(&shell.run_ok(&["task", "show", id, "--json"])).expect("a task")
}

/// Does one task; gives it as it ended.
fn done(allow: &str, payload: &Value) -> Value {
    let shell = Shell::new();
    let id = submit(&shell, payload, &[]).expect("a good payload");
    shell.run_ok(&["worker", "--until-idle", "--exec-allow", allow]);
    task(&shell, &id)
}

/// Each row: its name, the words, and what must not be. `{canary}` is the file that nobody may make;
/// `{folder}` is the folder of the worker, with `evil`, which makes it, and `echo`, a link to it.
/// The worker allows `echo` and /usr/bin/printf.
const REFUSED: &[(&str, &[&str])] = &[
    ("another command", &["touch", "{canary}"]),
    ("its path", &["/usr/bin/touch", "{canary}"]),
    ("a shell", &["sh", "-c", "touch {canary}"]),
    ("the path of a shell", &["/bin/sh", "-c", "touch {canary}"]),
    ("all in one word", &["echo hi; touch {canary}"]),
    ("a semicolon", &["echo; touch {canary}", "x"]),
    ("a pipe", &["echo|touch {canary}"]),
    ("an ampersand", &["echo & touch {canary}"]),
    ("a substitution", &["$(touch {canary})"]),
    ("backticks", &["`touch {canary}`"]),
    ("a line end", &["echo\ntouch {canary}"]),
    ("a line end behind it", &["echo\n"]),
    ("a space behind it", &["echo "]),
    ("a space before it", &[" echo"]),
    ("a tab", &["echo\ttouch"]),
    ("a zero byte", &["echo\0/../touch", "{canary}"]),
    ("a zero byte in a word", &["echo", "a\0b"]),
    ("capitals", &["ECHO", "hi"]),
    ("a lookalike", &["\u{435}cho", "hi"]),
    ("full width", &["ｅｃｈｏ", "hi"]),
    ("an invisible letter", &["echo\u{200b}", "hi"]),
    ("the current folder", &["./echo"]),
    ("a link with its name", &["{folder}/echo"]),
    ("the file itself", &["{folder}/evil"]),
    ("up and down", &["/usr/bin/../bin/touch", "{canary}"]),
    ("up and down to itself", &["/usr/bin/../bin/printf", "hi"]),
    ("two slashes", &["//usr/bin/printf", "hi"]),
    ("a slash behind it", &["/usr/bin/printf/", "hi"]),
    ("a dot", &["/usr/bin/./printf", "hi"]),
    ("only the name of a path", &["printf", "hi"]),
    ("relative", &["bin/echo", "hi"]),
    ("a beginning", &["ech", "hi"]),
    ("a longer name", &["echoo", "hi"]),
    ("a pattern", &["ech*", "hi"]),
    ("the worker itself", &["/proc/self/exe", "exec-supervisor"]),
    ("the root of a process", &["/proc/self/root/bin/sh", "-c", "touch {canary}"]),
    ("a descriptor", &["/proc/self/fd/0"]),
    ("a loader", &["/lib64/ld-linux-x86-64.so.2", "/usr/bin/touch", "{canary}"]),
    ("env", &["env", "touch", "{canary}"]),
    ("a variable before it", &["PATH={folder}", "echo"]),
    ("a variable", &["$SHELL", "-c", "touch {canary}"]),
    ("home", &["~/echo"]),
    ("a dash", &["-c", "touch {canary}"]),
    ("an option of the guard", &["--", "touch", "{canary}"]),
    ("nothing", &[""]),
    ("no word", &[]),
];

#[test]
fn exec_starts_only_allowed_commands() {
    let shell = Shell::new();
    let canary = shell.path("canary");
    let folder = shell.path("").to_string_lossy().trim_end_matches('/').to_owned();
    make_evil(&shell, &canary);
    let filled = |word: &&str| {
        word.replace("{canary}", &canary.to_string_lossy()).replace("{folder}", &folder)
    };
    let (mut submitted, mut errors) = (Vec::new(), String::new());
    for (name, argv) in REFUSED {
        let argv: Vec<String> = argv.iter().map(filled).collect();
        match submit(&shell, &json!({ "argv": argv }), &[]) {
            Ok(id) => submitted.push((name, id)),
            Err(why) => {
                assert!(why.contains("`argv`"), "{name}: {why}");
                errors.push_str(&format!("{name}: {}", expect_exit(1, &why)));
            }
        }
    }
    // The worker runs in the folder of the evil ones, and would find them by the first `.`.
    let mut worker = shell.command(&["worker", "--until-idle"]);
    worker.args(["--exec-allow", "echo,/usr/bin/printf"]).env("PATH", ".:/usr/bin:/bin");
    assert!(worker.output().expect("run").status.success());
    for (name, id) in submitted {
        let task = task(&shell, &id);
        assert_eq!(task["state"], "failed", "{name}: {task}");
        let error = task["error"].as_str().unwrap_or_default();
        assert!(error.contains("`--exec-allow`"), "{name}: {task}");
        errors.push_str(&format!("{name}: {error}\n"));
    }
    let errors =
        errors.replace(&*canary.to_string_lossy(), "{canary}").replace(&folder, "{folder}");
    assert_snapshot!(errors);
    assert!(!canary.exists(), "somebody started something");
}

/// A program that makes the canary, and a link to it that is named like an allowed command.
fn make_evil(shell: &Shell, canary: &Path) {
    shell.file("evil", format!("#!/bin/sh\ntouch {}\n", canary.display()));
    let status = Command::new("chmod").args(["+x", "evil"]).current_dir(shell.path("")).status();
    assert!(status.expect("chmod").success());
    symlink(shell.path("evil"), shell.path("echo")).expect("link");
}

#[test]
fn exec_payload_keys_that_change_environment_are_rejected() {
    let shell = Shell::new();
    let mut errors = String::new();
    for key in ["env", "cwd", "shell", "path", "user", "LD_PRELOAD"] {
        let refused = submit(&shell, &json!({ "argv": ["echo"], key: "x" }), &[]).unwrap_err();
        assert!(refused.contains(&format!("`{key}`")), "{refused}");
        errors.push_str(&expect_exit(1, &refused));
    }
    assert_snapshot!(errors);
}

#[test]
fn exec_arguments_above_bounds_are_rejected() {
    let shell = Shell::new();
    let (many, mut errors) = (vec!["x"; 1001], String::new());
    for argv in [json!(many), json!(["echo", "x".repeat(128 << 10)])] {
        let refused = submit(&shell, &json!({ "argv": argv }), &[]).unwrap_err();
        errors.push_str(&expect_exit(1, &refused));
    }
    assert_snapshot!(
        expect_numbers(&[1001, 2002, 1000, 131_072, 2, 131_078, 1000, 131_072], &errors),
        @"
        error: `argv` has 1001 words of 2002 bytes; at most 1000 of 131072
        error: `argv` has 2 words of 131078 bytes; at most 1000 of 131072
        "
    );
}

#[test]
fn exec_arguments_are_passed_unchanged() {
    let shell = Shell::new();
    let canary = shell.path("canary").to_string_lossy().into_owned();
    let tricks = [
        format!("; touch {canary}"),
        format!("$(touch {canary})"),
        format!("`touch {canary}`"),
        format!("| touch {canary}"),
        format!("&& touch {canary}"),
        format!("\ntouch {canary}\n"),
        format!("> {canary}"),
        format!("'; touch {canary} #"),
        format!("\"; touch {canary} #"),
        "-e".to_owned(),
        "--".to_owned(),
        "*".to_owned(),
        "~".to_owned(),
        "$HOME".to_owned(),
        "%s%n\\x41".to_owned(),
        String::new(),
        "grüße \u{202e}".to_owned(),
    ];
    let mut argv = vec!["/usr/bin/printf".to_owned(), "<%s>".to_owned()];
    argv.extend(tricks.clone());
    let task = done("/usr/bin/printf", &json!({ "argv": argv }));
    let expected: String = tricks.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(task["result"]["stdout"], expected, "{task}");
    assert!(!Path::new(&canary).exists());
}

#[test]
fn exec_symlink_changed_after_start_has_no_effect() {
    let shell = Shell::new();
    let canary = shell.path("canary");
    make_evil(&shell, &canary);
    symlink("/usr/bin/printf", shell.path("tool")).expect("link");
    let tool = shell.path("tool").to_string_lossy().into_owned();
    let mut worker = shell.command(&["worker", "--exec-allow", &tool]);
    let mut worker = worker.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start");
    until_it_works(&mut worker);
    fs::remove_file(&tool).expect("remove the link");
    symlink(shell.path("evil"), &tool).expect("link");
    let id = submit(&shell, &json!({ "argv": [tool, "hi"] }), &[]).expect("taken");
    let task = until(&shell, &id, |task| task["finished_at"].is_number());
    end(worker);
    assert_eq!(task["result"]["stdout"], "hi", "{task}");
    assert!(!canary.exists());
}

#[test]
fn exec_environment_is_minimal_and_directory_is_removed() {
    let shell = Shell::new();
    let script = "env | cut -d= -f1 | sort | tr '\\n' ' '; pwd; ls -A; ls -l /proc/self/fd";
    let id = submit(&shell, &json!({ "argv": ["sh", "-c", script] }), &[]).expect("taken");
    let mut worker = shell.command(&["worker", "--until-idle", "--exec-allow", "sh"]);
    worker.env("SECRET", "x").env("LD_LIBRARY_PATH", "/nowhere").env("TMPDIR", shell.path(""));
    assert!(worker.output().expect("run").status.success());
    let task = task(&shell, &id);
    let stdout = task["result"]["stdout"].as_str().expect("an output");
    let lines: Vec<&str> = stdout.lines().collect();
    let (variables, folder) = lines[0].split_once(" /").expect("both");
    assert_eq!(
        variables,
        "HOME LANG PATH PWD TIDEGATE_ATTEMPT TIDEGATE_TASK TIDEGATE_TOKEN TMPDIR"
    );
    assert!(folder.contains("tidegate-exec-"), "{stdout}");
    assert!(!Path::new("/").join(folder).exists(), "{stdout}");
    assert!(lines[1].starts_with("total "), "an empty folder: {stdout}");
    // Whoever started the tests may have left pipes open. What a worker opens is none of those.
    let is_own =
        |line: &str| ["tidegate", "socket:", "anon_inode:"].iter().any(|w| line.contains(w));
    assert!(!lines[2..].iter().any(|line| is_own(line)), "open files of the worker: {stdout}");
}

#[test]
fn exec_result_has_exit_code_and_output() {
    let sh = |script: &str| done("sh", &json!({ "argv": ["sh", "-c", script], "stdin": "in" }));
    assert_eq!(sh("cat")["result"], json!({ "exit": 0, "stdout": "in", "stderr": "" }));
    assert_snapshot!(
        expect_numbers(&[3], sh("echo no >&2; exit 3")["error"].as_str().unwrap_or_default()),
        @"sh ended with 3: no"
    );
    assert_snapshot!(
        expect_numbers(&[15], sh("kill -TERM $$")["error"].as_str().unwrap_or_default()),
        @"sh was killed by signal 15"
    );
    let long = sh("head -c 100000 /dev/zero | tr '\\0' x; printf '\\377' >&2")["result"].take();
    assert_eq!(long["stdout"].as_str().map(str::len), Some(64 << 10));
    assert_eq!((&long["stdout_truncated"], &long["stderr"]), (&json!(true), &json!("\u{fffd}")));
    let loud = sh("head -c 9000 /dev/zero | tr '\\0' x >&2; echo last >&2; exit 1");
    let error = loud["error"].as_str().expect("an error");
    assert!(error.ends_with("xlast") && error.len() < 600, "{error}");
}

// Nothing is left behind

/// A number of seconds that no other process sleeps for.
fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}{:03}", 100_000 + std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The processes that have the marker as a word: their numbers and commands.
fn marked(marker: &str) -> Vec<(String, String)> {
    let processes = fs::read_dir("/proc").expect("read /proc").flatten();
    let command = |entry: fs::DirEntry| {
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let is_marked = command.split(|byte| *byte == 0).any(|word| word == marker.as_bytes());
        let text = String::from_utf8_lossy(&command).replace('\0', " ");
        is_marked.then(|| (entry.file_name().to_string_lossy().into_owned(), text))
    };
    processes.filter_map(command).collect()
}

fn pids(marker: &str) -> Vec<String> {
    marked(marker).into_iter().map(|(pid, _)| pid).collect()
}

fn alive(marker: &str) -> Vec<String> {
    marked(marker).into_iter().map(|(_, command)| command).collect()
}

/// A family: children in the group, one in a session of its own, a daemon without a parent, and one
/// that does not listen to polite signals.
fn family(marker: &str) -> Value {
    let script = format!(
        "sleep {marker} & setsid sleep {marker} & (setsid sh -c 'sleep {marker} & exit' &) ; \
         sh -c 'trap \"\" TERM INT HUP; sleep {marker}; :' {marker} & sleep {marker}"
    );
    json!({ "argv": ["sh", "-c", script] })
}

/// sleep, setsid sleep, the daemon's sleep, the deaf sh and its sleep, and the last one.
const FAMILY: usize = 6;

fn until(shell: &Shell, id: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
    wait::until_some("the task gets there", || Some(task(shell, id)).filter(&is_reached))
}

/// Waits for a number of marked processes, with bounded patience.
#[track_caller]
fn wait_for(marker: &str, number: usize) {
    let (never, seen) = std::sync::mpsc::channel::<()>();
    for _ in 0..1500 {
        if alive(marker).len() == number {
            return;
        }
        let _ = seen.recv_timeout(Duration::from_millis(10));
    }
    drop(never);
    panic!("not {number} but {:?}", alive(marker));
}

fn until_it_works(worker: &mut Child) {
    let mut line = String::new();
    let said = worker.stderr.as_mut().expect("a pipe");
    BufReader::new(said).read_line(&mut line).expect("read");
    assert!(line.contains(" works on "), "{line}");
}

fn end(mut worker: Child) {
    worker.kill().expect("kill the worker");
    worker.wait().expect("wait");
}

/// A worker that runs a family, which is complete.
fn at_work(more: &[&str], worker: &[&str]) -> (Shell, String, Child, String) {
    let (shell, marker) = (Shell::new(), marker());
    let id = submit(&shell, &family(&marker), more).expect("taken");
    let words = [&["worker", "--exec-allow", "sh"], worker].concat();
    let mut worker = shell.command(&words);
    let worker = worker.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start");
    wait_for(&marker, FAMILY);
    (shell, id, worker, marker)
}

fn signal(worker: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &worker.id().to_string()]).status();
    assert!(sent.expect("send a signal").success());
}

#[test]
fn exec_processes_end_when_worker_is_killed() {
    let (_shell, _, worker, marker) = at_work(&[], &[]);
    end(worker);
    wait_for(&marker, 0);
}

/// When the end of the attempt is told, everything is gone already.
#[test]
fn exec_processes_end_at_timeout() {
    let (shell, id, worker, marker) = at_work(&["--timeout", "5s"], &[]);
    let task = until(&shell, &id, |task| task["finished_at"].is_number());
    assert_eq!(alive(&marker), Vec::<String>::new());
    assert_snapshot!(
        expect_numbers(&[5], task["error"].as_str().unwrap_or_default()),
        @"timed out after 5s"
    );
    end(worker);
}

#[test]
fn exec_processes_end_when_worker_stops() {
    let (shell, id, mut worker, marker) = at_work(&[], &[]);
    signal(&worker, "-TERM");
    assert_eq!(alive(&marker).len(), FAMILY, "the first signal lets it finish");
    // Two signals at once are one.
    wait::until("the worker ends", || {
        signal(&worker, "-TERM");
        worker.try_wait().expect("look").is_some()
    });
    let mut told = String::new();
    worker.stdout.take().expect("a pipe").read_to_string(&mut told).expect("read");
    assert!(told.contains("1 released"), "{told}");
    assert_eq!(alive(&marker), Vec::<String>::new());
    assert_eq!(task(&shell, &id)["state"], "pending");
}

#[tokio::test]
async fn exec_processes_end_when_task_is_cancelled() {
    let (shell, id, worker, marker) = at_work(&[], &["--lease", "2s"]);
    let told = shell.store().await.cancel(vec![TaskId(id.parse().unwrap())]).await;
    assert_eq!(told.expect("cancel"), [CancelOutcome::Requested]);
    let task = until(&shell, &id, |task| task["finished_at"].is_number());
    assert_eq!(alive(&marker), Vec::<String>::new());
    assert_eq!(task["state"], "cancelled");
    end(worker);
}

/// The lease is taken away behind the worker's back.
#[tokio::test]
async fn exec_processes_end_when_lease_is_lost() {
    let (shell, _, worker, marker) =
        at_work(&["--limit", "1"], &["--lease", "3s", "--max-concurrent", "exec=1"]);
    let slot = ReleaseSlot { limit: "group:exec".to_owned(), slot: 0 };
    let told = shell.store().await.release_slot(slot).await.expect("release");
    assert!(matches!(told, ReleaseOutcome::Released(_)), "{told:?}");
    wait_for(&marker, 0);
    end(worker);
}

/// Whoever runs from the guard by making a successor and ending, over and over, is caught. It would
/// end by itself, after longer than the test waits.
#[test]
fn exec_daemon_that_keeps_forking_is_ended() {
    let (shell, marker) = (Shell::new(), marker());
    let again =
        r#"setsid sh -c "eval \"\$next\"" x MARKER & sleep 0.02;"#.replace("MARKER", &marker);
    let next = format!("n=$((n+1)); [ $n -lt 9000 ] && {{ {again} }}");
    let script = format!("cd /; export n=0 next='{next}'; eval \"$next\"; exec sleep {marker}");
    submit(&shell, &json!({ "argv": ["sh", "-c", script] }), &[]).expect("taken");
    let mut worker = shell.command(&["worker", "--exec-allow", "sh"]);
    let worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    let mut seen = BTreeSet::new();
    while seen.len() < 20 {
        seen.extend(pids(&marker));
    }
    end(worker);
    wait_for(&marker, 0);
    for _ in 0..50 {
        assert_eq!(alive(&marker), Vec::<String>::new());
    }
}

/// A frozen worker can end nothing: the guard does it before somebody else may have the task.
#[test]
fn exec_processes_end_when_lease_expires() {
    let (shell, id, worker, marker) = at_work(&[], &["--lease", "2s"]);
    signal(&worker, "-STOP");
    wait_for(&marker, 0);
    assert_eq!(task(&shell, &id)["state"], "processing", "nobody has looked yet");
    signal(&worker, "-CONT");
    end(worker);
}

#[test]
fn exec_command_outlives_lease_that_is_renewed() {
    let shell = Shell::new();
    let id = submit(&shell, &json!({ "argv": ["sleep", "3"] }), &[]).expect("taken");
    shell.run_ok(&["worker", "--until-idle", "--exec-allow", "sleep", "--lease", "1s"]);
    let task = task(&shell, &id);
    assert_eq!(task["result"]["exit"], 0, "{task}");
}

#[test]
fn exec_background_processes_end_with_the_command() {
    let marker = marker();
    let script = format!("sleep {marker} & setsid sleep {marker} & echo done");
    let task = done("sh", &json!({ "argv": ["sh", "-c", script] }));
    assert_eq!(alive(&marker), Vec::<String>::new());
    assert_eq!(task["result"]["stdout"], "done\n", "{task}");
}

/// A guard that is killed itself cannot end what it guards; the worker ends its group.
#[test]
fn exec_process_group_ends_when_guard_is_killed() {
    let (shell, marker) = (Shell::new(), marker());
    let script = format!("sleep {marker} & sleep {marker}");
    let id = submit(&shell, &json!({ "argv": ["sh", "-c", script] }), &[]).expect("taken");
    let mut worker = shell.command(&["worker", "--until-idle", "--exec-allow", "sh"]);
    // Nobody is left to remove the folder of the command.
    worker.env("TMPDIR", shell.path(""));
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    wait_for(&marker, 2);
    let tasks = fs::read_dir(format!("/proc/{}/task", worker.id())).expect("its threads");
    let guards: String = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")).expect("its children"))
        .collect();
    assert_eq!(guards.split_whitespace().count(), 1, "{guards}");
    let killed = Command::new("kill").args(["-9", guards.trim()]).status().expect("kill");
    assert!(killed.success());
    wait_for(&marker, 0);
    assert!(worker.wait().expect("wait").success());
    assert_snapshot!(
        task(&shell, &id)["error"].as_str().unwrap_or_default(),
        @"the guard of the command was killed"
    );
}

#[test]
fn exec_without_allow_flag_is_not_served() {
    let shell = Shell::new();
    let told = shell.run(&["worker", "--kinds", "exec", "--until-idle"]);
    assert_snapshot!(
        expect_exit(1, &told),
        @"error: kind `exec` does nothing that is not allowed; add `--exec-allow COMMAND`"
    );
    let told = shell.run(&["worker", "--exec-allow", "no-such-command"]);
    assert_snapshot!(
        expect_output(1, &[], &normalize_output(&told)),
        @r#"error: read --exec-allow "no-such-command": there is no command "no-such-command" in the folders of PATH"#
    );
    shell.file("a.toml", "[[task]]\nkind = \"exec\"\npayload = { argv = [\"echo\", \"{n}\"] }\n");
    let told = shell.run(&["run", "a.toml"]);
    assert_snapshot!(
        expect_exit(1, &normalize_output(&told)),
        @"error: the file has tasks of kind `exec`, which does nothing that is not allowed; add `--exec-allow COMMAND`"
    );
    shell.run_ok(&["run", "a.toml", "--exec-allow", "echo"]);
}
