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
        clear_environment(&mut command);
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
        format_output(&self.command(arguments).output().expect("run the binary"))
    }

    /// Runs a command that must succeed; gives its stdout.
    #[allow(dead_code, reason = "not every test binary needs it")]
    #[track_caller]
    pub(crate) fn run_ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("run the binary");
        assert!(output.status.success(), "{arguments:?}: {}", format_output(&output));
        String::from_utf8(output.stdout).expect("stdout is UTF-8")
    }
}

/// Commands and what they printed, without what differs from run to run: the text of a snapshot.
#[derive(Debug)]
#[allow(dead_code, reason = "not every test binary needs it")]
pub(crate) struct Transcript<'a> {
    shell: &'a Shell,
    text: String,
}

#[allow(dead_code, reason = "not every test binary needs it")]
impl<'a> Transcript<'a> {
    pub(crate) fn of(shell: &'a Shell) -> Self {
        Self { shell, text: String::new() }
    }

    /// Runs a command that must end with this exit code, and appends it with what it printed.
    #[track_caller]
    pub(crate) fn run(&mut self, code: i32, arguments: &[&str]) -> &mut Self {
        let output = self.shell.command(arguments).output().expect("run the binary");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", format_output(&output));
        self.add(arguments, &output)
    }

    /// Appends a command that has already run with what it printed.
    pub(crate) fn add(&mut self, arguments: &[&str], output: &Output) -> &mut Self {
        let quoted = |argument: &&str| match argument.is_empty() || argument.contains([' ', '"']) {
            true => format!("'{argument}'"),
            false => (*argument).to_owned(),
        };
        let words: Vec<String> = arguments.iter().map(quoted).collect();
        self.text.push_str(&format!("$ tidegate {}\n", words.join(" ")));
        for stream in [&output.stdout, &output.stderr] {
            self.text.push_str(&normalize_output(&String::from_utf8_lossy(stream)));
        }
        self
    }
}

impl std::fmt::Display for Transcript<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Takes away what the environment sets for the binary.
pub(crate) fn clear_environment(command: &mut Command) {
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
pub(crate) fn format_output(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string());
    format!("exit {code}\n{}{}", text(&output.stdout), text(&output.stderr))
}

/// Returns what a command printed, without the line of its exit code, which must be `code`.
#[allow(dead_code, reason = "not every test binary needs it")]
#[track_caller]
pub(crate) fn expect_exit(code: i32, shown: &str) -> String {
    let printed = shown.strip_prefix(&format!("exit {code}\n"));
    printed.unwrap_or_else(|| panic!("the exit code is not {code}: {shown}")).to_owned()
}

/// Returns a text that has exactly these numbers, in this order. A snapshot of it may get another wording, and no
/// other number.
#[allow(dead_code, reason = "not every test binary needs it")]
#[track_caller]
pub(crate) fn expect_numbers(expected: &[i64], text: &str) -> String {
    assert_eq!(numbers(text), expected, "{text}");
    text.to_owned()
}

/// [`expect_exit`] and [`expect_numbers`].
#[allow(dead_code, reason = "not every test binary needs it")]
#[track_caller]
pub(crate) fn expect_output(code: i32, expected: &[i64], shown: &str) -> String {
    expect_numbers(expected, &expect_exit(code, shown))
}

/// Returns the numbers of a text: digits that do not follow a letter, perhaps with a sign, with a comma before each three
/// of them or without.
#[allow(dead_code, reason = "not every test binary needs it")]
pub(crate) fn numbers(text: &str) -> Vec<i64> {
    let text = text.replace("UTF-8", "");
    let mut numbers = Vec::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let is_in_word = |text: &str| text.ends_with(|c: char| c.is_ascii_alphanumeric());
        let before = &rest[..start];
        let is_number = !is_in_word(before);
        let sign =
            if before.strip_suffix('-').is_some_and(|text| !is_in_word(text)) { -1 } else { 1 };
        let mut digits = String::new();
        rest = take_digits(&rest[start..], &mut digits);
        while let Some(next) = rest.strip_prefix(',') {
            let mut three = String::new();
            let behind = take_digits(next, &mut three);
            if digits.len() > 3 && !digits.contains(',') || three.len() != 3 {
                break;
            }
            digits.push_str(&format!(",{three}"));
            rest = behind;
        }
        if is_number {
            numbers.push(sign * digits.replace(',', "").parse::<i64>().expect("a number"));
        }
    }
    numbers
}

/// Returns [`plain`] text with `N` for each number: the wording beside numbers that differ from run to run.
#[allow(dead_code, reason = "not every test binary needs it")]
pub(crate) fn without_numbers(text: &str) -> String {
    let text = normalize_output(text);
    let mut words = Vec::new();
    for word in text.split_inclusive([' ', '\n']) {
        let bare = word.trim_matches(|c: char| !c.is_ascii_digit());
        match bare.chars().all(|c| c.is_ascii_digit() || ['.', ','].contains(&c)) {
            true if !bare.is_empty() => words.push(word.replace(bare, "N")),
            _ => words.push(word.to_owned()),
        }
    }
    words.concat()
}

/// Moves the digits that a text begins with to `digits`; returns the rest.
fn take_digits<'a>(text: &'a str, digits: &mut String) -> &'a str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    digits.push_str(&text[..end]);
    &text[end..]
}

/// Output without what differs from run to run: durations, dates, worker ids, widths.
#[allow(dead_code, reason = "not every test binary needs it")]
pub(crate) fn normalize_output(text: &str) -> String {
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
