//! The rules over the tables of the reference store, one call at a time.

use tidegate_core::rules::{self, gate};
use tidegate_core::tables::{ReadyRow, Tables, Tags};
use tidegate_core::{Hold, NewTask, Submission};
use tidegate_store::memory::State;

/// A state with one step of a workflow, which the gate has not examined yet. So the limit of the workflow
/// does not exist.
fn with_step() -> (State, Tags) {
    let mut state = State::default();
    state.now = 1;
    let step = NewTask { workflow: Some("flow".into()), ..NewTask::new("a", "null") };
    let submission = Submission { tasks: vec![step], ..Submission::default() };
    let task = rules::submit(&mut state, &submission).expect("submit")[0].task;
    let tags = state.tags(task).expect("tags").expect("an unfinished task");
    assert_eq!(state.limit_named("workflow:flow").expect("limit"), None);
    (state, tags)
}

#[test]
fn needs_of_step_without_limit_creates_no_limit() {
    let (mut state, tags) = with_step();
    assert_eq!(gate::needs(&mut state, &tags).expect("needs"), []);
    assert_eq!(state.limit_named("workflow:flow").expect("limit"), None);
}

#[test]
fn recall_check_of_step_without_limit_creates_no_limit() {
    let (mut state, tags) = with_step();
    let row = ReadyRow {
        lane: tags.lane,
        rank: 0,
        tag: 0,
        task: tags.task,
        stamp: 0,
        gated: true,
        since: 1,
    };
    assert!(!gate::is_recalled(&mut state, row).expect("check"));
    assert_eq!(state.limit_named("workflow:flow").expect("limit"), None);
}

#[test]
fn admission_of_step_without_limit_creates_the_limit_and_takes_its_slot() {
    let (mut state, tags) = with_step();
    rules::admit(&mut state).expect("admit");
    let limit = state.limit_named("workflow:flow").expect("limit").expect("a limit");
    let needs = gate::needs(&mut state, &tags).expect("needs");
    assert_eq!(needs.len(), 1);
    assert_eq!((needs[0].limit, needs[0].hold, needs[0].taken), (limit, Hold::Lifetime, true));
}
