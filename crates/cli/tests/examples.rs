//! Every example of the reference of the commands runs, on a store where it has something to do.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Shell, shown, without_settings};
use tidegate_engine::time;

/// Examples that do not end by themselves or measure for long, and who runs them instead.
const ELSEWHERE: [(&str, &str); 4] = [
    ("tidegate run ", "process_run.rs, with smaller files"),
    ("tidegate top ", "process_top.rs"),
    ("tidegate bench ", "process_limits.rs, with fewer tasks, and the records"),
    ("tidegate test-server ", "guides.rs"),
];

/// No example takes longer to become ready than this.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// The examples, one block of the page after another.
fn examples() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    let page = std::fs::read_to_string(page).expect("read the page");
    let blocks = page.split("\n```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Pastes a command into a shell.
fn paste(shell: &Shell, commands: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["--norc", "-euo", "pipefail", "-c", commands])
        .current_dir(shell.path("."))
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("HOME", shell.path("."))
        .stdin(Stdio::null());
    without_settings(&mut command);
    shown(&command.output().expect("run bash"))
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
    let began = time::now();
    while shell.good(&["task", "list", "--state", "processing", "--json"]).lines().count() < 4 {
        assert!(time::now() - began < PATIENCE, "four tasks should run");
        std::thread::yield_now();
    }
    worker.kill().expect("kill");
    worker.wait().expect("wait");
    shell
}

/// Where a worker finds something to do and then nothing.
fn easy() -> Shell {
    prepare("seq 9 | tidegate submit noop --each-line --group partner --limit 10 --unique-key '{}'")
}

/// Where all is done.
fn done() -> Shell {
    let shell = easy();
    shell.good(&["worker", "--until-idle"]);
    shell
}

#[test]
fn every_example_runs() {
    let mut run = 0;
    for example in examples() {
        let is_elsewhere = |(command, _): &(&str, &str)| example.starts_with(command);
        if ELSEWHERE.iter().any(is_elsewhere) {
            continue;
        }
        // A worker waits for more work: here it ends when there is none.
        let lines = example.lines().map(|line| match line.contains("tidegate worker ") {
            true if line.contains(" &") => format!("{}\n", line.replace(" &", " --until-idle;")),
            true => format!("{line} --until-idle\n"),
            false => format!("{line}\n"),
        });
        let shell = || match example.as_str() {
            example if example.contains("tidegate worker ") => easy(),
            example if example.contains("task wait") => done(),
            _ => busy(),
        };
        let is_session = example.contains("tidegate verify");
        let lines: Vec<String> = lines.collect();
        let parts = if is_session { vec![lines.concat()] } else { lines };
        for part in parts {
            let told = paste(&shell(), &part);
            assert!(told.starts_with("exit 0\n"), "{part}{told}");
            run += 1;
        }
    }
    assert!(run > 30, "{run} examples ran");
}
