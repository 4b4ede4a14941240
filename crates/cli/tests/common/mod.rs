//! Runs the real binary in a folder of its own.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use tidegate_core::Store;
use tidegate_store::OpenOptions;

/// A folder, and the binary to run in it.
#[derive(Debug)]
pub(crate) struct Shell {
    folder: tempfile::TempDir,
}

impl Shell {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("make a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file into the folder.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("write a file");
    }

    /// The command, not yet started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        without_settings(&mut command);
        command
    }

    /// The store, as another process opens it.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub(crate) async fn store(&self) -> Arc<dyn Store> {
        let url = format!("sqlite:{}", self.path("tidegate.db").display());
        tidegate_store::open(&url, OpenOptions::default()).await.expect("open the store").store
    }

    /// Runs a command; gives its exit code, stdout and stderr.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        shown(&self.command(arguments).output().expect("run the binary"))
    }

    /// Runs a command that must succeed; gives its stdout.
    #[allow(dead_code, reason = "not every test binary needs it")]
    #[track_caller]
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("run the binary");
        assert!(output.status.success(), "{arguments:?}: {}", shown(&output));
        String::from_utf8(output.stdout).expect("stdout is UTF-8")
    }
}

/// Takes away what the environment sets for the binary.
pub(crate) fn without_settings(command: &mut Command) {
    const BARE: [&str; 5] = [
        "CLAIM_BATCH_SIZE",
        "MAX_CONCURRENT_TASKS",
        "POLL_INTERVAL_MS",
        "WORKERS",
        "WORKER_CONCURRENCY",
    ];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("TIDEGATE_") || text.starts_with("PG") || BARE.contains(&&*text) {
            command.env_remove(&name);
        }
    }
}

/// An exit code and both streams as one text.
pub(crate) fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string());
    format!("exit {code}\n{}{}", text(&output.stdout), text(&output.stderr))
}

/// Output without what differs from run to run: durations, dates, worker ids, widths.
#[allow(dead_code, reason = "not every test binary needs it")]
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut words: Vec<String> = Vec::new();
        for word in line.split_whitespace() {
            let bare = word.trim_end_matches([',', ';', ')']);
            let end = &word[bare.len()..];
            let bare = bare.trim_start_matches('(');
            let begin = &word[..word.len() - bare.len() - end.len()];
            let last = words.last().map(String::as_str);
            let is_unit = ["ms", "s", "min", "h", "d"].contains(&bare);
            if is_unit && last.is_some_and(|last| last.parse::<f64>().is_ok()) {
                words.pop();
                words.pop_if(|last| last == "T");
                words.push(format!("T{end}"));
            } else if bare.starts_with("20") && bare.ends_with('Z') {
                words.push(format!("{begin}D{end}"));
            } else if last == Some("worker") && bare.len() > 20 {
                words.push(format!("W{end}"));
            } else {
                words.push(word.to_owned());
            }
        }
        out.push_str(&words.join(" "));
        out.push('\n');
    }
    out
}
