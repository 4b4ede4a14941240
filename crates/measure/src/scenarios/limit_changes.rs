//! Many worker processes under limits that somebody changes all the time. Every commit of the store
//! is audited: none that takes a slot leaves more held than the limit in force.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use tidegate_core::{
    CapacitySource, JobSpec, Limit, NewTask, Registration, SetLimit, TaskId, TaskState,
};
use tidegate_engine::time;
use tidegate_store::{StoreHandle, StoreLocation};
use tokio::sync::oneshot;

use super::fleet::{completion_fault, counts, leftover_faults};
use super::target::Target;
use super::task_mix::{SplitMix, kinds};
use super::workers::{Histories, WorkerCommand, Workers};
use super::{submit, submit_keep_alive_task, wait_until_done};
use crate::audit::{Audit, Findings};
use crate::clock::{Stopwatch, monotonic_ns};
use crate::history::{ExpectedLimits, LimitRecord, Process, Record, Report, Writer, verify};
use crate::postgres_server::{Programs, TemporaryServer};
use crate::report::ResultLine;

/// What a server needs for the audit, and the connections of a fleet.
const SERVER_SETTINGS: [&str; 2] = ["wal_level=logical", "max_connections=300"];

/// Two groups and the quota of a job. The tasks of one need nothing else, so its slots change hands
/// without its lock; those of the other may need the quota too, and go the general way.
const SIMPLE_GROUP: &str = "tide";
const SHARED_GROUP: &str = "swell";
const QUOTA_JOB: &str = "surge";
const LIMITS: [&str; 3] = ["group:tide", "group:swell", "job:surge"];

/// Capacities are between 1 and this.
const CAPACITY_MAX: u64 = 50;

/// A line with fewer waiting gets new tasks, so many at a time; now and then it is left to run dry.
const WAITING_MIN: u32 = 300;
const REFILL_TASKS: u64 = 600;

/// Between two looks at the lines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Between two readings of the server's log: it keeps what was not read.
const AUDIT_INTERVAL: Duration = Duration::from_secs(5);

/// What to do.
#[derive(Debug, Clone)]
pub struct LimitChanges {
    /// The store, on a PostgreSQL whose log can be decoded. Default: one on a server of its own.
    pub url: Option<String>,
    /// Where the programs of that server are. Default: where they are found.
    pub pg_bin: Option<PathBuf>,
    /// How long the limits are changed.
    pub seconds: u64,
    /// Between two changes of all limits.
    pub interval: Duration,
    /// Worker processes.
    pub processes: u32,
    /// Handlers that run at once in each.
    pub concurrency: u32,
    /// The lease of the workers.
    pub lease: Duration,
    /// Decides the capacities and the mixture of tasks.
    pub seed: u64,
    /// Gives every limit one more than the audit is told, which must then see it.
    pub inject_over_limit: bool,
    /// Where to leave the histories. Default: nowhere.
    pub histories: Option<PathBuf>,
    /// The program that is `tidegate`.
    pub binary: PathBuf,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The line to print.
    pub line: ResultLine,
    /// What the audit found.
    pub findings: Findings,
    /// What the histories prove.
    pub report: Report,
    /// What is not as it must be.
    pub faults: Vec<String>,
}

impl Outcome {
    /// Whether all is as it must be.
    pub fn is_good(&self) -> bool {
        self.findings.violations == 0 && self.report.is_clean() && self.faults.is_empty()
    }
}

/// Changes limits under load, and audits every commit.
pub async fn limit_changes(scenario: &LimitChanges) -> anyhow::Result<Outcome> {
    let server = scenario.server().await?;
    let url = match (&scenario.url, &server) {
        (Some(url), _) => url.clone(),
        (None, Some(server)) => server.url("postgres"),
        (None, None) => unreachable!("a server is started where no store is named"),
    };
    let target = Target::new(Some(&url))?;
    ensure!(
        matches!(target.place, StoreLocation::Postgres(_)),
        "the audit reads the log of a PostgreSQL; --store has to name one"
    );
    let opened = target.open().await?;
    let before = counts(&opened).await?;
    let audit = Audit::begin(&url, u32::from(scenario.inject_over_limit)).await?;
    let histories = Histories::new(scenario.histories.as_deref())?;
    let (done, is_done) = oneshot::channel();
    let audit = tokio::spawn(run_audit(audit, is_done));
    let stopwatch = Stopwatch::start();
    let ran = work(scenario, &opened, &url, &histories).await?;
    let seconds = stopwatch.seconds();
    let _ = done.send(());
    let findings = audit.await.context("wait for the audit")??;
    let report = verify(&histories.files()?, &ExpectedLimits::default())?;
    let mut ended = counts(&opened).await?;
    for (state, number) in &before {
        *ended.entry(*state).or_default() -= number;
    }
    let mut faults: Vec<String> = completion_fault(ran.submitted, &ended).into_iter().collect();
    faults.extend(leftover_faults(&opened.reader.snapshot().await?));
    faults.extend(coverage_faults(&findings, ran.changes));
    let line = ResultLine::new("limit-changes", target.name(), ran.submitted, seconds)
        .with_violations(findings.violations + report.violations.total())
        .with_extra("completed", ended.get(&TaskState::Completed).copied().unwrap_or_default())
        .with_extra("faults", faults.len() as u64)
        .with_extra("processes", scenario.processes)
        .with_extra("seed", scenario.seed)
        .with_extra("changes", ran.changes)
        .with_extra("commits", findings.commits)
        .with_extra("taken", findings.taken)
        .with_extra("drains", findings.drains)
        .with_extra("held_max", findings.held_max)
        .with_extra("audit_violations", findings.violations);
    Ok(Outcome { line, findings, report, faults })
}

/// An audit of nothing is clean too.
fn coverage_faults(findings: &Findings, changes: u64) -> Vec<String> {
    let mut faults = Vec::new();
    if findings.taken == 0 {
        faults.push("no slot was taken".to_owned());
    }
    if findings.drains == 0 {
        faults.push("no limit was lowered below what was held".to_owned());
    }
    // A capacity that is set again as it was is no change; and the first ones are seen too.
    if findings.changes * 2 < changes {
        faults.push(format!("{changes} changes were made, {} seen", findings.changes));
    }
    faults
}

/// Replays the server's log until the work is done.
async fn run_audit(mut audit: Audit, mut done: oneshot::Receiver<()>) -> anyhow::Result<Findings> {
    loop {
        tokio::select! {
            _ = &mut done => return audit.finish().await,
            () = time::sleep(AUDIT_INTERVAL) => audit.catch_up().await?,
        }
    }
}

impl LimitChanges {
    async fn server(&self) -> anyhow::Result<Option<TemporaryServer>> {
        if self.url.is_some() {
            return Ok(None);
        }
        let programs = Programs::find(self.pg_bin.as_deref())?;
        let start = move || TemporaryServer::start(programs, &SERVER_SETTINGS);
        let server = tokio::task::spawn_blocking(start).await.context("start a server")??;
        Ok(Some(server))
    }

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

/// What was done.
struct WorkDone {
    submitted: u64,
    changes: u64,
}

/// Changes limits under load for a while, and then lets all of it end.
async fn work(
    scenario: &LimitChanges,
    opened: &StoreHandle,
    url: &str,
    histories: &Histories,
) -> anyhow::Result<WorkDone> {
    let anchor = prepare(opened).await?;
    let harness = Writer::append(histories.file("harness"))?;
    let extra = u32::from(scenario.inject_over_limit);
    let dice = SplitMix::new(scenario.seed);
    let mut changer = LimitChanger { opened, harness, rng: dice, extra, changes: 0 };
    changer.change().await?;
    let mut feeder = TaskFeeder { opened, rng: SplitMix::new(!scenario.seed), submitted: 0 };
    feeder.feed().await?;
    // A worker that looks before there is a limit writes down that there is none.
    let mut workers = scenario.workers(url, histories)?;
    workers.wait_until_registered(&*opened.reader).await?;
    let ends_at = time::now() + Duration::from_secs(scenario.seconds);
    tokio::try_join!(
        changer.change_until(ends_at, scenario.interval),
        feeder.feed_until(ends_at, &mut workers),
    )?;
    changer.set_all([CAPACITY_MAX as u32; LIMITS.len()]).await?;
    opened.store.cancel(vec![anchor]).await?;
    wait_until_done(&*opened.reader).await?;
    workers.end().await?;
    Ok(WorkDone { submitted: feeder.submitted, changes: changer.changes })
}

/// Makes the kinds and the job; lines may run dry.
async fn prepare(opened: &StoreHandle) -> anyhow::Result<TaskId> {
    let registration = Registration { kinds: kinds(), ..Registration::default() };
    opened.store.register(registration).await?;
    let job = JobSpec { concurrency: Some(1), ..JobSpec::new(QUOTA_JOB.to_owned()) };
    submit_keep_alive_task(opened, &[job]).await
}

/// Whoever changes the limits.
struct LimitChanger<'a> {
    opened: &'a StoreHandle,
    /// Where the changes are written, for the histories.
    harness: Writer,
    rng: SplitMix,
    /// What every limit has more than anybody is told.
    extra: u32,
    changes: u64,
}

impl LimitChanger<'_> {
    async fn change_until(&mut self, ends_at: Instant, interval: Duration) -> anyhow::Result<()> {
        let mut next = time::now();
        while time::now() < ends_at {
            self.change().await?;
            next += interval;
            time::sleep_until(next).await;
        }
        Ok(())
    }

    async fn change(&mut self) -> anyhow::Result<()> {
        let capacities = LIMITS.map(|_| 1 + self.rng.below(CAPACITY_MAX) as u32);
        self.set_all(capacities).await
    }

    async fn set_all(&mut self, capacities: [u32; LIMITS.len()]) -> anyhow::Result<()> {
        let pairs = LIMITS.into_iter().zip(capacities);
        try_join_all(pairs.map(|(name, capacity)| self.set(name, capacity))).await?;
        self.changes += LIMITS.len() as u64;
        Ok(())
    }

    async fn set(&self, name: &str, capacity: u32) -> anyhow::Result<()> {
        let (name, source) = (name.to_owned(), CapacitySource::Operator);
        let set = SetLimit { name: name.clone(), capacity: Some(capacity + self.extra), source };
        let version = self.opened.store.set_limit(set).await?;
        // Every version is here, so none was in force unseen.
        let (t_ns, process, capacity) = (monotonic_ns(), Process::current(), Some(capacity));
        let seen = LimitRecord { t_ns, process, name, capacity, version };
        Ok(self.harness.write(&Record::Limit(seen))?)
    }
}

/// Whoever submits.
struct TaskFeeder<'a> {
    opened: &'a StoreHandle,
    rng: SplitMix,
    submitted: u64,
}

impl TaskFeeder<'_> {
    async fn feed_until(
        &mut self,
        ends_at: Instant,
        workers: &mut Workers<'_>,
    ) -> anyhow::Result<()> {
        while time::now() < ends_at {
            workers.check_alive()?;
            self.feed().await?;
            time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn feed(&mut self) -> anyhow::Result<()> {
        for limit in self.opened.reader.limits().await? {
            let Limit { name, waiting, .. } = limit;
            let is_low = LIMITS.contains(&&*name) && waiting < WAITING_MIN;
            if is_low && self.rng.below(4) > 0 {
                let tasks: Vec<NewTask> = (0..REFILL_TASKS).map(|_| self.task(&name)).collect();
                self.submitted += tasks.len() as u64;
                submit(&*self.opened.store, &[], tasks).await?;
            }
        }
        Ok(())
    }

    /// A task for one of the lines.
    fn task(&mut self, limit: &str) -> NewTask {
        let task = NewTask::new("sleep", format!("{{\"ms\":{}}}", self.rng.below(8)));
        let both = self.rng.below(4) == 0;
        let (group, job) = match limit {
            "group:tide" => (Some(SIMPLE_GROUP), None),
            "group:swell" => (Some(SHARED_GROUP), both.then_some(QUOTA_JOB)),
            _ => (both.then_some(SHARED_GROUP), Some(QUOTA_JOB)),
        };
        NewTask { effective_group: group.map(str::to_owned), job: job.map(str::to_owned), ..task }
    }
}
