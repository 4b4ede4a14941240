//! Writes down what handlers do, as they do it, for `tidegate verify`.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tidegate_core::{Attempt, Limit, LimitScope, StoreReader};
use tidegate_engine::{AttemptOutcome, ClaimStats, Observer, time};
use tidegate_measure::clock::monotonic_ns;
use tidegate_measure::history::{
    ClaimRecord, CompletionRecord, HandlerEndRecord, HeldSlots, LimitRecord, Outcome, Process,
    Record, StartRecord, Writer,
};

use crate::stderr::print_message;

/// Between two looks at the limits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A look may take one part in so many of the time: a store can have many limits.
const POLL_TIME_DIVISOR: u32 = 20;

/// Limits as they were last written down: capacity and version by name.
type KnownLimits = HashMap<Arc<str>, (Option<u32>, i64)>;

/// A history file that a worker writes to.
#[derive(Debug)]
pub(crate) struct History {
    writer: Writer,
    process: Process,
    known: Mutex<KnownLimits>,
    has_failed: AtomicBool,
    has_warned: AtomicBool,
}

impl History {
    /// Opens the file and notes every limit the store has now.
    pub(crate) async fn create(path: &Path, reader: &dyn StoreReader) -> anyhow::Result<Self> {
        let writer =
            Writer::append(path).with_context(|| format!("open the history {}", path.display()))?;
        let history = Self {
            writer,
            process: Process::current(),
            known: Mutex::default(),
            has_failed: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
        };
        for limit in reader.limits().await? {
            history.write_limit(&limit.name, limit.capacity, limit.version);
            history.lock_known().insert(limit.name, (limit.capacity, limit.version));
        }
        Ok(history)
    }

    /// Notes limits that change while `work` goes on, and once more when it has ended.
    pub(crate) async fn record_during<T>(
        &self,
        inspect: &dyn StoreReader,
        work: impl Future<Output = T>,
    ) -> T {
        let done = tokio::select! {
            done = work => done,
            never = self.poll_limits(inspect) => match never {},
        };
        self.record_limits(inspect).await;
        done
    }

    async fn poll_limits(&self, reader: &dyn StoreReader) -> Infallible {
        let mut pause = POLL_INTERVAL;
        loop {
            time::sleep(pause).await;
            let begin = time::now();
            self.record_limits(reader).await;
            pause = POLL_INTERVAL.max((time::now() - begin) * POLL_TIME_DIVISOR);
        }
    }

    /// What cannot be seen now is seen at the next look, or leaves a gap in the versions, which
    /// `verify` knows how to read.
    async fn record_limits(&self, reader: &dyn StoreReader) {
        match reader.limits().await {
            Ok(limits) => self.record_changes(&limits),
            Err(error) if !self.has_warned.swap(true, Ordering::Relaxed) => {
                print_message!("warning: cannot see whether limits change: {error}");
            }
            Err(_) => {}
        }
    }

    /// Writes down what changed. The limits of workflows never do, and there are many.
    fn record_changes(&self, limits: &[Limit]) {
        let changing = |limit: &&Limit| limit.scope() != LimitScope::Workflow;
        let mut known = self.lock_known();
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
        gone.retain(|name, _| LimitScope::from_limit_name(name) != Some(LimitScope::Workflow));
        gone.keys().for_each(|name| self.write_limit(name, None, 0));
    }

    fn lock_known(&self) -> MutexGuard<'_, KnownLimits> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_limit(&self, name: &str, capacity: Option<u32>, version: i64) {
        self.write(&Record::Limit(LimitRecord {
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
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            print_message!("warning: the history is not whole from here on: {error}");
        }
    }
}

impl Observer for History {
    fn on_start(&self, attempt: &Attempt) {
        self.write(&Record::Enter(StartRecord {
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
            limits: slots_by_limit(attempt)
                .map(|(name, weight)| HeldSlots { name: name.to_owned(), weight })
                .collect(),
        }));
    }

    fn on_handler_done(&self, attempt: &Attempt, _ran: Duration) {
        self.write(&Record::Leave(HandlerEndRecord {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            task: attempt.task.0,
            token: attempt.token.0,
        }));
    }

    fn on_acknowledged(&self, attempt: &Attempt, ended: AttemptOutcome) {
        self.write(&Record::Exit(CompletionRecord {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            task: attempt.task.0,
            token: attempt.token.0,
            outcome: history_outcome(ended),
        }));
    }

    fn on_claim(&self, asked: &ClaimStats) {
        self.write(&Record::Claim(ClaimRecord {
            t_ns: monotonic_ns(),
            process: self.process.clone(),
            took_ns: asked.round_trip.as_nanos() as u64,
            wanted: asked.tasks_requested,
            ended: asked.completions_sent,
            found: asked.tasks_claimed,
        }));
    }
}

/// How many slots of each limit an attempt holds.
pub(crate) fn slots_by_limit(attempt: &Attempt) -> impl Iterator<Item = (&str, u32)> {
    let mut holds: BTreeMap<&str, u32> = BTreeMap::new();
    for slot in &attempt.slots {
        *holds.entry(&slot.name).or_default() += 1;
    }
    holds.into_iter()
}

fn history_outcome(ended: AttemptOutcome) -> Outcome {
    match ended {
        AttemptOutcome::Completed => Outcome::Completed,
        AttemptOutcome::Failed => Outcome::Failed,
        AttemptOutcome::Retry => Outcome::Retry,
        AttemptOutcome::Snoozed => Outcome::Snoozed,
        AttemptOutcome::Released => Outcome::Released,
        AttemptOutcome::Cancelled => Outcome::Cancelled,
        AttemptOutcome::Lost => Outcome::Lost,
    }
}
