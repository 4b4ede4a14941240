//! Starts a command.
//!
//! Never a shell: what a task names is handed to the command word by word. Nothing starts that
//! the worker does not list, and what starts ends with the attempt.

mod allowed_commands;
mod children;
mod deadline;
mod pipes;
mod protocol;
pub(crate) mod supervisor;
mod supervisor_client;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_engine::{Context, Failure};

pub(crate) use allowed_commands::AllowedCommands;

use deadline::Deadline;
use protocol::{CommandExit, StartRequest};
use supervisor_client::SupervisorClient;

/// Words in one command.
const WORDS_MAX: usize = 1000;

/// Bytes in all of them. A system takes at least so many of one.
const WORD_BYTES_MAX: usize = 128 << 10;

/// Bytes of output in the error of a command that failed.
const ERROR_BYTES_MAX: usize = 512;

/// Where a command looks for others.
const SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What to start.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Payload {
    /// The command and its words. None of them is interpreted.
    argv: Vec<String>,
    /// What it reads. Default: nothing.
    #[serde(default)]
    stdin: String,
}

impl Payload {
    /// Checks everything that can be checked without starting.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.argv.first().is_none_or(String::is_empty) {
            return Err("`argv` is empty; its first word is the command".to_owned());
        }
        let bytes: usize = self.argv.iter().map(|word| word.len() + 1).sum();
        if self.argv.len() > WORDS_MAX || bytes > WORD_BYTES_MAX {
            return Err(format!(
                "`argv` has {} words of {bytes} bytes; at most {WORDS_MAX} of {WORD_BYTES_MAX}",
                self.argv.len()
            ));
        }
        match self.argv.iter().position(|word| word.contains('\0')) {
            Some(at) => Err(format!("word {at} of `argv` has a zero byte; remove it")),
            None => Ok(()),
        }
    }
}

/// The result of a task.
#[derive(Debug, Serialize)]
pub(crate) struct CommandResult {
    exit: i32,
    stdout: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stdout_truncated: bool,
    stderr: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stderr_truncated: bool,
}

/// Starts the command, and waits until it has ended and nothing of it runs.
pub(crate) async fn run(
    context: Context,
    payload: Payload,
    allowed: &AllowedCommands,
) -> Result<CommandResult, Failure> {
    payload.check().map_err(Failure::fatal)?;
    let file = allowed.executable(&payload.argv[0]).map_err(Failure::fatal)?;
    let file = file.to_str().ok_or_else(|| Failure::fatal("the path is not UTF-8"))?.to_owned();
    let name = payload.argv[0].clone();
    let order = StartRequest {
        file,
        argv: payload.argv,
        stdin: payload.stdin,
        environment: environment(&context),
        deadline: Deadline::before_lease_end(context.lease_deadline()),
    };
    let mut guard = SupervisorClient::start(&order).await?;
    let ended = tokio::select! {
        ended = guard.wait(|| context.lease_deadline()) => ended?,
        () = context.cancelled() => {
            guard.kill().await;
            return Err(Failure::cancelled());
        }
    };
    to_result(&name, ended.map_err(|why| Failure::retryable(format!("{name}: {why}")))?)
}

/// All that a command finds in its environment, but for its folder.
fn environment(context: &Context) -> BTreeMap<String, String> {
    let words = [
        ("PATH", SEARCH_PATH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TIDEGATE_TASK", context.task_id().to_string()),
        ("TIDEGATE_ATTEMPT", context.attempt_number().to_string()),
        ("TIDEGATE_TOKEN", context.token().to_string()),
    ];
    words.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn to_result(name: &str, ended: CommandExit) -> Result<CommandResult, Failure> {
    let how = match (ended.exit_code, ended.signal) {
        (Some(0), _) => {
            return Ok(CommandResult {
                exit: 0,
                stdout: ended.stdout.text,
                stdout_truncated: ended.stdout.is_truncated,
                stderr: ended.stderr.text,
                stderr_truncated: ended.stderr.is_truncated,
            });
        }
        (Some(exit), _) => format!("{name} ended with {exit}"),
        (None, Some(signal)) => format!("{name} was killed by signal {signal}"),
        (None, None) => format!("{name} ended, nobody knows how"),
    };
    // Many tools say on stdout what went wrong.
    let said = [&ended.stderr.text, &ended.stdout.text];
    let said = said.into_iter().find(|text| !text.trim().is_empty());
    let last = output_tail(said.map_or("", |text| text.as_str()));
    let colon = if last.is_empty() { "" } else { ": " };
    Err(Failure::retryable(format!("{how}{colon}{last}")))
}

/// The end of what a command complained of.
fn output_tail(said: &str) -> &str {
    let said = said.trim_end();
    &said[said.ceil_char_boundary(said.len().saturating_sub(ERROR_BYTES_MAX))..]
}
