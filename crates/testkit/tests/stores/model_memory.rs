//! The reference against itself: the sequences are fair, and its rules hold in parallel too.

use tidegate_testkit::model;
use tidegate_testkit::stores::InMemory;
use tidegate_testkit::tier::Cases;

#[test]
fn equals_itself_after_every_step() {
    model::equals_the_reference::<InMemory>(Cases { small: 100, full: 300 });
}

#[test]
fn keeps_the_rules_through_several_handles_at_once() {
    model::keeps_the_rules_in_parallel::<InMemory>(Cases { small: 100, full: 300 });
}
