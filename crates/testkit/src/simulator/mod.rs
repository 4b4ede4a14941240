//! A simulator: the real rules over the reference tables, workers that are killed, stopped and
//! cut off, and a network that loses, delays and repeats. One seed is one run; the same seed
//! gives the same run on every machine.
//!
//! Every committed state is judged: by [`check`](tidegate_core::check::check), and by an auditor
//! that keeps its own books from the requests and answers alone. At the end all faults heal and
//! the workers must come to rest with no repair.
//!
//! | file | what it holds |
//! |---|---|
//! | `world` | what a seed's kinds, limits, jobs and tasks look like, and its faults' rates |
//! | `process`, `handler` | a worker that also submits, cancels, operates and keeps |
//! | `message` | the verbs as requests, and the store's side of them |
//! | `faults` | the network and the nemesis |
//! | `simulation`, `event` | the loop |
//! | `auditor`, `books` | what must be so, worked out from the answers |
//! | `evidence` | what must hold of each committed state |
//! | `fairness`, `direct` | scenarios about order, without faults |
//! | `sweep` | many seeds on all cores |

mod coverage;
mod direct;
mod event;
mod fairness;
mod faults;
mod handler;
mod message;
mod process;
mod response_checks;
mod rng;
mod scenario;
mod shadow_model;
mod simulation;
mod state_checks;
mod sweep;
mod trace;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::invariants::Violation;
use tidegate_core::tables::WaitReason;

pub use coverage::{Coverage, Fault};
pub use fairness::{Spread, fair_shares, finishes_max, heavy_tasks_make_way, two_full_limits};
pub use message::Verb;
pub use sweep::{SweepSummary, seed_from_env, sweep};

/// How a seed is run.
#[derive(Debug, Clone)]
pub struct SimulationOptions {
    /// Commits that changed something, before the run comes to rest.
    pub transitions: u64,
    /// Whether wall clocks of processes may be wrong. They must not matter.
    pub has_skews: bool,
    /// Whether the trace is kept as text.
    pub is_text: bool,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        Self { transitions: 5_000, has_skews: true, is_text: false }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimulationReport {
    /// Verbs the store executed.
    pub commits: u64,
    /// Those of them that changed more than the time.
    pub transitions: u64,
    /// Tasks that ended.
    pub finished: u64,
    /// Those of them whose process died too often.
    pub quarantined: u64,
    /// Attempts that heartbeats released, because their worker did not know the lease.
    pub released: u64,
    /// Tasks seen in a line, by their class, summed over all transitions.
    pub wait_reasons: [u64; WaitReason::ALL.len()],
    /// Faults by verb.
    pub coverage: Coverage,
    /// A number over all commits: equal for equal runs.
    pub trace_hash: u64,
}

/// A run that broke a rule.
#[derive(Debug, Clone)]
pub struct SimulationFailure {
    /// The seed.
    pub seed: u64,
    /// Verbs the store had executed.
    pub commits: u64,
    /// What was broken.
    pub violation: Violation,
}

impl fmt::Display for SimulationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, commits, violation } = self;
        writeln!(f, "seed {seed} breaks a rule at commit {commits}: {}", violation.rule)?;
        writeln!(f, "found: {}", violation.details)?;
        write!(
            f,
            "replay: TIDEGATE_SEED={seed} cargo test -p tidegate-testkit --test simulator \
             simulation_replays_seed_from_environment -- --nocapture"
        )
    }
}

/// Runs one seed. The text is the trace, if it was asked for.
pub fn run(
    seed: u64,
    options: &SimulationOptions,
) -> (Result<SimulationReport, SimulationFailure>, String) {
    let mut simulation = simulation::Simulation::new(seed, options);
    let run = catch_unwind(AssertUnwindSafe(|| simulation.run(options.transitions)));
    let verdict = run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(Violation { rule: "no rule panics", details: text.unwrap_or_default() })
    });
    let (report, text) = simulation.finish();
    match verdict {
        Ok(()) => (Ok(report), text),
        Err(violation) => {
            (Err(SimulationFailure { seed, commits: report.commits, violation }), text)
        }
    }
}
