//! The store in a file against the reference, over generated sequences.

use tidegate_testkit::model;
use tidegate_testkit::stores::InFile;
use tidegate_testkit::tier::Cases;

#[test]
fn equals_the_reference_after_every_step() {
    model::equals_the_reference::<InFile>(Cases { small: 100, full: 300 });
}

#[test]
fn two_handles_in_turn_equal_the_reference() {
    model::equals_the_reference_through_two_handles::<InFile>(Cases { small: 50, full: 150 });
}

#[test]
fn keeps_the_rules_through_several_handles_at_once() {
    model::keeps_the_rules_in_parallel::<InFile>(Cases { small: 30, full: 100 });
}
