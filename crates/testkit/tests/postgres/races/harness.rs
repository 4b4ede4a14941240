//! Where two verbs are interleaved.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::invariants::{check, check_idle_store};
use tidegate_core::{
    Attempt, CapacitySource, Claim, Completion, Error, Finish, Millis, NewTask, Outcome, Result,
    SetLimit, Store, StoreReader, Submission, TaskId, WorkerId,
};
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::events::Events;
use tidegate_testkit::postgres::{Database, Server};
use tokio::sync::Notify;
use tokio_postgres::{Client, NoTls};
use tracing::Level;

use super::stride::Stride;

pub(crate) const START: Millis = 1_700_559_000_000;
pub(crate) const LEASE_MS: i64 = 30_000;

/// More statements than any verb has.
const STATEMENTS_MAX: usize = 400;

/// Rounds in which everything must be worked off.
const ROUNDS_MAX: usize = 200;

pub(crate) type VerbFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Two verbs that meet, and what must be true afterwards beside the invariants.
pub(crate) struct Race {
    pub(crate) a: VerbFuture,
    pub(crate) b: VerbFuture,
    pub(crate) after: AfterRace,
}

/// A look at the store after the race.
pub(crate) type AfterRace = Box<dyn FnOnce(Arc<RaceHarness>) -> CheckFuture + Send>;

type CheckFuture = Pin<Box<dyn Future<Output = CheckResult> + Send>>;

/// What is wrong, if anything.
pub(crate) type CheckResult = Result<(), String>;

/// One database, a store that can be held at a statement and one that cannot.
pub(crate) struct RaceHarness {
    _database: Database,
    pub monitor: Client,
    pub(crate) held_store: Handle,
    pub(crate) free_store: Handle,
    stop: Arc<StatementHold>,
    events: Events,
    pub(crate) stride: Stride,
}

/// The boundaries of the two verbs of a race.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Boundaries {
    /// Number of boundaries at which a verb was held.
    pub(crate) held: usize,
    /// Number of boundaries that the verbs have when neither is held.
    pub(crate) all: usize,
}

/// A store with a clock of its own.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) store: Postgres,
    pub(crate) clock: Arc<AtomicI64>,
}

/// Holds a verb before its n-th statement.
#[derive(Default)]
struct StatementHold {
    hold_at: AtomicUsize,
    statements: AtomicUsize,
    reached: Notify,
    resume: Notify,
}

impl StatementHold {
    fn set(&self, at: usize) {
        self.statements.store(0, Ordering::SeqCst);
        self.hold_at.store(at, Ordering::SeqCst);
    }

    async fn step(self: Arc<Self>) {
        if self.statements.fetch_add(1, Ordering::SeqCst) + 1 == self.hold_at.load(Ordering::SeqCst)
        {
            self.reached.notify_one();
            self.resume.notified().await;
        }
    }
}

impl RaceHarness {
    pub(crate) async fn new(options: Options) -> Arc<Self> {
        let stride = match options.injected_bug {
            Some(_) => Stride::ONE,
            None => Stride::of_this_run(),
        };
        let database = Server::shared().database();
        let stop = Arc::new(StatementHold::default());
        let step = {
            let stop = stop.clone();
            move |_| {
                let stepped: Pin<Box<dyn Future<Output = ()> + Send>> =
                    Box::pin(stop.clone().step());
                stepped
            }
        };
        let held = Options { statement_hook: Some(Arc::new(step)), ..options.clone() };
        let held = Handle::connect(&database, held).await;
        let free = Handle::connect(&database, options).await;
        free.store.migrate().await.expect("migrate");
        let (monitor, connection) =
            tokio_postgres::connect(&database.url(), NoTls).await.expect("connect");
        tokio::spawn(connection);
        let events = Events::capture();
        Arc::new(Self {
            _database: database,
            monitor,
            held_store: held,
            free_store: free,
            stop,
            events,
            stride,
        })
    }

    /// Empties the store. Places in line and ids of limits go on: a store remembers how far it has come in
    /// the line of a limit. Nothing is truncated: every plan of every connection would have to be made again.
    async fn reset(&self) {
        const EMPTY: &str = "DELETE FROM tidegate.kinds; DELETE FROM tidegate.lanes; \
            DELETE FROM tidegate.workers; DELETE FROM tidegate.worker_lanes; \
            DELETE FROM tidegate.limits; DELETE FROM tidegate.limit_deltas; DELETE FROM tidegate.slots; \
            DELETE FROM tidegate.slot_groups; DELETE FROM tidegate.tasks; \
            DELETE FROM tidegate.finished; DELETE FROM tidegate.unique_keys; \
            DELETE FROM tidegate.scheduled; DELETE FROM tidegate.inbox; \
            DELETE FROM tidegate.ready; DELETE FROM tidegate.waiters; DELETE FROM tidegate.leases; \
            DELETE FROM tidegate.running; \
            SELECT setval('tidegate.task_ids', 1, false), setval('tidegate.tokens', 1, false), \
                   setval(pg_get_serial_sequence('tidegate.lanes', 'id'), 1, false); \
            UPDATE tidegate.counters SET virtual_time = 0, limits_version = 0";
        self.monitor.batch_execute(EMPTY).await.expect("empty the tables");
        self.held_store.clock.store(START, Ordering::SeqCst);
        self.free_store.clock.store(START, Ordering::SeqCst);
    }

    /// Runs a race over the boundaries of each of its verbs: every one in the full tier and where a bug is planted,
    /// every third one in the small tier.
    pub(crate) async fn run_race<F>(
        self: &Arc<Self>,
        setup: impl Fn(Arc<Self>, Handle, Handle) -> F,
    ) -> Result<Boundaries, String>
    where
        F: Future<Output = Race>,
    {
        let mut boundaries = Boundaries::default();
        for holds_a in [true, false] {
            for at in self.stride.boundaries(STATEMENTS_MAX) {
                self.reset().await;
                self.stop.set(0);
                let (x, y) = if holds_a {
                    (&self.held_store, &self.free_store)
                } else {
                    (&self.free_store, &self.held_store)
                };
                let race = setup(self.clone(), x.clone(), y.clone()).await;
                let (first, second) = if holds_a { (race.a, race.b) } else { (race.b, race.a) };
                self.stop.set(at);
                let held = self.interleave(first, second).await;
                let statements = self.stop.statements.load(Ordering::SeqCst);
                let which = if holds_a { "first" } else { "second" };
                let fine = match held {
                    Ok(_) => self.check_end(race.after).await,
                    Err(ref wrong) => Err(wrong.clone()),
                };
                fine.map_err(|wrong| {
                    format!("the {which} held at statement {at} ({}): {wrong}", self.stride)
                })?;
                if held == Ok(false) {
                    boundaries.all += statements;
                    break;
                }
                boundaries.held += 1;
            }
        }
        Ok(boundaries)
    }

    /// Runs the first verb to where it is held, then the second as far as it goes, then both to
    /// their end. False if the first was over before.
    async fn interleave(&self, first: VerbFuture, second: VerbFuture) -> Result<bool, String> {
        let mut first = tokio::spawn(first);
        let mut early = None;
        tokio::select! {
            () = self.stop.reached.notified() => {}
            over = &mut first => early = Some(over),
        }
        let mut second = tokio::spawn(second);
        let mut over = None;
        if early.is_none() {
            let mut waits = 0;
            for _ in 0..2000 {
                if let Ok(done) = tokio::time::timeout(Duration::from_millis(2), &mut second).await
                {
                    over = Some(done);
                    break;
                }
                waits = if self.is_waiting().await { waits + 1 } else { 0 };
                if waits == 3 {
                    break;
                }
            }
            self.stop.set(0);
            self.stop.resume.notify_one();
        }
        let is_held = early.is_none();
        let limit = Duration::from_secs(30);
        let joined = async {
            let first = match early {
                Some(over) => over,
                None => first.await,
            };
            let second = match over {
                Some(over) => over,
                None => second.await,
            };
            (first, second)
        };
        let (first, second) =
            tokio::time::timeout(limit, joined).await.map_err(|_| "the verbs hang".to_owned())?;
        for done in [first, second] {
            let done: Result<()> = done.map_err(|cause| format!("panicked: {cause}"))?;
            done.map_err(|error: Error| format!("{:?}: {error}", error.kind()))?;
        }
        let conflicts = self.held_store.store.transaction_conflicts()
            + self.free_store.store.transaction_conflicts();
        if conflicts > 0 {
            return Err(format!("the server undid {conflicts} transactions"));
        }
        // Behind a commit a broken invariant is only logged.
        if let Some(event) = self.events.of_level(Level::ERROR).first() {
            return Err(event.text.clone());
        }
        Ok(is_held)
    }

    async fn is_waiting(&self) -> bool {
        const WAITING: &str = "SELECT count(*) FROM pg_stat_activity \
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let row = self.monitor.query_one(WAITING, &[]).await.expect("look at the server");
        row.get::<_, i64>(0) > 0
    }

    async fn check_end(
        self: &Arc<Self>,
        after: impl FnOnce(Arc<Self>) -> Pin<Box<dyn Future<Output = CheckResult> + Send>>,
    ) -> CheckResult {
        self.check().await?;
        after(self.clone()).await?;
        self.check().await?;
        self.run_all().await
    }

    /// The invariants, as far as one state shows them.
    pub(crate) async fn check(&self) -> CheckResult {
        let snapshot = self.free_store.store.snapshot().await.map_err(|error| error.to_string())?;
        match check(&snapshot).as_slice() {
            [] => Ok(()),
            found => Err(format!("{found:?}")),
        }
    }

    /// Claims and finishes until nothing is left.
    pub(crate) async fn run_all(&self) -> CheckResult {
        let text = |error: Error| error.to_string();
        // What the case left running ends first.
        let snapshot = self.free_store.store.snapshot().await.map_err(text)?;
        let mut exits: Vec<Completion> = snapshot
            .tasks
            .iter()
            .filter_map(|task| match task.positions.first() {
                Some(tidegate_core::tables::Position::Running(token)) => {
                    Some(Completion { task: task.id, token: *token, outcome: completed_outcome() })
                }
                _ => None,
            })
            .collect();
        for _ in 0..ROUNDS_MAX {
            let finish = Finish { completions: exits, claim: Some(claim_request("last", 10)) };
            let finished = self.free_store.store.finish(finish).await.map_err(text)?;
            exits = finished.claimed.iter().map(completion_of).collect();
            let counts = self.free_store.store.task_counts().await.map_err(text)?;
            if counts.keys().all(|state| state.is_final()) {
                let snapshot = self.free_store.store.snapshot().await.map_err(text)?;
                let left = check_idle_store(&snapshot);
                return if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) };
            }
            self.check().await?;
        }
        let snapshot = self.free_store.store.snapshot().await.map_err(text)?;
        Err(format!("not worked off: {:?} {:?}", snapshot.tasks, snapshot.limits))
    }
}

impl Handle {
    async fn connect(database: &Database, options: Options) -> Self {
        let clock = Arc::new(AtomicI64::new(START));
        let time = clock.clone();
        let options = Options {
            clock: Some(Arc::new(move || time.load(Ordering::SeqCst))),
            due_grace: Duration::ZERO,
            ..options
        };
        let store = Postgres::connect(&database.url(), options).await.expect("connect");
        Self { store, clock }
    }

    pub(crate) async fn set_limit(&self, limit: &str, capacity: Option<u32>) {
        self.store.set_limit(set_limit_request(limit, capacity)).await.expect("set a limit");
    }

    pub(crate) async fn submit(&self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let submission = Submission { tasks, ..Submission::default() };
        let submitted = self.store.submit(submission).await.expect("submit");
        submitted.into_iter().map(|one| one.task).collect()
    }

    pub(crate) async fn claim(&self, tasks_max: u32) -> Vec<Attempt> {
        self.store.claim(claim_request("worker", tasks_max)).await.expect("claim")
    }

    /// Submits one task and claims it.
    pub(crate) async fn submit_and_claim(&self, task: NewTask) -> Attempt {
        let id = self.submit(vec![task]).await[0];
        let claimed = self.claim(10).await;
        assert_eq!(claimed.iter().map(|attempt| attempt.task).collect::<Vec<_>>(), [id]);
        claimed.into_iter().next().expect("one attempt")
    }

    pub(crate) fn finish_verb(&self, attempt: &Attempt) -> VerbFuture {
        let (store, exits) = (self.store.clone(), vec![completion_of(attempt)]);
        Box::pin(async move {
            let finished = store.finish(Finish { completions: exits, claim: None }).await?;
            assert_eq!(finished.lost_attempts, []);
            Ok(())
        })
    }

    pub(crate) fn set_limit_verb(&self, limit: &'static str, capacity: Option<u32>) -> VerbFuture {
        let store = self.store.clone();
        Box::pin(async move { store.set_limit(set_limit_request(limit, capacity)).await.map(drop) })
    }
}

pub(crate) fn set_limit_request(limit: &str, capacity: Option<u32>) -> SetLimit {
    SetLimit { name: limit.to_owned(), capacity, source: CapacitySource::Operator }
}

pub(crate) fn claim_request(worker: &str, tasks_max: u32) -> Claim {
    Claim {
        worker: WorkerId(worker.into()),
        queues: ["default".into()].into(),
        kinds: ["a", "b", "c", "free"].map(Into::into).into(),
        tasks_max,
        lease_ms: LEASE_MS,
        poll_interval_ms: 1000,
    }
}

pub(crate) fn task(kind: &str) -> NewTask {
    NewTask::new(kind, "null")
}

pub(crate) fn task_of_job(kind: &str, job: &str) -> NewTask {
    NewTask { job: Some(job.to_owned()), ..task(kind) }
}

pub(crate) fn completed_outcome() -> Outcome {
    Outcome::Completed(b"null".to_vec())
}

pub(crate) fn completion_of(attempt: &Attempt) -> Completion {
    Completion { task: attempt.task, token: attempt.token, outcome: completed_outcome() }
}
