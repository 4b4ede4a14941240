//! Many worker processes under limits. With kills, a random one is killed every so often and
//! started again at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use tidegate_core::check::check_at_rest;
use tidegate_core::inspect::Snapshot;
use tidegate_core::{NewTask, Registration, SetLimit, Source, State};
use tidegate_engine::time;
use tidegate_store::{Opened, Place};

use super::mixture::{Dice, GROUPS, JOB, jobs, kinds, tasks};
use super::target::Target;
use super::workers::{Histories, Job, Workers};
use super::{has_work, submit};
use crate::clock::Stopwatch;
use crate::history::{Expected, Process, Record, Report, Signal, Writer, verify};
use crate::report::Line;

/// Between two looks at the fleet.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Between two counts of what is left while workers are still to be killed.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// For the processes to start, before the first tasks are due.
const START_UP: Duration = Duration::from_secs(2);

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
    pub permits: u32,
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
    /// What the histories prove.
    pub report: Report,
    /// What is not as it must be.
    pub faults: Vec<String>,
}

/// Runs a fleet until all is done, and checks everything.
pub async fn fleet(fleet: &Fleet) -> anyhow::Result<Outcome> {
    let target = Target::new(fleet.url.as_deref())?;
    ensure!(target.place != Place::Memory, "the memory store has one process only");
    let opened = target.open().await?;
    let before = counts(&opened).await?;
    prepare(&opened, u32::from(fleet.secretly_raise)).await?;
    let histories = Histories::new(fleet.histories.as_deref())?;
    let mut run = Run::new(fleet, &opened, &histories)?;
    // All are due at once, when the fleet is up and idle.
    let due_at = time::now() + START_UP;
    run.add(fleet.tasks, START_UP).await?;
    let mut workers = fleet.workers(&target.url, &histories)?;
    time::sleep_until(due_at).await;
    let stopwatch = Stopwatch::start();
    run.until_done(&mut workers).await?;
    let seconds = stopwatch.seconds();
    let (submitted, kills) = (run.submitted, run.kills);
    workers.end().await?;
    let report = verify(&histories.files()?, &expected())?;
    let ended = minus(counts(&opened).await?, &before);
    let mut faults: Vec<String> = accounted(submitted, &ended).into_iter().collect();
    let snapshot = opened.inspect.snapshot().await?;
    faults.extend(left_over(&snapshot));
    if fleet.kills == 0 {
        // With kills, slots of the dead are idle until their leases end.
        faults.extend(not_reached(&report));
    }
    let line = Line::new(fleet.name(), target.name(), submitted, seconds)
        .with_violations(report.violations.total())
        .with_extra("completed", ended.get(&State::Completed).copied().unwrap_or_default())
        .with_extra("faults", faults.len() as u64)
        .with_extra("kills", kills);
    Ok(Outcome { line: fleet.described(line, &report), report, faults })
}

/// What is not as it must be when all is done.
pub(super) fn left_over(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    check_at_rest(snapshot).into_iter().map(|fault| format!("{}: {}", fault.rule, fault.found))
}

/// The limits as everybody thinks they are.
pub(super) fn expected() -> Expected {
    GROUPS
        .iter()
        .fold(Expected::default(), |expected, (group, capacity)| {
            expected.with(format!("group:{group}"), *capacity)
        })
        .with(format!("job:{}", JOB.0), JOB.1)
}

pub(super) async fn counts(opened: &Opened) -> anyhow::Result<BTreeMap<State, u64>> {
    Ok(opened.inspect.counts().await?)
}

fn minus(mut after: BTreeMap<State, u64>, before: &BTreeMap<State, u64>) -> BTreeMap<State, u64> {
    for (state, number) in &mut after {
        *number -= before.get(state).copied().unwrap_or_default().min(*number);
    }
    after
}

/// Every task must have completed: no handler fails, and the kinds survive every kill.
pub(super) fn accounted(submitted: u64, ended: &BTreeMap<State, u64>) -> Option<String> {
    let completed = ended.get(&State::Completed).copied().unwrap_or_default();
    let fault = || format!("{submitted} tasks were submitted, {completed} completed: {ended:?}");
    (completed != submitted).then(fault)
}

/// A limit that was not reached proves little.
fn not_reached(report: &Report) -> Vec<String> {
    let missed = report.limits.iter().filter(|limit| limit.expected && !limit.reached);
    missed
        .map(|limit| format!("{} was not reached: at most {} held", limit.name, limit.held_max))
        .collect()
}

/// Makes the kinds and limits of the mixture, each limit with so much more than anybody is told.
pub(super) async fn prepare(opened: &Opened, extra: u32) -> anyhow::Result<()> {
    let store = &*opened.store;
    let limits = GROUPS.iter().map(|(group, capacity)| ((*group).to_owned(), capacity + extra));
    let registration = Registration {
        kinds: kinds(),
        limits: limits.collect(),
        source: Some(Source::Configuration),
        ..Registration::default()
    };
    store.register(registration).await?;
    // The job is made by its first submit.
    submit(store, &jobs(), [NewTask::new("noop", "null")]).await?;
    let name = format!("job:{}", JOB.0);
    let capacity = Some(JOB.1 + extra);
    store.set_limit(SetLimit { name, capacity, source: Source::Configuration }).await?;
    Ok(())
}

impl Fleet {
    fn workers<'a>(
        &'a self,
        url: &'a str,
        histories: &'a Histories,
    ) -> anyhow::Result<Workers<'a>> {
        let (binary, permits, lease) = (&self.binary, self.permits, self.lease);
        let job = Job { binary, url, permits, lease, calls: None, until_idle: true };
        Workers::start(job, histories, self.processes)
    }

    fn name(&self) -> &'static str {
        if self.kills > 0 { "chaos" } else { "limits" }
    }

    fn described(&self, line: Line, report: &Report) -> Line {
        let mut line = line
            .with_extra("processes", self.processes)
            .with_extra("permits", self.processes * self.permits)
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
struct Run<'a> {
    fleet: &'a Fleet,
    opened: &'a Opened,
    /// Where the kills are written.
    harness: Writer,
    /// Mixes the tasks.
    mixing: Dice,
    /// Chooses who is killed.
    killing: Dice,
    submitted: u64,
    kills: u32,
}

impl<'a> Run<'a> {
    fn new(fleet: &'a Fleet, opened: &'a Opened, histories: &Histories) -> anyhow::Result<Self> {
        let harness = Writer::append(histories.file("harness"))?;
        Ok(Self {
            fleet,
            opened,
            harness,
            mixing: Dice::new(fleet.seed),
            killing: Dice::new(!fleet.seed),
            // The one that made the job.
            submitted: 1,
            kills: 0,
        })
    }

    async fn add(&mut self, number: u64, delay: Duration) -> anyhow::Result<()> {
        let mut tasks = tasks(number, self.fleet.hold_ms, &mut self.mixing);
        if !delay.is_zero() {
            let run_at = self.opened.inspect.now().await? + delay.as_millis() as i64;
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
        while has_work(&*self.opened.inspect).await? {
            workers.check_alive()?;
            time::sleep(LOOK_INTERVAL).await;
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
        let victim = self.killing.roll(workers.number() as u64) as usize;
        if let Some(pid) = workers.kill(victim).await? {
            // It is dead by now: nothing of it happens after this time.
            self.harness.write(&Record::Kill(Signal::now(Process::by_pid(pid))))?;
        }
        self.kills += 1;
        workers.replace(victim)
    }
}
