//! The store on PostgreSQL against the reference, over generated sequences.

use tidegate_testkit::model;
use tidegate_testkit::stores::{PostgresBackend, PostgresWithGraceBackend};
use tidegate_testkit::tier::Cases;

#[test]
fn postgres_store_equals_reference_after_every_operation() {
    model::assert_equals_reference::<PostgresBackend>(Cases { small: 20, full: 60 });
}

#[test]
fn postgres_store_keeps_invariants_with_parallel_handles() {
    model::assert_rules_in_parallel::<PostgresBackend>(Cases { small: 20, full: 60 });
}

#[test]
fn postgres_store_with_due_grace_keeps_invariants_with_parallel_handles() {
    model::assert_rules_in_parallel::<PostgresWithGraceBackend>(Cases { small: 20, full: 60 });
}
