//! The store on PostgreSQL against the reference, over generated sequences.

use tidegate_testkit::model;
use tidegate_testkit::stores::InPostgres;

#[test]
fn equals_the_reference_after_every_step() {
    model::equals_the_reference::<InPostgres>(60);
}

#[test]
fn keeps_the_rules_through_several_handles_at_once() {
    model::keeps_the_rules_in_parallel::<InPostgres>(60);
}
