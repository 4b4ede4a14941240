//! Many worker processes under limits. With kills, a random one is killed every so often and
//! started again at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use tidegate_core::invariants::check_idle_store;
use tidegate_core::reader::Snapshot;
use tidegate_core::{CapacitySource, NewTask, Registration, SetLimit, TaskState};
use tidegate_engine::time;
use tidegate_store::{StoreHandle, StoreLocation};

use super::target::Target;
use super::task_mix::{GROUPS, JOB, SplitMix, jobs, kinds, tasks};
use super::workers::{Histories, WorkerCommand, Workers};
use super::{has_unfinished_tasks, submit};
use crate::clock::Stopwatch;
use crate::history::{ExpectedLimits, Process, Record, Report, SignalRecord, Writer, verify};
use crate::report::ResultLine;

/// Between two looks at the fleet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Between two counts of what is left while workers are still to be killed.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// For the processes to start, before the first tasks are due.
const START_DELAY: Duration = Duration::from_secs(2);

/// What to do.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// The store. Default: a temporary SQLite file.
    pub url: Option<String>,
    /// Tasks to begin with. While workers are still to be killed, as many as half of them are
    /// always left: more are submitted where they are not.
    pub tasks: u64,
    /// Worker processes.
    pub processes: u32,
    /// Handlers that run at once in each.
    pub concurrency: u32,
    /// How long tasks behind the largest limit hold their slot at most.
    pub hold_ms: u64,
    /// Workers to kill, one after another.
    pub kills: u32,
    /// Between two kills.
    pub kill_interval: Duration,
    /// The lease of the workers.
    pub lease: Duration,
    /// Decides the mixture of tasks and who is killed.
    pub seed: u64,
    /// Raises every limit by one in the store behind the checker's back, which must then see it.
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
    /// What the histories prove.
    pub report: Report,
    /// What is not as it must be.
    pub faults: Vec<String>,
}

/// Runs a fleet until all is done, and checks everything.
pub async fn fleet(fleet: &Fleet) -> anyhow::Result<Outcome> {
    let target = Target::new(fleet.url.as_deref())?;
    ensure!(target.place != StoreLocation::Memory, "the memory store has one process only");
    let opened = target.open().await?;
    let before = counts(&opened).await?;
    prepare(&opened, u32::from(fleet.inject_over_limit)).await?;
    let histories = Histories::new(fleet.histories.as_deref())?;
    let mut run = FleetRun::new(fleet, &opened, &histories)?;
    // All are due at once, when the fleet is up and idle.
    let due_at = time::now() + START_DELAY;
    run.add(fleet.tasks, START_DELAY).await?;
    let mut workers = fleet.workers(&target.url, &histories)?;
    time::sleep_until(due_at).await;
    let stopwatch = Stopwatch::start();
    run.until_done(&mut workers).await?;
    let seconds = stopwatch.seconds();
    let (submitted, kills) = (run.submitted, run.kills);
    workers.end().await?;
    let report = verify(&histories.files()?, &expected_limits())?;
    let ended = difference(counts(&opened).await?, &before);
    let mut faults: Vec<String> = completion_fault(submitted, &ended).into_iter().collect();
    let snapshot = opened.reader.snapshot().await?;
    faults.extend(leftover_faults(&snapshot));
    if fleet.kills == 0 {
        // With kills, slots of the dead are idle until their leases end.
        faults.extend(unreached_limits(&report));
    }
    let line = ResultLine::new(fleet.name(), target.name(), submitted, seconds)
        .with_violations(report.violations.total())
        .with_extra("completed", ended.get(&TaskState::Completed).copied().unwrap_or_default())
        .with_extra("faults", faults.len() as u64)
        .with_extra("kills", kills);
    Ok(Outcome { line: fleet.add_figures(line, &report), report, faults })
}

/// What is not as it must be when all is done.
pub(super) fn leftover_faults(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    check_idle_store(snapshot).into_iter().map(|fault| format!("{}: {}", fault.rule, fault.details))
}

/// The limits as everybody thinks they are.
pub(super) fn expected_limits() -> ExpectedLimits {
    GROUPS
        .iter()
        .fold(ExpectedLimits::default(), |expected, (group, capacity)| {
            expected.with(format!("group:{group}"), *capacity)
        })
        .with(format!("job:{}", JOB.0), JOB.1)
}

pub(super) async fn counts(opened: &StoreHandle) -> anyhow::Result<BTreeMap<TaskState, u64>> {
    Ok(opened.reader.task_counts().await?)
}

fn difference(
    mut after: BTreeMap<TaskState, u64>,
    before: &BTreeMap<TaskState, u64>,
) -> BTreeMap<TaskState, u64> {
    for (state, number) in &mut after {
        *number -= before.get(state).copied().unwrap_or_default().min(*number);
    }
    after
}

/// Every task must have completed: no handler fails, and the kinds survive every kill.
pub(super) fn completion_fault(submitted: u64, ended: &BTreeMap<TaskState, u64>) -> Option<String> {
    let completed = ended.get(&TaskState::Completed).copied().unwrap_or_default();
    let fault = || format!("{submitted} tasks were submitted, {completed} completed: {ended:?}");
    (completed != submitted).then(fault)
}

/// A limit that was not reached proves little.
fn unreached_limits(report: &Report) -> Vec<String> {
    let missed = report.limits.iter().filter(|limit| limit.expected && !limit.reached);
    missed
        .map(|limit| format!("{} was not reached: at most {} held", limit.name, limit.held_max))
        .collect()
}

/// Makes the kinds and limits of the mixture, each limit with so much more than anybody is told.
pub(super) async fn prepare(opened: &StoreHandle, extra: u32) -> anyhow::Result<()> {
    let store = &*opened.store;
    let limits = GROUPS.iter().map(|(group, capacity)| ((*group).to_owned(), capacity + extra));
    let registration = Registration {
        kinds: kinds(),
        limits: limits.collect(),
        source: Some(CapacitySource::Configuration),
        ..Registration::default()
    };
    store.register(registration).await?;
    // The job is made by its first submit.
    submit(store, &jobs(), [NewTask::new("noop", "null")]).await?;
    let name = format!("job:{}", JOB.0);
    let capacity = Some(JOB.1 + extra);
    store.set_limit(SetLimit { name, capacity, source: CapacitySource::Configuration }).await?;
    Ok(())
}

impl Fleet {
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

    fn name(&self) -> &'static str {
        if self.kills > 0 { "chaos" } else { "limits" }
    }

    fn add_figures(&self, line: ResultLine, report: &Report) -> ResultLine {
        let mut line = line
            .with_extra("processes", self.processes)
            .with_extra("permits", self.processes * self.concurrency)
            .with_extra("seed", self.seed)
            .with_extra("recovered", report.recovery.count)
            .with_extra("recovery_p50_ms", report.recovery.p50_ms)
            .with_extra("recovery_max_ms", report.recovery.max_ms);
        for limit in report.limits.iter().filter(|limit| limit.expected) {
            let most = format!("{}/{}", limit.held_max, limit.capacity.unwrap_or_default());
            line = line.with_extra(limit.name.clone(), most);
        }
        line
    }
}

/// A fleet at work.
struct FleetRun<'a> {
    fleet: &'a Fleet,
    opened: &'a StoreHandle,
    /// Where the kills are written.
    harness: Writer,
    /// Mixes the tasks.
    mix_rng: SplitMix,
    /// Chooses who is killed.
    kill_rng: SplitMix,
    submitted: u64,
    kills: u32,
}

impl<'a> FleetRun<'a> {
    fn new(
        fleet: &'a Fleet,
        opened: &'a StoreHandle,
        histories: &Histories,
    ) -> anyhow::Result<Self> {
        let harness = Writer::append(histories.file("harness"))?;
        Ok(Self {
            fleet,
            opened,
            harness,
            mix_rng: SplitMix::new(fleet.seed),
            kill_rng: SplitMix::new(!fleet.seed),
            // The one that made the job.
            submitted: 1,
            kills: 0,
        })
    }

    async fn add(&mut self, number: u64, delay: Duration) -> anyhow::Result<()> {
        let mut tasks = tasks(number, self.fleet.hold_ms, &mut self.mix_rng);
        if !delay.is_zero() {
            let run_at = self.opened.reader.now().await? + delay.as_millis() as i64;
            tasks.iter_mut().for_each(|task| task.run_at = Some(run_at));
        }
        submit(&*self.opened.store, &[], tasks).await?;
        self.submitted += number;
        Ok(())
    }

    /// Kills now and then until all is done. A worker that fails ends the run.
    async fn until_done(&mut self, workers: &mut Workers<'_>) -> anyhow::Result<()> {
        let mut next_kill = time::now() + self.fleet.kill_interval;
        let mut next_count = time::now();
        while self.kills < self.fleet.kills {
            time::sleep_until(next_kill.min(next_count)).await;
            if time::now() >= next_kill {
                next_kill += self.fleet.kill_interval;
                self.kill_one(workers).await?;
            }
            if time::now() >= next_count {
                next_count += COUNT_INTERVAL;
                workers.check_alive()?;
                self.top_up().await?;
            }
        }
        while has_unfinished_tasks(&*self.opened.reader).await? {
            workers.check_alive()?;
            time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn top_up(&mut self) -> anyhow::Result<()> {
        let counts = counts(self.opened).await?;
        let unfinished = counts.iter().filter(|(state, _)| !state.is_final());
        let half = self.fleet.tasks / 2;
        if unfinished.map(|(_, number)| number).sum::<u64>() < half {
            self.add(half, Duration::ZERO).await?;
        }
        Ok(())
    }

    async fn kill_one(&mut self, workers: &mut Workers<'_>) -> anyhow::Result<()> {
        let victim = self.kill_rng.below(workers.count() as u64) as usize;
        if let Some(pid) = workers.kill(victim).await? {
            // It is dead by now: nothing of it happens after this time.
            self.harness.write(&Record::Kill(SignalRecord::now(Process::by_pid(pid))))?;
        }
        self.kills += 1;
        workers.replace(victim)
    }
}
