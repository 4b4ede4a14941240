//! Submits a task for each line of standard input, in batches and in order. Nothing of it is kept:
//! memory does not grow with the input.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal as _, Read};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_core::SubmittedTask;
use tidegate_engine::Client;
use tidegate_measure::table::counted;

use super::lines::Lines;
use super::{PreparedTask, SubmitRecord, format_records, job_specs};
use crate::output::print;
use crate::stderr::print_message;

/// Tasks in one submit.
const TASKS_MAX: usize = 1000;

/// Bytes of payload in one submit.
const BYTES_MAX: usize = 4 << 20;

/// What a bulk submit needs.
pub(crate) struct BulkSubmit<'a> {
    pub(crate) client: Client,
    /// The limits of the configuration.
    pub(crate) limits: &'a BTreeMap<String, u32>,
    /// Makes the task of a line.
    pub(crate) prepare_line: &'a dyn Fn(&str) -> anyhow::Result<PreparedTask>,
    pub(crate) json: bool,
}

/// Tasks that are submitted together.
#[derive(Default)]
struct Batch {
    tasks: Vec<PreparedTask>,
    /// The number of each one's line.
    numbers: Vec<u64>,
    /// Why there is nothing after it: the end, or a line that is no task.
    outcome: Option<anyhow::Result<()>>,
}

/// How far it has come.
struct BulkProgress {
    new: u64,
    duplicates: u64,
    bar: ProgressBar,
    /// Whether somebody still reads the ids.
    has_reader: bool,
}

impl BulkSubmit<'_> {
    /// Submits every line.
    pub(crate) async fn run(&self, input: impl Read) -> anyhow::Result<ExitCode> {
        let mut lines = Lines::new(input);
        let mut progress = BulkProgress::new();
        loop {
            // The store's own work goes on while this thread waits for a line.
            let batch = tokio::task::block_in_place(|| self.read_batch(&mut lines));
            let end = match self.submit(batch.tasks, &batch.numbers, &mut progress).await {
                Ok(()) => batch.outcome,
                Err(error) => Some(Err(error)),
            };
            match end {
                None => {}
                Some(Ok(())) => {
                    progress.finish(lines.has_lines());
                    return Ok(ExitCode::SUCCESS);
                }
                Some(Err(error)) => return Err(progress.into_error(&error)),
            }
        }
    }

    /// Takes lines until the batch is full, or the next line is not there yet: what comes slowly is
    /// submitted as it comes.
    fn read_batch(&self, lines: &mut Lines<impl Read>) -> Batch {
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while batch.tasks.len() < TASKS_MAX && bytes < BYTES_MAX {
            let (number, made) = match lines.next() {
                Ok(Some(line)) => (line.number, (self.prepare_line)(&line.text)),
                Ok(None) => {
                    batch.outcome = Some(Ok(()));
                    break;
                }
                Err(error) => {
                    batch.outcome = Some(Err(error));
                    break;
                }
            };
            match made {
                Ok(made) => {
                    bytes += made.bytes;
                    batch.tasks.push(made);
                    batch.numbers.push(number);
                }
                Err(error) => {
                    batch.outcome = Some(Err(error.context(format!("line {number}"))));
                    break;
                }
            }
            if !lines.has_buffered() {
                break;
            }
        }
        batch
    }

    async fn submit(
        &self,
        tasks: Vec<PreparedTask>,
        numbers: &[u64],
        progress: &mut BulkProgress,
    ) -> anyhow::Result<()> {
        let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Ok(()) };
        let jobs = job_specs(&tasks, self.limits);
        let tasks = tasks.into_iter().map(|made| made.task);
        let submitted = self.client.submit_with_jobs(jobs, tasks).await;
        let submitted = submitted.with_context(|| match first == last {
            true => format!("line {first}"),
            false => format!("lines {first} to {last}"),
        })?;
        progress.count(&submitted);
        let line = |(submitted, number): (&SubmittedTask, &u64)| {
            SubmitRecord::new(submitted, Some(*number))
        };
        progress.print(&format_records(submitted.iter().zip(numbers).map(line), self.json)?)
    }
}

impl BulkProgress {
    fn new() -> Self {
        // Ids that run over a terminal show enough of it.
        let target = match std::io::stdout().is_terminal() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let style = ProgressStyle::with_template("{human_pos} tasks submitted");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::with_draw_target(None, target).with_style(style);
        Self { new: 0, duplicates: 0, bar, has_reader: true }
    }

    fn count(&mut self, submitted: &[SubmittedTask]) {
        let new = submitted.iter().filter(|submitted| submitted.is_new).count();
        self.new += new as u64;
        self.duplicates += (submitted.len() - new) as u64;
        self.bar.set_position(self.new);
    }

    /// Prints ids. Who submits and no longer reads the ids wants the tasks all the same.
    fn print(&mut self, text: &str) -> anyhow::Result<()> {
        if !self.has_reader {
            return Ok(());
        }
        match print(text) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.has_reader = false,
            printed => printed?,
        }
        Ok(())
    }

    fn finish(self, has_lines: bool) {
        self.bar.finish_and_clear();
        print_message!("submitted {}{}", counted(self.new, "task"), self.describe_duplicates());
        match has_lines {
            true if self.new + self.duplicates == 0 => {
                print_message!("note: stdin has no lines but blank ones")
            }
            true => {}
            false => print_message!(
                "note: stdin is empty; --each-line reads a task from each of its lines, such as those \
                 of `seq 3 | tidegate submit noop --each-line`"
            ),
        }
    }

    /// What went wrong, and how far it had come before.
    fn into_error(self, error: &anyhow::Error) -> anyhow::Error {
        self.bar.finish_and_clear();
        let before = counted(self.new, "task");
        anyhow!("{error:#}; submitted before that: {before}{}", self.describe_duplicates())
    }

    fn describe_duplicates(&self) -> String {
        match self.duplicates {
            0 => String::new(),
            number => format!("; lines with the unique key of an unfinished task: {number}"),
        }
    }
}
