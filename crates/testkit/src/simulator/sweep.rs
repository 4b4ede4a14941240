//! Many seeds, one thread per core.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::tables::WaitReason;

use super::{Coverage, SimulationFailure, SimulationOptions, SimulationReport, run};

/// What many runs did.
#[derive(Debug, Default)]
pub struct SweepSummary {
    /// Seeds that were run.
    pub seeds: u64,
    /// Verbs the stores executed.
    pub commits: u64,
    /// Those of them that changed something.
    pub transitions: u64,
    /// Tasks that ended.
    pub finished: u64,
    /// Tasks that were quarantined.
    pub quarantined: u64,
    /// Attempts that heartbeats released, because their worker did not know the lease.
    pub released: u64,
    /// Tasks seen in a line, by their class, summed over all transitions.
    pub waited: [u64; WaitReason::ALL.len()],
    /// Faults by verb.
    pub coverage: Coverage,
    /// Seeds that broke a rule, ascending.
    pub failures: Vec<SimulationFailure>,
}

impl SweepSummary {
    fn add(&mut self, report: &SimulationReport) {
        self.seeds += 1;
        self.commits += report.commits;
        self.transitions += report.transitions;
        self.finished += report.finished;
        self.quarantined += report.quarantined;
        self.released += report.released;
        self.waited.iter_mut().zip(report.wait_reasons).for_each(|(sum, more)| *sum += more);
        self.coverage.add(&report.coverage);
    }

    fn join(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.commits += other.commits;
        self.transitions += other.transitions;
        self.finished += other.finished;
        self.quarantined += other.quarantined;
        self.released += other.released;
        self.waited.iter_mut().zip(other.waited).for_each(|(sum, more)| *sum += more);
        self.coverage.add(&other.coverage);
        self.failures.extend(other.failures);
        self.failures.sort_by_key(|failure| failure.seed);
    }
}

impl fmt::Display for SweepSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, commits, transitions, finished: ended, quarantined, released, .. } = self;
        writeln!(
            f,
            "simulator: {seeds} seeds, {transitions} committed transitions in {commits} commits, \
             {ended} tasks ended ({quarantined} quarantined), {released} attempts \
             released, {} faults, {} violations",
            self.coverage.total(),
            self.failures.len()
        )?;
        let waited = WaitReason::ALL.iter().zip(self.waited);
        let waited: Vec<String> = waited.map(|(class, sum)| format!("{class:?} {sum}")).collect();
        writeln!(f, "in lines: {}", waited.join(", "))?;
        write!(f, "{}", self.coverage)
    }
}

/// Runs the seeds on all cores; stops early when several of them have failed.
pub fn sweep(seeds: Range<u64>, options: &SimulationOptions) -> SweepSummary {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(SweepSummary::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = SweepSummary::default();
                while own.failures.len() < 3 {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    match run(seed, options).0 {
                        Ok(report) => own.add(&report),
                        Err(failure) => own.failures.push(failure),
                    }
                }
                total.lock().expect("no thread panics").join(own);
            });
        }
    });
    total.into_inner().expect("no thread panics")
}

/// The seed to replay, from `TIDEGATE_SEED`.
pub fn seed_from_env() -> Option<u64> {
    std::env::var("TIDEGATE_SEED").ok()?.parse().ok()
}
