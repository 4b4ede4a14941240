//! Writes down what handlers do, as they do it, for `tidegate verify`.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tidegate_core::{Attempt, Inspect, Limit, Scope};
use tidegate_engine::{Asked, Ended, Observer, time};
use tidegate_measure::clock::monotonic_ns;
use tidegate_measure::history::{
    Claim, Enter, Exit, Hold, Leave, LimitSeen, Outcome, Process, Record, Writer,
};

use crate::tell::tell;

/// Between two looks at the limits.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A look may take one part in so many of the time: a store can have many limits.
const LOOK_SHARE: u32 = 20;

/// Limits as they were last written down: capacity and version by name.
type Known = HashMap<Arc<str>, (Option<u32>, i64)>;

/// A history file that a worker writes to.
#[derive(Debug)]
pub(crate) struct History {
    writer: Writer,
    process: Process,
    known: Mutex<Known>,
    failed: AtomicBool,
    is_blind: AtomicBool,
}

impl History {
    /// Opens the file and notes every limit the store has now.
    pub(crate) async fn begin(path: &Path, inspect: &dyn Inspect) -> anyhow::Result<Self> {
        let writer =
            Writer::append(path).with_context(|| format!("open the history {}", path.display()))?;
        let history = Self {
            writer,
            process: Process::current(),
            known: Mutex::default(),
            failed: AtomicBool::new(false),
            is_blind: AtomicBool::new(false),
        };
        for limit in inspect.limits().await? {
            history.write_limit(&limit.name, limit.capacity, limit.version);
            history.known().insert(limit.name, (limit.capacity, limit.version));
        }
        Ok(history)
    }

    /// Notes limits that change while `work` goes on, and once more when it has ended.
    pub(crate) async fn beside<T>(
        &self,
        inspect: &dyn Inspect,
        work: impl Future<Output = T>,
    ) -> T {
        let done = tokio::select! {
            done = work => done,
            never = self.follow(inspect) => match never {},
        };
        self.look(inspect).await;
        done
    }

    async fn follow(&self, inspect: &dyn Inspect) -> Infallible {
        let mut pause = LOOK_INTERVAL;
        loop {
            time::sleep(pause).await;
            let begin = time::now();
            self.look(inspect).await;
            pause = LOOK_INTERVAL.max((time::now() - begin) * LOOK_SHARE);
        }
    }

    /// What cannot be seen now is seen at the next look, or leaves a gap in the versions, which
    /// `verify` knows how to read.
    async fn look(&self, inspect: &dyn Inspect) {
        match inspect.limits().await {
            Ok(limits) => self.note(&limits),
            Err(error) if !self.is_blind.swap(true, Ordering::Relaxed) => {
                tell!("warning: cannot see whether limits change: {error}");
            }
            Err(_) => {}
        }
    }

    /// Writes down what changed. The limits of workflows never do, and there are many.
    fn note(&self, limits: &[Limit]) {
        let changing = |limit: &&Limit| limit.scope() != Scope::Workflow;
        let mut known = self.known();
        let mut gone = std::mem::take(&mut *known);
        for Limit { name, capacity, version, .. } in limits.iter().filter(changing) {
            let (now, before) = ((*capacity, *version), gone.remove(name));
            known.insert(name.clone(), now);
            if before == Some(now) {
                continue;
            }
            if before.is_none_or(|(_, before)| before >= *version) {
                // It is new, or was made anew: in between there was none.
                self.write_limit(name, None, 0);
            }
            self.write_limit(name, *capacity, *version);
        }
        gone.retain(|name, _| Scope::of(name) != Some(Scope::Workflow));
        gone.keys().for_each(|name| self.write_limit(name, None, 0));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_limit(&self, name: &str, capacity: Option<u32>, version: i64) {
        self.write(&Record::Limit(LimitSeen {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            name: name.to_owned(),
            capacity,
            version: Some(version),
        }));
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

    fn leave(&self, attempt: &Attempt, _ran: Duration) {
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

    fn asked(&self, asked: &Asked) {
        self.write(&Record::Claim(Claim {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            took_ns: asked.took.as_nanos() as u64,
            wanted: asked.wanted,
            ended: asked.ended,
            found: asked.found,
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
