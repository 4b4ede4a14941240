//! Many jobs with a quota each, whose tasks call a server that takes its time: how much of the quotas
//! is in use, is one ever exceeded, and how long does a worker wait for its next tasks? With kills, a
//! random worker is killed every so often and started again at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tidegate_core::bounds::{ATTEMPTS_MAX, CRASHES_MAX};
use tidegate_core::{JobSpec, Kind, LimitScope, NewTask, Registration, TaskState};
use tidegate_engine::time;
use tidegate_store::{StoreHandle, StoreLocation};

use super::fleet::{Outcome, completion_fault, counts, leftover_faults};
use super::target::Target;
use super::task_mix::SplitMix;
use super::workers::{Histories, WorkerCommand, Workers};
use super::{has_unfinished_tasks, submit};
use crate::clock::{Stopwatch, monotonic_ns};
use crate::history::{
    ClaimTimes, ExpectedLimits, LimitUsage, Process, Record, Report, SignalRecord, Writer,
    limit_usage, verify,
};
use crate::postgres_server::{Programs, TemporaryServer};
use crate::report::ResultLine;

/// As users have it, with room for a fleet.
const SERVER_SETTINGS: [&str; 1] = ["max_connections=300"];

/// Between two looks at the fleet.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Between two counts of what is done, which read the whole store.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// What to do.
#[derive(Debug, Clone)]
pub struct JobQuota {
    /// The store. Default: one on a PostgreSQL of its own.
    pub url: Option<String>,
    /// Where the programs of that server are. Default: where they are found.
    pub pg_bin: Option<PathBuf>,
    /// Jobs.
    pub jobs: u32,
    /// Tasks of each that may run at once.
    pub concurrency: u32,
    /// Tasks of each.
    pub tasks: u64,
    /// The server that they call.
    pub server: SocketAddr,
    /// Worker processes.
    pub processes: u32,
    /// Handlers that run at once in each.
    pub worker_concurrency: u32,
    /// The lease of the workers.
    pub lease: Duration,
    /// From when to when is measured, after the start of the workers.
    pub window: Range<Duration>,
    /// Between two kills. Default: nobody is killed.
    pub kill_interval: Option<Duration>,
    /// Decides who is killed.
    pub seed: u64,
    /// Where to leave the histories. Default: nowhere.
    pub histories: Option<PathBuf>,
    /// The program that is `tidegate`.
    pub binary: PathBuf,
}

/// Lets a fleet work off all jobs, and checks everything. Tells now and then how many tasks are done.
pub async fn job_quota(
    scenario: &JobQuota,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<Outcome> {
    ensure!(!scenario.window.is_empty(), "the window ends before it begins");
    let server = scenario.postgres().await?;
    let url = scenario.url.clone().or(server.as_ref().map(|server| server.url("postgres")));
    let target = Target::new(url.as_deref())?;
    ensure!(target.place != StoreLocation::Memory, "the memory store has one process only");
    let opened = target.open().await?;
    let before = completed(&opened).await?;
    scenario.prepare(&opened).await?;
    let histories = Histories::new(scenario.histories.as_deref())?;
    let mut workers =
        Workers::start(scenario.worker_command(&target.url), &histories, scenario.processes)?;
    let (stopwatch, start_ns) = (Stopwatch::start(), monotonic_ns());
    let mut nemesis = Nemesis::new(scenario, &histories)?;
    let mut next_count = time::now();
    while has_unfinished_tasks(&*opened.reader).await? {
        workers.check_alive()?;
        nemesis.kill_if_due(&mut workers).await?;
        if time::now() >= next_count {
            next_count = time::now() + COUNT_INTERVAL;
            progress(completed(&opened).await? - before);
        }
        let look = time::now() + POLL_INTERVAL;
        time::sleep_until(nemesis.next.map_or(look, |next| next.min(look))).await;
    }
    let seconds = stopwatch.seconds();
    workers.end().await?;
    let figures = Figures::read(scenario, &histories, start_ns)?;
    let done = completed(&opened).await? - before;
    progress(done);
    let mut faults: Vec<String> =
        completion_fault(scenario.all_tasks(), &BTreeMap::from([(TaskState::Completed, done)]))
            .into_iter()
            .collect();
    faults.extend(leftover_faults(&opened.reader.snapshot().await?));
    faults.extend(figures.coverage_fault(scenario));
    let line = ResultLine::new("job-quota", target.name(), scenario.all_tasks(), seconds)
        .with_violations(figures.report.violations.total())
        .with_extra("faults", faults.len() as u64)
        .with_extra("kills", nemesis.kills);
    Ok(Outcome { line: figures.add_figures(line, scenario), report: figures.report, faults })
}

async fn completed(opened: &StoreHandle) -> anyhow::Result<u64> {
    Ok(counts(opened).await?.get(&TaskState::Completed).copied().unwrap_or_default())
}

impl JobQuota {
    async fn postgres(&self) -> anyhow::Result<Option<TemporaryServer>> {
        if self.url.is_some() {
            return Ok(None);
        }
        let programs = Programs::find(self.pg_bin.as_deref())?;
        let start = move || TemporaryServer::start(programs, &SERVER_SETTINGS);
        let server = tokio::task::spawn_blocking(start).await.context("start a server")??;
        Ok(Some(server))
    }

    fn name(number: u32) -> String {
        format!("site-{number}")
    }

    fn limits(&self) -> impl Iterator<Item = String> {
        (0..self.jobs).map(|number| LimitScope::Job.limit_name(&Self::name(number)))
    }

    fn all_tasks(&self) -> u64 {
        u64::from(self.jobs) * self.tasks
    }

    fn slots(&self) -> f64 {
        f64::from(self.jobs) * f64::from(self.concurrency)
    }

    /// Makes the jobs with all of their tasks, which take turns. No task gives up, however many
    /// workers are killed under it.
    async fn prepare(&self, opened: &StoreHandle) -> anyhow::Result<()> {
        let (max_attempts, max_crashes) = (ATTEMPTS_MAX, CRASHES_MAX);
        let kinds = vec![Kind { max_attempts, max_crashes, ..Kind::new("http") }];
        opened.store.register(Registration { kinds, ..Registration::default() }).await?;
        let concurrency = Some(self.concurrency);
        let spec = |number| JobSpec { concurrency, ..JobSpec::new(Self::name(number)) };
        let jobs: Vec<JobSpec> = (0..self.jobs).map(spec).collect();
        let task = NewTask::new("http", format!("{{\"url\":\"http://{}/\"}}", self.server));
        let of = |number| NewTask { job: Some(Self::name(number)), ..task.clone() };
        let tasks = (0..self.tasks).flat_map(|_| (0..self.jobs).map(of));
        Ok(submit(&*opened.store, &jobs, tasks).await?)
    }

    fn worker_command<'a>(&'a self, url: &'a str) -> WorkerCommand<'a> {
        let (binary, permits, lease) = (&self.binary, self.worker_concurrency, self.lease);
        WorkerCommand {
            binary,
            url,
            concurrency: permits,
            lease,
            http_server: Some(self.server),
            until_idle: false,
        }
    }
}

/// Kills workers.
struct Nemesis {
    interval: Duration,
    /// When it kills next, if it kills at all.
    next: Option<Instant>,
    rng: SplitMix,
    /// Where the kills are written.
    harness: Writer,
    kills: u32,
}

impl Nemesis {
    fn new(scenario: &JobQuota, histories: &Histories) -> anyhow::Result<Self> {
        Ok(Self {
            interval: scenario.kill_interval.unwrap_or_default(),
            next: scenario.kill_interval.map(|interval| time::now() + interval),
            rng: SplitMix::new(scenario.seed),
            harness: Writer::append(histories.file("harness"))?,
            kills: 0,
        })
    }

    async fn kill_if_due(&mut self, workers: &mut Workers<'_>) -> anyhow::Result<()> {
        let Some(due) = self.next.filter(|next| time::now() >= *next) else { return Ok(()) };
        self.next = Some(due + self.interval);
        self.kills += 1;
        let victim = self.rng.below(workers.count() as u64) as usize;
        if let Some(pid) = workers.kill(victim).await? {
            // It is dead by now: nothing of it happens after this time.
            self.harness.write(&Record::Kill(SignalRecord::now(Process::by_pid(pid))))?;
        }
        workers.replace(victim)
    }
}

/// What the histories say.
struct Figures {
    report: Report,
    claims: ClaimTimes,
    /// By job.
    usage: Vec<LimitUsage>,
    window_ns: Range<u64>,
}

impl Figures {
    fn read(scenario: &JobQuota, histories: &Histories, start_ns: u64) -> anyhow::Result<Self> {
        let files = histories.files()?;
        let at = |after: Duration| start_ns + after.as_nanos() as u64;
        let window_ns = at(scenario.window.start)..at(scenario.window.end);
        let expected = scenario.limits().fold(ExpectedLimits::default(), |expected, limit| {
            expected.with(limit, scenario.concurrency)
        });
        let limits = limit_usage(&files, window_ns.clone())?;
        let of = |limit: String| limits.get(&limit).copied().unwrap_or_default();
        Ok(Self {
            report: verify(&files, &expected)?,
            claims: ClaimTimes::read(&files, window_ns.clone())?,
            usage: scenario.limits().map(of).collect(),
            window_ns,
        })
    }

    /// A job that has nothing left to do leaves its quota idle, and no engine can help it.
    fn coverage_fault(&self, scenario: &JobQuota) -> Option<String> {
        let early = |one: &&LimitUsage| one.last_enter_ns < self.window_ns.end;
        let number = self.usage.iter().filter(early).count();
        (number > 0).then(|| {
            format!(
                "{number} of {} jobs started their last task before the end of the window; give \
                 them more, or end the window sooner",
                scenario.jobs
            )
        })
    }

    fn add_figures(&self, line: ResultLine, scenario: &JobQuota) -> ResultLine {
        let running: f64 = self.usage.iter().map(|one| one.mean).sum();
        let means = || self.usage.iter().map(|one| one.mean);
        let held = self.report.limits.iter().filter(|limit| limit.expected);
        let mut line = line
            .with_extra("slots", scenario.slots())
            .with_extra("running", running)
            .with_extra("job_min", means().fold(f64::INFINITY, f64::min))
            .with_extra("job_max", means().fold(0.0, f64::max))
            .with_extra("held_max", held.map(|limit| limit.held_max).max().unwrap_or_default())
            .with_extra("claims", self.claims.count())
            .with_optional("claim_p50_ms", self.claims.upper_quantile_ms(0.5))
            .with_optional("claim_p99_ms", self.claims.upper_quantile_ms(0.01))
            .with_optional("claim_max_ms", self.claims.upper_quantile_ms(0.0))
            .with_extra("processes", scenario.processes)
            .with_extra("permits", scenario.processes * scenario.worker_concurrency)
            .with_extra("recovered", self.report.recovery.count)
            .with_optional("recovery_max_ms", self.report.recovery.max_ms)
            .with_extra("seed", scenario.seed);
        line.ratio = Some(running / scenario.slots());
        line
    }
}
