//! Bugs planted in the SQL of the store in a file and in how it keeps its transactions: the model
//! finds each of them, and finds nothing on the same sequences without them.

use tidegate_store::sqlite::InjectedBug;
use tidegate_testkit::model::{self, RunMode};
use tidegate_testkit::stores::SqliteBackend;
use tidegate_testkit::tier::Cases;

/// Within so many sequences a bug is found.
const CASES: u32 = 300;

/// Sequences that are tried without a bug.
const CASES_WITHOUT: Cases<u32> = Cases { small: 100, full: CASES };

/// The way that shows a bug: some need a second handle, some need several at once.
fn way(bug: InjectedBug) -> RunMode {
    match bug {
        InjectedBug::StaleCache => RunMode::Sequential(2),
        InjectedBug::LockAfterRead => RunMode::Parallel,
        _ => RunMode::Sequential(1),
    }
}

fn find(way: RunMode, cases: u32, planted: Option<InjectedBug>) -> Option<String> {
    model::find_fault(way, cases, 0, || Box::new(SqliteBackend::with_injected_bug(planted)))
}

#[test]
fn model_finds_every_injected_bug() {
    let mut survivors = Vec::new();
    for bug in InjectedBug::ALL {
        match find(way(*bug), CASES, Some(*bug)) {
            Some(fault) => println!("{bug:?}: {}", fault.lines().next().unwrap_or_default()),
            None => survivors.push(bug),
        }
    }
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}

#[test]
fn model_finds_nothing_without_injected_bug() {
    for way in [RunMode::Sequential(1), RunMode::Sequential(2), RunMode::Parallel] {
        assert_eq!(find(way, CASES_WITHOUT.of_this_run(), None), None, "{way:?}");
    }
}
