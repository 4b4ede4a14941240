//! Writes down what handlers do, as they do it, for `tidegate verify`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tidegate_core::{Attempt, Inspect};
use tidegate_engine::{Ended, Observer};
use tidegate_measure::clock::monotonic_ns;
use tidegate_measure::history::{
    Enter, Exit, Hold, Leave, LimitSeen, Outcome, Process, Record, Writer,
};

use crate::tell::tell;

/// A history file that a worker writes to.
#[derive(Debug)]
pub(crate) struct History {
    writer: Writer,
    process: Process,
    failed: AtomicBool,
}

impl History {
    /// Opens the file and notes every limit the store has now.
    pub(crate) async fn begin(path: &Path, inspect: &dyn Inspect) -> anyhow::Result<Self> {
        let writer =
            Writer::append(path).with_context(|| format!("open the history {}", path.display()))?;
        let history = Self { writer, process: Process::current(), failed: AtomicBool::new(false) };
        for limit in inspect.limits().await? {
            history.write(&Record::Limit(LimitSeen {
                t_ns: monotonic_ns(),
                process: history.process.clone(),
                name: limit.name.to_string(),
                capacity: limit.capacity,
                version: Some(limit.version),
            }));
        }
        Ok(history)
    }

    /// A history with a hole proves nothing, so the worker goes on and says so once.
    fn write(&self, record: &Record) {
        if let Err(error) = self.writer.write(record)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tell!("warning: the history is not whole from here on: {error}");
        }
    }
}

impl Observer for History {
    fn enter(&self, attempt: &Attempt) {
        self.write(&Record::Enter(Enter {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            task: attempt.task.0,
            attempt: attempt.number,
            token: attempt.token.0,
            kind: attempt.kind.to_string(),
            group: (attempt.group != attempt.kind).then(|| attempt.group.to_string()),
            weight: attempt.weight,
            job: attempt.job.as_deref().map(str::to_owned),
            workflow: attempt.workflow.as_deref().map(str::to_owned),
            limits: holds(attempt)
                .map(|(name, weight)| Hold { name: name.to_owned(), weight })
                .collect(),
        }));
    }

    fn leave(&self, attempt: &Attempt) {
        self.write(&Record::Leave(Leave {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            task: attempt.task.0,
            token: attempt.token.0,
        }));
    }

    fn exit(&self, attempt: &Attempt, ended: Ended) {
        self.write(&Record::Exit(Exit {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            task: attempt.task.0,
            token: attempt.token.0,
            outcome: outcome(ended),
        }));
    }
}

/// How many slots of each limit an attempt holds.
pub(crate) fn holds(attempt: &Attempt) -> impl Iterator<Item = (&str, u32)> {
    let mut holds: BTreeMap<&str, u32> = BTreeMap::new();
    for slot in &attempt.slots {
        *holds.entry(&slot.name).or_default() += 1;
    }
    holds.into_iter()
}

fn outcome(ended: Ended) -> Outcome {
    match ended {
        Ended::Completed => Outcome::Completed,
        Ended::Failed => Outcome::Failed,
        Ended::Retry => Outcome::Retry,
        Ended::Snoozed => Outcome::Snoozed,
        Ended::Released => Outcome::Released,
        Ended::Cancelled => Outcome::Cancelled,
        Ended::Lost => Outcome::Lost,
    }
}
