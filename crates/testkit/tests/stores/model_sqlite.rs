//! The store in a file against the reference, over generated sequences.

use tidegate_testkit::model;
use tidegate_testkit::stores::SqliteBackend;
use tidegate_testkit::tier::Cases;

#[test]
fn sqlite_store_equals_reference_after_every_operation() {
    model::assert_equals_reference::<SqliteBackend>(Cases { small: 100, full: 300 });
}

#[test]
fn sqlite_store_through_two_handles_equals_reference() {
    model::assert_equals_reference_with_two_handles::<SqliteBackend>(Cases {
        small: 50,
        full: 150,
    });
}

#[test]
fn sqlite_store_keeps_invariants_with_parallel_handles() {
    model::assert_rules_in_parallel::<SqliteBackend>(Cases { small: 30, full: 100 });
}
