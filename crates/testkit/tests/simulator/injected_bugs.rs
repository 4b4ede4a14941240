//! Bugs that other engines shipped, planted in the rules: the simulator finds each of them. That it finds
//! nothing on the same seeds without them is shown by `seeds::simulation_of_many_seeds_keeps_every_invariant`.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::fault_injection::{InjectedBug, inject_bug};
use tidegate_testkit::simulator::{SimulationFailure, SimulationOptions, run};

use crate::seeds;

/// Within so many seeds a bug is found.
const SEEDS: u64 = 200;

const _: () =
    assert!(SEEDS <= seeds::SEEDS.small, "each of these seeds runs without a bug as well");

fn find(bug: InjectedBug) -> Option<SimulationFailure> {
    let _planted = inject_bug(bug);
    (1..=SEEDS).find_map(|seed| run(seed, &SimulationOptions::default()).0.err())
}

/// Looks for all bugs, one thread per core: a bug is planted in its own thread only.
fn find_all() -> Vec<(InjectedBug, Option<SimulationFailure>)> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        let search = || {
            let mut found = Vec::new();
            while let Some(bug) = InjectedBug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                found.push((*bug, find(*bug)));
            }
            found
        };
        let searches: Vec<_> = (0..threads).map(|_| scope.spawn(search)).collect();
        searches.into_iter().flat_map(|search| search.join().expect("a search ends")).collect()
    })
}

#[test]
fn simulator_finds_every_injected_bug() {
    let found = find_all();
    assert_eq!(found.len(), InjectedBug::ALL.len());
    for (bug, failure) in &found {
        match failure {
            Some(SimulationFailure { seed, commits, violation }) => println!(
                "{bug:?}: seed {seed}, commit {commits}: {} ({})",
                violation.rule, violation.details
            ),
            None => println!("{bug:?}: survived {SEEDS} seeds"),
        }
    }
    let survivors: Vec<InjectedBug> =
        found.iter().filter(|(_, failure)| failure.is_none()).map(|(bug, _)| *bug).collect();
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}
