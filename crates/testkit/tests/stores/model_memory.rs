//! The reference against itself: the sequences are fair, and its rules hold in parallel too.

use tidegate_testkit::model;
use tidegate_testkit::stores::MemoryBackend;
use tidegate_testkit::tier::Cases;

#[test]
fn memory_store_equals_itself_after_every_operation() {
    model::assert_equals_reference::<MemoryBackend>(Cases { small: 100, full: 300 });
}

#[test]
fn memory_store_keeps_invariants_with_parallel_handles() {
    model::assert_rules_in_parallel::<MemoryBackend>(Cases { small: 100, full: 300 });
}
