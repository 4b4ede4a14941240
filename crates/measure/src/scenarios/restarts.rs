//! Many worker processes while PostgreSQL crashes and comes back, again and again: is anything lost
//! or done twice, how soon does work go on, and how many connections are opened?

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tidegate_core::reader::TaskFilter;
use tidegate_core::{
    ErrorKind, Millis, NewTask, Result, Submission, SubmittedTask, TaskId, TaskState,
};
use tidegate_engine::time;
use tidegate_store::{StoreHandle, postgres};
use tokio_postgres::{Client, NoTls};

use super::fleet::{Outcome, expected_limits, leftover_faults, prepare};
use super::target::Target;
use super::task_mix::{SplitMix, tasks};
use super::workers::{Histories, WorkerCommand, Workers};
use super::{submit_keep_alive_task, wait_until_done};
use crate::clock::{Stopwatch, monotonic_ns};
use crate::history::{CompletionTimes, Report, verify};
use crate::postgres_server::{Programs, StopMode, TemporaryServer};
use crate::report::ResultLine;

/// As users have it, with room for a fleet.
const SERVER_SETTINGS: [&str; 1] = ["max_connections=300"];

/// Tasks in one submit: few, so that one is under way at most times.
const SUBMIT_TASKS: usize = 25;

/// Tasks that are mixed at once.
const MIX_TASKS: u64 = 1_000;

/// Tasks are due so long after their submit. A unique key is free again when its task has ended, so
/// whoever lost an answer has to ask again before that.
const DUE_DELAY: Duration = Duration::from_secs(5);

/// Before the next submit, or another try.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Between two looks at what is left.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Between two looks at the connections.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Between two knocks at a server that starts, which says to a few milliseconds when it is back.
const CONNECT_INTERVAL: Duration = Duration::from_millis(2);

/// A server that is not back after this will not come.
const RESTART_TIMEOUT: Duration = Duration::from_secs(120);

/// What to do.
#[derive(Debug, Clone)]
pub struct Restarts {
    /// Where the programs of the server are. Default: where they are found.
    pub pg_bin: Option<PathBuf>,
    /// Crashes.
    pub restarts: u32,
    /// How long the server is up between two of them, at least; up to half as long again.
    pub interval: Duration,
    /// How long it is down, beside the time that it takes to start.
    pub down: Duration,
    /// Tasks that are kept in the store, about.
    pub tasks: u64,
    /// Worker processes.
    pub processes: u32,
    /// Handlers that run at once in each.
    pub concurrency: u32,
    /// How long tasks behind the largest limit hold their slot at most.
    pub hold_ms: u64,
    /// The lease of the workers.
    pub lease: Duration,
    /// Decides the mixture of tasks and the times of the crashes.
    pub seed: u64,
    /// Where to leave the histories. Default: nowhere.
    pub histories: Option<PathBuf>,
    /// The program that is `tidegate`.
    pub binary: PathBuf,
}

/// Crashes the server under load, and checks everything.
pub async fn restarts(scenario: &Restarts) -> anyhow::Result<Outcome> {
    let programs = Programs::find(scenario.pg_bin.as_deref())?;
    let start = move || TemporaryServer::start(programs, &SERVER_SETTINGS);
    let server = Arc::new(tokio::task::spawn_blocking(start).await??);
    let target = Target::new(Some(&server.url("postgres")))?;
    let opened = target.open().await?;
    prepare(&opened, 0).await?;
    let anchor = submit_keep_alive_task(&opened, &[]).await?;
    let histories = Histories::new(scenario.histories.as_deref())?;
    let mut feeder = TaskFeeder::new(scenario, &opened);
    while feeder.keys < scenario.tasks {
        feeder.feed().await?;
    }
    let mut workers = scenario.workers(&target.url, &histories)?;
    let (mut watch, is_over) = (ConnectionMonitor::new(&target.url), Cell::new(false));
    let stopwatch = Stopwatch::start();
    let crash = async {
        time::sleep(DUE_DELAY).await;
        let crashes = Nemesis::new(scenario, server.clone(), &target.url).crash_all().await;
        is_over.set(true);
        crashes
    };
    let (crashes, (), ()) = tokio::try_join!(
        crash,
        feeder.feed_until(&is_over, &mut workers),
        watch.sample_until(&is_over)
    )?;
    opened.store.cancel(vec![anchor]).await?;
    wait_until_done(&*opened.reader).await?;
    let seconds = stopwatch.seconds();
    workers.end().await?;
    let report = verify(&histories.files()?, &expected_limits())?;
    let resumed =
        ResumeTimes::from_completions(&crashes, &CompletionTimes::read(&histories.files()?)?);
    let mut faults = feeder.task_faults().await?;
    faults.extend(leftover_faults(&opened.reader.snapshot().await?));
    faults.extend(watch.connection_faults());
    faults.extend(resumed.resume_fault());
    let line = ResultLine::new("restarts", target.name(), feeder.keys, seconds)
        .with_violations(report.violations.total())
        .with_extra("faults", faults.len() as u64)
        .with_extra("restarts", crashes.len())
        .with_extra("processes", scenario.processes)
        .with_extra("seed", scenario.seed)
        .with_extra("answers_lost", feeder.answers_lost)
        .with_extra("stored_all_the_same", feeder.stored_after_loss)
        .with_extra("connections", format!("{}/{}", watch.highest_count(), connections_max()));
    let line = add_crash_figures(resumed.add_figures(line), &crashes);
    Ok(Outcome { line: add_attempt_figures(line, &report), report, faults })
}

/// Connections that one process may have at most.
fn connections_max() -> usize {
    postgres::Options::default().connections_max()
}

fn add_crash_figures(line: ResultLine, crashes: &[Crash]) -> ResultLine {
    let down: Vec<u64> = crashes.iter().map(|one| one.returned_ns - one.stopped_ns).collect();
    let (p50_ms, max_ms) = median_and_max_ms(down);
    line.with_extra("down_p50_ms", p50_ms).with_extra("down_max_ms", max_ms)
}

fn add_attempt_figures(line: ResultLine, report: &Report) -> ResultLine {
    line.with_extra("attempts", report.attempts).with_extra("beside_another", report.beside_another)
}

/// The one in the middle and the largest, in milliseconds.
fn median_and_max_ms(mut times_ns: Vec<u64>) -> (Option<f64>, Option<f64>) {
    times_ns.sort_unstable();
    let milliseconds = |ns: &u64| *ns as f64 / 1e6;
    (times_ns.get(times_ns.len() / 2).map(milliseconds), times_ns.last().map(milliseconds))
}

impl Restarts {
    fn workers<'a>(
        &'a self,
        url: &'a str,
        histories: &'a Histories,
    ) -> anyhow::Result<Workers<'a>> {
        let (binary, permits, lease) = (&self.binary, self.concurrency, self.lease);
        let job = WorkerCommand {
            binary,
            url,
            concurrency: permits,
            lease,
            http_server: None,
            until_idle: true,
        };
        Workers::start(job, histories, self.processes)
    }
}

/// One crash of the server.
#[derive(Debug, Clone, Copy)]
struct Crash {
    /// It was about to be stopped.
    stopped_ns: u64,
    /// It takes connections again.
    returned_ns: u64,
}

/// Whoever stops the server and starts it again.
struct Nemesis<'a> {
    server: Arc<TemporaryServer>,
    url: &'a str,
    restarts: u32,
    interval: Duration,
    down: Duration,
    rng: SplitMix,
}

impl<'a> Nemesis<'a> {
    fn new(scenario: &Restarts, server: Arc<TemporaryServer>, url: &'a str) -> Self {
        let Restarts { restarts, interval, down, seed, .. } = *scenario;
        Self { server, url, restarts, interval, down, rng: SplitMix::new(!seed) }
    }

    async fn crash_all(mut self) -> anyhow::Result<Vec<Crash>> {
        let mut crashes = Vec::new();
        for _ in 0..self.restarts {
            crashes.push(self.crash().await?);
            let more = self.rng.below(self.interval.as_millis() as u64 / 2);
            time::sleep(self.interval + Duration::from_millis(more)).await;
        }
        Ok(crashes)
    }

    async fn crash(&self) -> anyhow::Result<Crash> {
        let stopped_ns = monotonic_ns();
        let server = self.server.clone();
        tokio::task::spawn_blocking(move || server.stop(StopMode::Immediate)).await??;
        time::sleep(self.down).await;
        let server = self.server.clone();
        tokio::task::spawn_blocking(move || server.start_without_waiting()).await??;
        let knocking = Stopwatch::start();
        while tokio_postgres::connect(self.url, NoTls).await.is_err() {
            ensure!(knocking.elapsed() < RESTART_TIMEOUT, "the server does not come back");
            time::sleep(CONNECT_INTERVAL).await;
        }
        Ok(Crash { stopped_ns, returned_ns: monotonic_ns() })
    }
}

/// How long after each return work went on, by what the workers wrote down.
#[derive(Debug)]
struct ResumeTimes {
    /// To the first task that was completed; none if there was none.
    first_ns: Vec<Option<u64>>,
    /// To the first of the process that was last.
    last_ns: Vec<Option<u64>>,
}

impl ResumeTimes {
    fn from_completions(crashes: &[Crash], completions: &CompletionTimes) -> Self {
        let since = |crash: &Crash, at: Option<u64>| at.map(|at| at - crash.returned_ns);
        let firsts: Vec<(Option<u64>, Option<u64>)> = crashes
            .iter()
            .map(|crash| {
                let (first, last) = completions.first_completions_after(crash.returned_ns);
                (since(crash, first), since(crash, last))
            })
            .collect();
        let (first_ns, last_ns) = firsts.into_iter().unzip();
        Self { first_ns, last_ns }
    }

    fn resume_fault(&self) -> Option<String> {
        let never = self.first_ns.iter().filter(|first| first.is_none()).count();
        (never > 0).then(|| format!("after {never} restarts nothing was completed any more"))
    }

    fn add_figures(&self, line: ResultLine) -> ResultLine {
        let (p50_ms, max_ms) = median_and_max_ms(self.first_ns.iter().flatten().copied().collect());
        let (all_p50_ms, all_max_ms) =
            median_and_max_ms(self.last_ns.iter().flatten().copied().collect());
        line.with_extra("resumed_p50_ms", p50_ms)
            .with_extra("resumed_max_ms", max_ms)
            .with_extra("all_resumed_p50_ms", all_p50_ms)
            .with_extra("all_resumed_max_ms", all_max_ms)
    }
}

/// Whoever submits, and asks again where the answer was lost.
struct TaskFeeder<'a> {
    opened: &'a StoreHandle,
    rng: SplitMix,
    hold_ms: u64,
    tasks_min: u64,
    /// Mixed, and not submitted yet.
    prepared: Vec<NewTask>,
    keys: u64,
    acknowledged: HashMap<String, TaskId>,
    /// Submits whose answer was lost.
    answers_lost: u64,
    /// How many of them had been stored all the same.
    stored_after_loss: u64,
}

impl<'a> TaskFeeder<'a> {
    fn new(scenario: &Restarts, opened: &'a StoreHandle) -> Self {
        Self {
            opened,
            rng: SplitMix::new(scenario.seed),
            hold_ms: scenario.hold_ms,
            tasks_min: scenario.tasks,
            prepared: Vec::new(),
            keys: 0,
            acknowledged: HashMap::new(),
            answers_lost: 0,
            stored_after_loss: 0,
        }
    }

    async fn feed_until(
        &mut self,
        is_over: &Cell<bool>,
        workers: &mut Workers<'_>,
    ) -> anyhow::Result<()> {
        let (mut look_at, mut is_low) = (time::now(), true);
        while !is_over.get() {
            if time::now() >= look_at {
                workers.check_alive()?;
                is_low = self.is_low().await.unwrap_or(is_low);
                look_at = time::now() + POLL_INTERVAL;
            }
            if is_low {
                self.feed().await?;
            }
            time::sleep(RETRY_INTERVAL).await;
        }
        Ok(())
    }

    async fn is_low(&self) -> Result<bool> {
        let counts = self.opened.reader.task_counts().await?;
        let unfinished = counts.iter().filter(|(state, _)| !state.is_final());
        Ok(unfinished.map(|(_, number)| number).sum::<u64>() < self.tasks_min)
    }

    async fn feed(&mut self) -> anyhow::Result<()> {
        if self.prepared.is_empty() {
            self.prepared = tasks(MIX_TASKS, self.hold_ms, &mut self.rng);
        }
        let tasks = self.prepared.split_off(self.prepared.len().saturating_sub(SUBMIT_TASKS));
        self.submit_until_acknowledged(tasks).await
    }

    async fn submit_until_acknowledged(&mut self, mut tasks: Vec<NewTask>) -> anyhow::Result<()> {
        for task in &mut tasks {
            task.unique_key = Some(format!("key-{}", self.keys));
            self.keys += 1;
        }
        let mut was_lost = false;
        loop {
            let outcome = self.submit_delayed(&mut tasks).await;
            match outcome {
                Ok(submitted) => {
                    self.answers_lost += u64::from(was_lost);
                    self.stored_after_loss +=
                        u64::from(was_lost && submitted.iter().all(|one| !one.is_new));
                    let keys = tasks.into_iter().filter_map(|task| task.unique_key);
                    let ids = submitted.into_iter().map(|one| one.task);
                    self.acknowledged.extend(keys.zip(ids));
                    return Ok(());
                }
                Err(error) if error.is_retryable() => {
                    was_lost |= error.kind() == ErrorKind::Unavailable;
                    time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Submits tasks that are due later.
    async fn submit_delayed(&self, tasks: &mut [NewTask]) -> Result<Vec<SubmittedTask>> {
        let StoreHandle { store, reader: inspect } = self.opened;
        let run_at = inspect.now().await? + DUE_DELAY.as_millis() as Millis;
        tasks.iter_mut().for_each(|task| task.run_at = Some(run_at));
        store.submit(Submission { tasks: tasks.to_vec(), ..Submission::default() }).await
    }

    /// What is wrong with the tasks, by what the store has of them: every key once, under the id that
    /// was acknowledged, and completed.
    async fn task_faults(&self) -> anyhow::Result<Vec<String>> {
        let mut stored: HashMap<String, Vec<(TaskId, TaskState)>> = HashMap::new();
        let page = 10_000;
        let mut filter = TaskFilter { tasks_max: page, ..TaskFilter::default() };
        loop {
            let tasks = self.opened.reader.tasks(filter.clone()).await?;
            filter.after_task = tasks.last().map(|task| task.id);
            let is_last = tasks.len() < page as usize;
            for task in tasks {
                if let Some(key) = task.unique_key {
                    stored.entry(key.to_string()).or_default().push((task.id, task.state));
                }
            }
            if is_last {
                break;
            }
        }
        let wrong = self.acknowledged.iter().filter_map(|(key, id)| {
            let found = stored.get(key).map(Vec::as_slice).unwrap_or_default();
            let is_right = matches!(found, [(one, TaskState::Completed)] if one == id);
            (!is_right).then(|| format!("{key} was acknowledged as task {id}, stored is {found:?}"))
        });
        let mut faults: Vec<String> = wrong.collect();
        if stored.len() as u64 != self.keys || self.acknowledged.len() as u64 != self.keys {
            let (keys, known) = (self.keys, self.acknowledged.len());
            let stored = stored.len();
            faults.push(format!("{keys} keys, {known} acknowledged, {stored} stored"));
        }
        Ok(faults)
    }
}

/// Whoever counts the connections of each process, as the server sees them.
struct ConnectionMonitor<'a> {
    url: &'a str,
    client: Option<Client>,
    connections_max: BTreeMap<String, usize>,
}

impl<'a> ConnectionMonitor<'a> {
    fn new(url: &'a str) -> Self {
        Self { url, client: None, connections_max: BTreeMap::new() }
    }

    async fn sample_until(&mut self, is_over: &Cell<bool>) -> anyhow::Result<()> {
        while !is_over.get() {
            // A server that is down has none.
            if self.sample().await.is_err() {
                self.client = None;
            }
            time::sleep(SAMPLE_INTERVAL).await;
        }
        Ok(())
    }

    async fn sample(&mut self) -> Result<(), tokio_postgres::Error> {
        let client = match &self.client {
            Some(client) => client,
            None => {
                let (client, connection) = tokio_postgres::connect(self.url, NoTls).await?;
                tokio::spawn(connection);
                self.client.insert(client)
            }
        };
        // Whoever is not named is this watch, or knocks.
        let count = "SELECT application_name, count(*) FROM pg_stat_activity
                     WHERE application_name <> '' AND backend_type = 'client backend' GROUP BY 1";
        for row in client.query(count, &[]).await? {
            let most = self.connections_max.entry(row.get(0)).or_default();
            *most = (*most).max(row.get::<_, i64>(1) as usize);
        }
        Ok(())
    }

    fn highest_count(&self) -> usize {
        self.connections_max.values().copied().max().unwrap_or_default()
    }

    fn connection_faults(&self) -> Vec<String> {
        let bound = connections_max();
        let beyond = self.connections_max.iter().filter(|(_, most)| **most > bound);
        beyond.map(|(name, most)| format!("{name} had {most} connections of {bound}")).collect()
    }
}
