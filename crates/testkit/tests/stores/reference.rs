//! The rules over the tables of the reference store, one call at a time.

use tidegate_core::rules::{self, admission};
use tidegate_core::tables::{ReadyRow, Tables, TaskInfo};
use tidegate_core::{NewTask, SlotLifetime, Submission};
use tidegate_store::memory::WorkingState;

/// A state with one step of a workflow, which the gate has not examined yet. So the limit of the workflow
/// does not exist.
fn with_step() -> (WorkingState, TaskInfo) {
    let mut state = WorkingState::default();
    state.now = 1;
    let step = NewTask { workflow: Some("flow".into()), ..NewTask::new("a", "null") };
    let submission = Submission { tasks: vec![step], ..Submission::default() };
    let task = rules::submit(&mut state, &submission).expect("submit")[0].task;
    let tags = state.task_info(task).expect("tags").expect("an unfinished task");
    assert_eq!(state.limit_id("workflow:flow").expect("limit"), None);
    (state, tags)
}

#[test]
fn required_limits_of_step_without_limit_create_no_limit() {
    let (mut state, tags) = with_step();
    assert_eq!(admission::required_limits(&mut state, &tags).expect("needs"), []);
    assert_eq!(state.limit_id("workflow:flow").expect("limit"), None);
}

#[test]
fn readmission_check_of_step_without_limit_creates_no_limit() {
    let (mut state, tags) = with_step();
    let row = ReadyRow {
        lane: tags.lane,
        rank: 0,
        tag: 0,
        task: tags.task,
        limits_version: 0,
        holds_slots: true,
        ready_at: 1,
    };
    assert!(!admission::is_revocation_pending(&mut state, row).expect("check"));
    assert_eq!(state.limit_id("workflow:flow").expect("limit"), None);
}

#[test]
fn admission_of_step_without_limit_creates_limit_and_takes_its_slot() {
    let (mut state, tags) = with_step();
    rules::admit(&mut state).expect("admit");
    let limit = state.limit_id("workflow:flow").expect("limit").expect("a limit");
    let needs = admission::required_limits(&mut state, &tags).expect("needs");
    assert_eq!(needs.len(), 1);
    assert_eq!(
        (needs[0].limit, needs[0].slot_lifetime, needs[0].is_held),
        (limit, SlotLifetime::Task, true)
    );
}
