//! Many worker processes under limits that somebody changes all the time. Every commit of the store
//! is audited: none that takes a slot leaves more held than the limit in force.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use tidegate_core::{JobSpec, Limit, NewTask, Registration, SetLimit, Source, State, TaskId};
use tidegate_engine::time;
use tidegate_store::{Opened, Place};
use tokio::sync::oneshot;

use super::fleet::{accounted, counts, left_over};
use super::mixture::{Dice, kinds};
use super::target::Target;
use super::workers::{Histories, Job, Workers};
use super::{anchor, submit, until_done};
use crate::audit::{Audit, Findings};
use crate::clock::{Stopwatch, monotonic_ns};
use crate::history::{Expected, LimitSeen, Process, Record, Report, Writer, verify};
use crate::report::Line;
use crate::server::{Brief, Programs};

/// What a server needs for the audit, and the connections of a fleet.
const SETTINGS: [&str; 2] = ["wal_level=logical", "max_connections=300"];

/// Two groups and the quota of a job. The tasks of one need nothing else, so its slots change hands
/// without its lock; those of the other may need the quota too, and go the general way.
const TIDE: &str = "tide";
const SWELL: &str = "swell";
const JOB: &str = "surge";
const LIMITS: [&str; 3] = ["group:tide", "group:swell", "job:surge"];

/// Capacities are between 1 and this.
const CAPACITY_MAX: u64 = 50;

/// A line with fewer waiting gets new tasks, so many at a time; now and then it is left to run dry.
const LINE_LOW: u32 = 300;
const TASKS_MORE: u64 = 600;

/// Between two looks at the lines.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

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
    pub permits: u32,
    /// The lease of the workers.
    pub lease: Duration,
    /// Decides the capacities and the mixture of tasks.
    pub seed: u64,
    /// Gives every limit one more than the audit is told, which must then see it.
    pub secretly_raise: bool,
    /// Where to leave the histories. Default: nowhere.
    pub histories: Option<PathBuf>,
    /// The program that is `tidegate`.
    pub binary: PathBuf,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The line to print.
    pub line: Line,
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
        self.findings.violations == 0 && self.report.clean() && self.faults.is_empty()
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
        matches!(target.place, Place::Postgres(_)),
        "the audit reads the log of a PostgreSQL; --store has to name one"
    );
    let opened = target.open().await?;
    let before = counts(&opened).await?;
    let audit = Audit::begin(&url, u32::from(scenario.secretly_raise)).await?;
    let histories = Histories::new(scenario.histories.as_deref())?;
    let (done, is_done) = oneshot::channel();
    let audit = tokio::spawn(follow(audit, is_done));
    let stopwatch = Stopwatch::start();
    let ran = work(scenario, &opened, &url, &histories).await?;
    let seconds = stopwatch.seconds();
    let _ = done.send(());
    let findings = audit.await.context("wait for the audit")??;
    let report = verify(&histories.files()?, &Expected::default())?;
    let mut ended = counts(&opened).await?;
    for (state, number) in &before {
        *ended.entry(*state).or_default() -= number;
    }
    let mut faults: Vec<String> = accounted(ran.submitted, &ended).into_iter().collect();
    faults.extend(left_over(&opened.inspect.snapshot().await?));
    faults.extend(proves_little(&findings, ran.changes));
    let line = Line::new("limit-changes", target.name(), ran.submitted, seconds)
        .with_violations(findings.violations + report.violations.total())
        .with_extra("completed", ended.get(&State::Completed).copied().unwrap_or_default())
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
fn proves_little(findings: &Findings, changes: u64) -> Vec<String> {
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
async fn follow(mut audit: Audit, mut done: oneshot::Receiver<()>) -> anyhow::Result<Findings> {
    loop {
        tokio::select! {
            _ = &mut done => return audit.end().await,
            () = time::sleep(AUDIT_INTERVAL) => audit.catch_up().await?,
        }
    }
}

impl LimitChanges {
    async fn server(&self) -> anyhow::Result<Option<Brief>> {
        if self.url.is_some() {
            return Ok(None);
        }
        let programs = Programs::find(self.pg_bin.as_deref())?;
        let start = move || Brief::start(programs, &SETTINGS);
        let server = tokio::task::spawn_blocking(start).await.context("start a server")??;
        Ok(Some(server))
    }

    fn workers<'a>(
        &'a self,
        url: &'a str,
        histories: &'a Histories,
    ) -> anyhow::Result<Workers<'a>> {
        let (binary, permits, lease) = (&self.binary, self.permits, self.lease);
        let job = Job { binary, url, permits, lease, calls: None, until_idle: true };
        Workers::start(job, histories, self.processes)
    }
}

/// What was done.
struct Ran {
    submitted: u64,
    changes: u64,
}

/// Changes limits under load for a while, and then lets all of it end.
async fn work(
    scenario: &LimitChanges,
    opened: &Opened,
    url: &str,
    histories: &Histories,
) -> anyhow::Result<Ran> {
    let anchor = prepare(opened).await?;
    let harness = Writer::append(histories.file("harness"))?;
    let extra = u32::from(scenario.secretly_raise);
    let dice = Dice::new(scenario.seed);
    let mut changer = Changer { opened, harness, dice, extra, changes: 0 };
    changer.change().await?;
    let mut feeder = Feeder { opened, dice: Dice::new(!scenario.seed), submitted: 0 };
    feeder.feed().await?;
    // A worker that looks before there is a limit writes down that there is none.
    let mut workers = scenario.workers(url, histories)?;
    workers.until_heard(&*opened.inspect).await?;
    let ends_at = time::now() + Duration::from_secs(scenario.seconds);
    tokio::try_join!(
        changer.change_until(ends_at, scenario.interval),
        feeder.feed_until(ends_at, &mut workers),
    )?;
    changer.set_all([CAPACITY_MAX as u32; LIMITS.len()]).await?;
    opened.store.cancel(vec![anchor]).await?;
    until_done(&*opened.inspect).await?;
    workers.end().await?;
    Ok(Ran { submitted: feeder.submitted, changes: changer.changes })
}

/// Makes the kinds and the job; lines may run dry.
async fn prepare(opened: &Opened) -> anyhow::Result<TaskId> {
    let registration = Registration { kinds: kinds(), ..Registration::default() };
    opened.store.register(registration).await?;
    let job = JobSpec { concurrency: Some(1), ..JobSpec::new(JOB.to_owned()) };
    anchor(opened, &[job]).await
}

/// Whoever changes the limits.
struct Changer<'a> {
    opened: &'a Opened,
    /// Where the changes are written, for the histories.
    harness: Writer,
    dice: Dice,
    /// What every limit has more than anybody is told.
    extra: u32,
    changes: u64,
}

impl Changer<'_> {
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
        let capacities = LIMITS.map(|_| 1 + self.dice.roll(CAPACITY_MAX) as u32);
        self.set_all(capacities).await
    }

    async fn set_all(&mut self, capacities: [u32; LIMITS.len()]) -> anyhow::Result<()> {
        let pairs = LIMITS.into_iter().zip(capacities);
        try_join_all(pairs.map(|(name, capacity)| self.set(name, capacity))).await?;
        self.changes += LIMITS.len() as u64;
        Ok(())
    }

    async fn set(&self, name: &str, capacity: u32) -> anyhow::Result<()> {
        let (name, source) = (name.to_owned(), Source::Operator);
        let set = SetLimit { name: name.clone(), capacity: Some(capacity + self.extra), source };
        let version = self.opened.store.set_limit(set).await?;
        // Every version is here, so none was in force unseen.
        let (t_ns, process, capacity) = (monotonic_ns(), Process::current(), Some(capacity));
        let seen = LimitSeen { t_ns, process, name, capacity, version };
        Ok(self.harness.write(&Record::Limit(seen))?)
    }
}

/// Whoever submits.
struct Feeder<'a> {
    opened: &'a Opened,
    dice: Dice,
    submitted: u64,
}

impl Feeder<'_> {
    async fn feed_until(
        &mut self,
        ends_at: Instant,
        workers: &mut Workers<'_>,
    ) -> anyhow::Result<()> {
        while time::now() < ends_at {
            workers.check_alive()?;
            self.feed().await?;
            time::sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    async fn feed(&mut self) -> anyhow::Result<()> {
        for limit in self.opened.inspect.limits().await? {
            let Limit { name, waiting, .. } = limit;
            let is_low = LIMITS.contains(&&*name) && waiting < LINE_LOW;
            if is_low && self.dice.roll(4) > 0 {
                let tasks: Vec<NewTask> = (0..TASKS_MORE).map(|_| self.task(&name)).collect();
                self.submitted += tasks.len() as u64;
                submit(&*self.opened.store, &[], tasks).await?;
            }
        }
        Ok(())
    }

    /// A task for one of the lines.
    fn task(&mut self, limit: &str) -> NewTask {
        let task = NewTask::new("sleep", format!("{{\"ms\":{}}}", self.dice.roll(8)));
        let both = self.dice.roll(4) == 0;
        let (group, job) = match limit {
            "group:tide" => (Some(TIDE), None),
            "group:swell" => (Some(SWELL), both.then_some(JOB)),
            _ => (both.then_some(SWELL), Some(JOB)),
        };
        NewTask { group: group.map(str::to_owned), job: job.map(str::to_owned), ..task }
    }
}
