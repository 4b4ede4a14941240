//! The store on PostgreSQL against the reference, over generated sequences.

use tidegate_testkit::model;
use tidegate_testkit::stores::{InPostgres, InPostgresWithGrace};
use tidegate_testkit::tier::Cases;

#[test]
fn equals_the_reference_after_every_step() {
    model::equals_the_reference::<InPostgres>(Cases { small: 20, full: 60 });
}

#[test]
fn keeps_the_rules_through_several_handles_at_once() {
    model::keeps_the_rules_in_parallel::<InPostgres>(Cases { small: 20, full: 60 });
}

#[test]
fn keeps_the_rules_while_claims_pass_due_tasks() {
    model::keeps_the_rules_in_parallel::<InPostgresWithGrace>(Cases { small: 20, full: 60 });
}
