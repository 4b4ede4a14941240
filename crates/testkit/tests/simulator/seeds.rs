//! The simulator over many seeds: no rule breaks, every verb meets every fault, and a seed is a
//! run. `TIDEGATE_SEED=n` replays one seed; `TIDEGATE_SEEDS=n` runs that many instead of those of the tier.

use tidegate_core::tables::WaitReason;
use tidegate_testkit::simulator::{
    SimulationOptions, Spread, fair_shares, heavy_tasks_make_way, run, seed_from_env, sweep,
    two_full_limits,
};
use tidegate_testkit::tier::Cases;

/// Seeds of a run in each tier. Each makes at least `Options::default().transitions`.
pub(crate) const SEEDS: Cases<u64> = Cases { small: 200, full: 4000 };

/// Seeds of the scenarios with two full limits, and with fair shares.
const TWO_LIMITS_SEEDS: Cases<u64> = Cases { small: 100, full: 2000 };
const FAIR_SHARES_SEEDS: Cases<u64> = Cases { small: 40, full: 200 };

/// Committed transitions that every seed makes on average.
const TRANSITIONS_MIN: u64 = 5000;

/// Each verb meets each fault at least once in so many seeds, on average.
const SEEDS_PER_FAULT: u64 = 40;

/// Lines of the trace printed of a seed that fails.
const TAIL: usize = 60;

#[test]
fn simulation_of_many_seeds_keeps_every_invariant() {
    let seeds = SEEDS.or_from("TIDEGATE_SEEDS");
    let summary = sweep(1..seeds + 1, &SimulationOptions::default());
    println!("{summary}");
    let failures: Vec<String> = summary.failures.iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(summary.transitions >= TRANSITIONS_MIN * seeds, "{} transitions", summary.transitions);
    let faults_min = seeds / SEEDS_PER_FAULT;
    let rare = summary.coverage.below(faults_min);
    assert!(rare.is_empty(), "pairs met less than {faults_min} times: {rare:?}");
    for class in WaitReason::ALL {
        assert!(summary.waited[class as usize] >= faults_min, "{class:?} hardly ever happens");
    }
    assert!(summary.quarantined >= faults_min, "{} tasks were quarantined", summary.quarantined);
    assert!(summary.released >= faults_min, "{} attempts were released", summary.released);
}

#[test]
fn simulation_replays_seed_from_environment() {
    let Some(seed) = seed_from_env() else { return };
    let (outcome, text) =
        run(seed, &SimulationOptions { is_text: true, ..SimulationOptions::default() });
    let lines: Vec<&str> = text.lines().collect();
    println!("{}", lines[lines.len().saturating_sub(TAIL)..].join("\n"));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn simulation_of_same_seed_is_deterministic() {
    let options =
        SimulationOptions { is_text: true, transitions: 1000, ..SimulationOptions::default() };
    let mut traces = Vec::new();
    for seed in 1..=20 {
        let (first, second) = (run(seed, &options), run(seed, &options));
        assert_eq!(first.0.unwrap(), second.0.unwrap());
        assert_eq!(first.1, second.1, "seed {seed}");
        traces.push(first.1);
    }
    traces.dedup();
    assert_eq!(traces.len(), 20, "different seeds are different runs");
}

/// Wall clocks only: those that measure durations are wrong in every run, and the store's jumps.
#[test]
fn wrong_wall_clocks_do_not_change_the_run() {
    for seed in 1..=20 {
        let hash = |has_skews| {
            let options =
                SimulationOptions { has_skews, transitions: 1000, ..SimulationOptions::default() };
            run(seed, &options).0.unwrap().trace_hash
        };
        assert_eq!(hash(true), hash(false), "seed {seed}");
    }
}

fn worst_spread(crosses: bool) -> Spread {
    let mut worst = Spread(0.0);
    for seed in 1..=FAIR_SHARES_SEEDS.of_this_run() {
        let spread = fair_shares(seed, crosses).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        worst = if spread > worst { spread } else { worst };
    }
    worst
}

#[test]
fn job_starts_follow_weights() {
    let worst = worst_spread(false);
    println!("fairness: jobs came apart by at most {:.2} of what is allowed", worst.0);
}

#[test]
fn job_starts_follow_weights_across_ageing_intervals() {
    let worst = worst_spread(true);
    println!("across intervals: jobs came apart by at most {:.2} of what is allowed", worst.0);
}

#[test]
fn too_heavy_tasks_do_not_block_their_job() {
    assert!(heavy_tasks_make_way().unwrap());
}

#[test]
fn task_of_two_full_limits_is_admitted_within_bound() {
    let mut most = (0, 1);
    for seed in 1..=TWO_LIMITS_SEEDS.of_this_run() {
        let found = two_full_limits(seed).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        if f64::from(found.0) / f64::from(found.1) > f64::from(most.0) / f64::from(most.1) {
            most = found;
        }
    }
    println!("two full limits: at worst {} finishes where {} are allowed", most.0, most.1);
}
