//! The guide to embedding is followed by the letter: a project beside the clone, its two files,
//! `cargo run`, Ctrl-C.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the clone")
}

/// The blocks of the guide in a language, in order.
fn blocks(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/guides/embed.md")).expect("the guide");
    let fence = format!("\n```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// A shell in a folder. What it builds is put beside what was built for this test.
fn bash(folder: &Path, commands: &str) -> Command {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target");
    let mut command = Command::new("bash");
    command.args(["--norc", "-euo", "pipefail", "-c", commands]).current_dir(folder);
    command.env("CARGO_TARGET_DIR", target).env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.stdin(Stdio::null());
    command
}

#[track_caller]
fn paste(folder: &Path, commands: &str) -> String {
    let output = bash(folder, commands).output().expect("run bash");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{commands}{}", text(&output.stderr));
    text(&output.stdout)
}

/// Makes the project as the guide says, with the versions that were tried: no registry is asked
/// for newer ones.
fn project(folder: &Path, commands: &str) -> PathBuf {
    std::os::unix::fs::symlink(root(), folder.join("tidegate")).expect("link the clone");
    let shop = PathBuf::from(paste(folder, &format!("{commands}pwd")).trim());
    std::fs::write(shop.join("Cargo.toml"), &blocks("toml")[0]).expect("write the manifest");
    std::fs::write(shop.join("src/main.rs"), &blocks("rust,no_run")[0]).expect("write the program");
    std::fs::copy(root().join("Cargo.lock"), shop.join("Cargo.lock")).expect("copy the lock");
    shop
}

#[test]
fn embedding_guide_project_runs() {
    let commands = blocks("sh");
    assert_eq!(commands.len(), 2, "the project is made, and every way is shown");
    let folder = tempfile::tempdir().expect("make a folder");
    let shop = project(folder.path(), &commands[0]);

    let mut cargo = bash(&shop, "exec cargo run");
    std::os::unix::process::CommandExt::process_group(&mut cargo, 0);
    let mut child = cargo.stdout(Stdio::piped()).spawn().expect("start cargo");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut printed = Vec::new();
    while printed.len() < 6 {
        printed.push(lines.next().expect("six lines").expect("UTF-8"));
    }
    printed.sort();
    let orders = (1..=3).map(|order| format!("order {order} in attempt 2"));
    let tasks = (1..=3).map(|task| format!("submitted task {task}"));
    assert_eq!(printed, orders.chain(tasks).collect::<Vec<_>>());
    // Ctrl-C reaches cargo and the program.
    kill_process_group(Pid::from_child(&child), Signal::INT).expect("press Ctrl-C");
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    child.wait().expect("wait for cargo");
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert!(rest[0].contains("completed: 3"), "{rest:?}");

    let every_way = paste(&shop, &commands[1]);
    assert!(every_way.contains("Hello"), "{every_way}");
}
