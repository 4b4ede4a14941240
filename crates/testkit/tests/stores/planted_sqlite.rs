//! Bugs planted in the SQL of the store in a file and in how it keeps its transactions: the model
//! finds each of them, and finds nothing on the same sequences without them.

use tidegate_store::sqlite::Bug;
use tidegate_testkit::model::{self, Way};
use tidegate_testkit::stores::InFile;
use tidegate_testkit::tier::Cases;

/// Within so many sequences a bug is found.
const CASES: u32 = 300;

/// Sequences that are tried without a bug.
const CASES_WITHOUT: Cases<u32> = Cases { small: 100, full: CASES };

/// The way that shows a bug: some need a second handle, some need several at once.
fn way(bug: Bug) -> Way {
    match bug {
        Bug::StaleCache => Way::InTurn(2),
        Bug::LateLock => Way::AtOnce,
        _ => Way::InTurn(1),
    }
}

fn find(way: Way, cases: u32, planted: Option<Bug>) -> Option<String> {
    model::find(way, cases, 0, || Box::new(InFile::with(planted)))
}

#[test]
fn every_planted_bug_is_found() {
    let mut survivors = Vec::new();
    for bug in Bug::ALL {
        match find(way(*bug), CASES, Some(*bug)) {
            Some(fault) => println!("{bug:?}: {}", fault.lines().next().unwrap_or_default()),
            None => survivors.push(bug),
        }
    }
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}

#[test]
fn without_a_bug_the_same_sequences_are_clean() {
    for way in [Way::InTurn(1), Way::InTurn(2), Way::AtOnce] {
        assert_eq!(find(way, CASES_WITHOUT.of_this_run(), None), None, "{way:?}");
    }
}
