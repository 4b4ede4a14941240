//! Every example of the reference of the commands runs as it stands, on a store where it has
//! something to do. What does not end by itself is ended as a person ends it.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Shell, clear_environment, format_output};
use crate::pty::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use tidegate_measure::postgres_server::{BIN_VARIABLE, Programs};
use tidegate_testkit::postgres::Server;
use tidegate_testkit::tier::Cases;
use tidegate_testkit::wait;

/// The port that the page names; each run takes a free one.
const PORT: &str = "8642";

/// Tasks of the store of [`easy`].
const TASKS: usize = 9;

/// The examples, one block of the page after another.
fn examples() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    let page = std::fs::read_to_string(page).expect("read the page");
    let blocks = page.split("\n```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// A shell with these lines, not yet started.
fn bash(shell: &Shell, commands: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["--norc", "-euo", "pipefail", "-c", commands])
        .current_dir(shell.path("."))
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("HOME", shell.path("."))
        .stdin(Stdio::null());
    clear_environment(&mut command);
    // Some examples start a server.
    let programs = Programs::find(None).expect("find a PostgreSQL");
    command.env(BIN_VARIABLE, programs.bin());
    command
}

/// Pastes commands that end by themselves.
fn paste(shell: &Shell, commands: &str) -> String {
    format_output(&bash(shell, commands).output().expect("run bash"))
}

/// Pastes a command that lasts, and presses Ctrl-C when it has done what is asked.
fn paste_until(shell: &Shell, command: &str, is_done: impl Fn() -> bool) -> String {
    let mut bash = bash(shell, &format!("exec {command}"));
    let child = bash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start bash");
    wait::until(&format!("{command} does its work"), is_done);
    kill_process(Pid::from_child(&child), Signal::INT).expect("press Ctrl-C");
    format_output(&child.wait_with_output().expect("wait for bash"))
}

/// Looks at the screen of a command, and leaves it.
fn look(shell: &Shell, command: &str, text: &str) -> String {
    let mut terminal = Terminal::start(&bash(shell, &format!("exec {command}")), 100, 30);
    terminal.wait_for_text(&[text]);
    terminal.type_in("q");
    format!("exit {}\n", terminal.end().code().expect("a code"))
}

#[track_caller]
fn prepare(commands: &str) -> Shell {
    let shell = Shell::new();
    let told = paste(&shell, commands);
    assert!(told.starts_with("exit 0\n"), "{told}");
    shell
}

/// Where much is under way: four slots of `partner` are held by a worker that is no more.
fn busy() -> Shell {
    let shell = prepare(
        r#"
        tidegate concurrency set partner --limit 4
        seq 6 | tidegate submit sleep --each-line --group partner --queue slow \
            --unique-key 'call-{}' --payload '{"ms": 600000}'
        seq 3 | tidegate submit noop --each-line --unique-key 'late-{}' --delay 1h
        tidegate submit noop --job nightly --queue mail
        tidegate submit noop --workflow order-1001
        tidegate migrate --store sqlite:tasks.db
        mkdir -p .local/share/bash-completion/completions .zfunc .config/fish/completions
        "#,
    );
    let mut worker = shell.command(&["worker", "--queues", "slow", "--lease", "1h"]);
    let mut worker = worker.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("start");
    let running = || shell.run_ok(&["task", "list", "--state", "processing", "--json"]);
    wait::until("four tasks run", || running().lines().count() == 4);
    worker.kill().expect("kill");
    worker.wait().expect("wait");
    shell
}

/// Where a worker finds something to do and then nothing.
fn easy() -> Shell {
    prepare(&format!(
        "seq {TASKS} | tidegate submit noop --each-line --group partner --limit 10 --unique-key '{{}}'"
    ))
}

/// Where all is done.
fn done() -> Shell {
    let shell = easy();
    shell.run_ok(&["worker", "--until-idle"]);
    shell
}

/// In the folder of the project, with nothing in the store.
fn clone() -> Shell {
    let shell = Shell::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::os::unix::fs::symlink(examples, shell.path("examples")).expect("link the examples");
    shell
}

fn is_over(shell: &Shell) -> bool {
    shell.run_ok(&["task", "list", "--state", "completed", "--json"]).lines().count() == TASKS
}

/// Runs one line of an example as it stands.
fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["tidegate", "top", ..] => look(&busy(), line, "group:partner"),
        ["tidegate", "test-server", ..] => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("find a free port");
            let address = listener.local_addr().expect("an address");
            drop(listener);
            assert!(line.contains(PORT), "{line}");
            let line = line.replace(PORT, &address.port().to_string());
            paste_until(&Shell::new(), &line, || TcpStream::connect(address).is_ok())
        }
        ["tidegate", "worker", ..] if !line.contains("--until-idle") => {
            let shell = easy();
            paste_until(&shell, line, || is_over(&shell))
        }
        ["tidegate", "bench", "explain", ..] => {
            let server = Server::shared().url("postgres");
            paste(&clone(), &format!("export TIDEGATE_STORE='{server}'\n{line}"))
        }
        ["tidegate", "run" | "bench", ..] => paste(&clone(), line),
        ["tidegate", "task", "wait", ..] => paste(&done(), line),
        ["tidegate", "worker", ..] => paste(&easy(), line),
        _ => paste(&busy(), line),
    }
}

#[track_caller]
fn all_run(is_asked: impl Fn(&str) -> bool) -> usize {
    let mut ran = 0;
    for example in examples().into_iter().filter(|example| is_asked(example)) {
        // What was written by a line of an example is read by the next only in one session.
        let is_session = example.contains("tidegate verify");
        let lines = if is_session { vec![&*example] } else { example.lines().collect() };
        for line in lines {
            let told = run(line);
            assert!(told.starts_with("exit 0\n"), "{line}\n{told}");
            ran += 1;
        }
    }
    ran
}

fn is_measured(example: &str) -> bool {
    ["tidegate bench ", "tidegate run "].iter().any(|command| example.starts_with(command))
}

#[test]
fn command_reference_examples_run() {
    let ran = all_run(|example| !is_measured(example));
    assert!(ran > 30, "{ran} examples ran");
}

/// The small tier runs the first command of the README; the scenarios take minutes. Short runs of them are in
/// `bench.rs`.
#[test]
fn command_reference_measurements_run() {
    let (has_scenarios, number) = Cases { small: (false, 1), full: (true, 21) }.of_this_run();
    let ran = all_run(|example| {
        is_measured(example) && (has_scenarios || example.starts_with("tidegate run"))
    });
    assert_eq!(ran, number, "the first command of the README and the scenarios");
}
