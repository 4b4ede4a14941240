//! The checker must see what is wrong, and only that.

use std::fs;
use std::io::Write;

use insta::assert_snapshot;
use tempfile::TempDir;
use tidegate_measure::history::{
    ClaimRecord, ClaimTimes, CompletionRecord, Error, ExpectedLimits, HandlerEndRecord, HeldSlots,
    LimitRecord, Outcome, Process, Record, Report, SignalRecord, StartRecord, Writer, limit_usage,
    verify,
};
use tidegate_testkit::tier::Cases;

/// Writes a history by hand: one process per number, tokens equal to the attempt.
struct HistoryBuilder {
    folder: TempDir,
    writer: Writer,
}

impl HistoryBuilder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let writer = Writer::append(folder.path().join("history")).unwrap();
        Self { folder, writer }
    }

    fn write(&self, record: Record) -> &Self {
        self.writer.write(&record).unwrap();
        self
    }

    fn enter(&self, t_ns: u64, task: i64, limits: &[(&str, u32)]) -> &Self {
        self.write(enter(1, t_ns, task, 1, None, limits))
    }

    fn step(&self, t_ns: u64, task: i64, attempt: u32) -> &Self {
        self.write(enter(1, t_ns, task, attempt, Some("w"), &[]))
    }

    fn exit(&self, t_ns: u64, task: i64, attempt: u32, outcome: Outcome) -> &Self {
        self.write(exit(1, t_ns, task, attempt, outcome))
    }

    fn limit(&self, t_ns: u64, name: &str, capacity: Option<u32>, version: Option<i64>) -> &Self {
        let name = name.to_owned();
        self.write(Record::Limit(LimitRecord {
            t_ns,
            process: process(1),
            name,
            capacity,
            version,
        }))
    }

    fn verify(&self, expected: &[&str]) -> Report {
        let expected = ExpectedLimits::parse(expected.iter().copied()).unwrap();
        verify(&[self.folder.path().join("history")], &expected).unwrap()
    }
}

fn process(pid: u32) -> Process {
    Process { pid, start: format!("start-{pid}") }
}

fn enter(
    pid: u32,
    t_ns: u64,
    task: i64,
    attempt: u32,
    workflow: Option<&str>,
    limits: &[(&str, u32)],
) -> Record {
    Record::Enter(StartRecord {
        t_ns,
        process: process(pid),
        task,
        attempt,
        token: i64::from(attempt),
        kind: "mail".to_owned(),
        group: None,
        weight: 1,
        job: None,
        workflow: workflow.map(str::to_owned),
        limits: workflow
            .map(|name| HeldSlots { name: format!("workflow:{name}"), weight: 1 })
            .into_iter()
            .chain(limits.iter().map(|(name, weight)| hold(name, *weight)))
            .collect(),
    })
}

fn hold(name: &str, weight: u32) -> HeldSlots {
    HeldSlots { name: name.to_owned(), weight }
}

fn exit(pid: u32, t_ns: u64, task: i64, attempt: u32, outcome: Outcome) -> Record {
    Record::Exit(CompletionRecord {
        t_ns,
        process: process(pid),
        task,
        token: i64::from(attempt),
        outcome,
    })
}

fn signal(pid: u32, t_ns: u64) -> SignalRecord {
    SignalRecord { t_ns, process: Process::by_pid(pid) }
}

/// An enter of a task that says what it is and holds what the test says.
fn start_without_slots(t_ns: u64, task: i64, limits: &[(&str, u32)]) -> Record {
    let Record::Enter(enter) = enter(1, t_ns, task, 1, None, limits) else { unreachable!() };
    let (group, job) = (Some("partner".to_owned()), Some("nightly".to_owned()));
    Record::Enter(StartRecord { group, job, weight: 2, ..enter })
}

#[test]
fn attempt_without_slots_is_counted_and_reported_as_missing_slots() {
    let story = HistoryBuilder::new();
    story.write(start_without_slots(10, 1, &[("group:partner", 2), ("job:nightly", 1)]));
    story.write(start_without_slots(11, 2, &[]));
    let report = story.verify(&["group:partner=3", "job:nightly=1"]);
    assert_eq!((report.violations.limit_exceeded, report.violations.slot_missing), (2, 2));
    assert_eq!(report.limits[0].held_max, 4, "{report}");
    assert!(report.to_string().contains("0 of its 2 "), "{report}");
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            2
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           2
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  2
          beside another of the same task                  0

        limit          capacity  most held  reached  enters  violations
        group:partner         3          4      yes       2           2
        job:nightly           1          2      yes       2           2

        violations: 4
          limit exceeded: 2
          slot missing: 2
          11: task 2 entered with 0 of its 1 slots of job:nightly
          11: task 2 entered job:nightly as holder 2 of 1
          11: task 2 entered with 0 of its 2 slots of group:partner
          11: task 2 entered group:partner as holder 4 of 3
        "
    );
    // Where the records tell the capacity it is the same.
    story.limit(1, "job:nightly", Some(1), None);
    assert_eq!(story.verify(&[]).violations.total(), 2);
}

#[test]
fn attempt_with_too_few_slots_is_reported() {
    let story = HistoryBuilder::new();
    story.write(start_without_slots(10, 1, &[("group:partner", 1), ("job:nightly", 1)]));
    assert_eq!(story.verify(&["group:partner=9"]).violations.slot_missing, 1);
}

#[test]
fn group_without_limit_is_unlimited() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[]).enter(11, 2, &[]);
    let report = story.verify(&[]);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.limits, [], "nobody has such a limit");
}

#[test]
fn workflow_step_without_slot_is_reported() {
    let story = HistoryBuilder::new();
    let Record::Enter(step) = enter(1, 10, 1, 1, Some("w"), &[]) else { unreachable!() };
    story.write(Record::Enter(StartRecord { limits: vec![], ..step }));
    assert_eq!(story.verify(&[]).violations.slot_missing, 1);
}

#[test]
fn full_limit_is_reached_without_violation() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("group:mail", 1)]).enter(11, 2, &[("group:mail", 1)]);
    // The end of one and the enter of the next in the same instant are a hand-over.
    story.exit(20, 1, 1, Outcome::Completed).enter(20, 3, &[("group:mail", 1)]);
    story.exit(30, 2, 1, Outcome::Completed).exit(31, 3, 1, Outcome::Failed);
    let report = story.verify(&["group:mail=2"]);
    assert!(report.is_clean(), "{report}");
    let limit = &report.limits[0];
    assert_eq!((limit.held_max, limit.reached, limit.enters), (2, true, 3));
    assert_eq!(report.completed, 2);
}

#[test]
fn limit_that_was_never_full_is_not_reached() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("a", 1)]).exit(20, 1, 1, Outcome::Completed);
    let report = story.verify(&["a=2"]);
    assert!(report.is_clean() && !report.limits[0].reached);
}

#[test]
fn holder_beyond_capacity_is_reported() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("a", 1)]).enter(11, 2, &[("a", 1)]).enter(12, 3, &[("a", 1)]);
    let report = story.verify(&["a=2"]);
    assert_eq!(report.violations.limit_exceeded, 1);
    assert_eq!(report.limits[0].violations, 1);
    assert!(report.to_string().contains("3 of 2"), "{report}");
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            3
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           3
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  3
          beside another of the same task                  0

        limit  capacity  most held  reached  enters  violations
        a             2          3      yes       3           1

        violations: 1
          limit exceeded: 1
          12: task 3 entered a as holder 3 of 2
        "
    );
}

#[test]
fn task_weight_counts_against_limit() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("a", 3)]).enter(11, 2, &[("a", 2)]);
    assert!(story.verify(&["a=5"]).is_clean());
    assert_eq!(story.verify(&["a=4"]).violations.limit_exceeded, 1);
}

#[test]
fn capacity_above_expectation_is_reported() {
    let story = HistoryBuilder::new();
    story.limit(1, "a", Some(1), None).enter(10, 1, &[("a", 1)]);
    story.limit(11, "a", Some(2), None).enter(12, 2, &[("a", 1)]);
    assert!(story.verify(&[]).is_clean(), "the records allow it");
    assert_eq!(story.verify(&["a=1"]).violations.limit_exceeded, 1, "the caller does not");
}

#[test]
fn lowered_limit_allows_holders_to_finish_but_no_new_ones() {
    let story = HistoryBuilder::new();
    story.limit(1, "a", Some(3), None);
    story.enter(10, 1, &[("a", 1)]).enter(11, 2, &[("a", 1)]).enter(12, 3, &[("a", 1)]);
    story.limit(13, "a", Some(1), None);
    assert!(story.verify(&[]).is_clean(), "draining is no violation");
    story.exit(14, 1, 1, Outcome::Completed).enter(15, 4, &[("a", 1)]);
    assert_eq!(story.verify(&[]).violations.limit_exceeded, 1);
}

#[test]
fn outdated_limit_record_is_ignored() {
    let story = HistoryBuilder::new();
    story.limit(1, "a", Some(2), Some(8)).limit(2, "a", Some(1), Some(7));
    story.enter(10, 1, &[("a", 1)]).enter(11, 2, &[("a", 1)]);
    assert!(story.verify(&[]).is_clean());
}

#[test]
fn expected_limit_without_attempts_is_reported() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("group:mail", 1)]);
    assert_eq!(story.verify(&["mail=1"]).violations.limit_never_entered, 1);
    assert_eq!(story.verify(&["paused=0"]).violations.total(), 0);
}

#[test]
fn slot_handed_off_before_reply_was_read_is_no_violation() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("a", 1)]);
    story.write(Record::Leave(HandlerEndRecord {
        t_ns: 20,
        process: process(1),
        task: 1,
        token: 1,
    }));
    story.write(enter(2, 21, 2, 1, None, &[("a", 1)])).exit(22, 1, 1, Outcome::Completed);
    assert!(story.verify(&["a=1"]).is_clean());
}

#[test]
fn overlapping_workflow_steps_are_reported() {
    let story = HistoryBuilder::new();
    story.step(10, 1, 1).step(15, 2, 1).exit(20, 1, 1, Outcome::Completed);
    let report = story.verify(&[]);
    assert_eq!((report.violations.workflow_overlap, report.violations.workflow_order), (1, 1));
}

#[test]
fn workflow_step_between_attempts_of_earlier_step_is_reported() {
    let story = HistoryBuilder::new();
    story.step(10, 1, 1).exit(11, 1, 1, Outcome::Retry);
    story.step(12, 2, 1).exit(13, 2, 1, Outcome::Completed);
    story.step(14, 1, 2).exit(15, 1, 2, Outcome::Completed);
    let report = story.verify(&[]);
    assert_eq!((report.violations.workflow_overlap, report.violations.workflow_order), (0, 1));
}

#[test]
fn workflow_in_order_with_retry_has_no_violation() {
    let story = HistoryBuilder::new();
    story.step(10, 1, 1).exit(11, 1, 1, Outcome::Retry);
    story.step(12, 1, 2).exit(13, 1, 2, Outcome::Completed);
    story.step(14, 2, 1).exit(15, 2, 1, Outcome::Completed);
    assert!(story.verify(&[]).is_clean());
}

#[test]
fn second_completion_of_task_is_reported() {
    let story = HistoryBuilder::new();
    for attempt in [1, 2] {
        let t_ns = u64::from(attempt) * 10;
        story.write(enter(1, t_ns, 7, attempt, None, &[])).exit(
            t_ns + 1,
            7,
            attempt,
            Outcome::Completed,
        );
    }
    let report = story.verify(&[]);
    assert_eq!((report.violations.completed_twice, report.completed), (1, 1));
}

#[test]
fn reused_token_and_completion_without_start_are_reported() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[]).enter(11, 1, &[]).exit(12, 9, 1, Outcome::Completed);
    let report = story.verify(&[]);
    assert_eq!((report.violations.token_reused, report.violations.stray_end), (1, 1));
}

#[test]
fn kill_ends_attempts_of_its_process_and_recovery_is_measured() {
    let story = HistoryBuilder::new();
    story.write(enter(5, 10, 1, 1, None, &[("a", 1)])).write(enter(5, 11, 2, 1, None, &[]));
    story.write(Record::Kill(signal(5, 1_000_000)));
    story.write(enter(6, 4_000_000, 1, 2, None, &[("a", 1)])).write(exit(
        6,
        4_000_001,
        1,
        2,
        Outcome::Completed,
    ));
    let report = story.verify(&["a=1"]);
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.killed, report.open), (2, 0));
    assert_eq!((report.recovery.count, report.recovery.never), (1, 1));
    assert_eq!((report.recovery.p50_ms, report.recovery.max_ms), (Some(3.0), Some(3.0)));
}

#[test]
fn attempt_without_completion_is_open_until_last_record_of_process() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("a", 1)]).enter(20, 2, &[]).exit(21, 2, 1, Outcome::Completed);
    story.write(enter(2, 20, 3, 1, None, &[("a", 1)]));
    let report = story.verify(&["a=1"]);
    assert_eq!((report.open, report.violations.limit_exceeded), (2, 1));
}

#[test]
fn lost_attempt_of_paused_process_counts_until_the_pause() {
    for (outcome, clean) in [(Outcome::Lost, true), (Outcome::Completed, false)] {
        let story = HistoryBuilder::new();
        story.write(enter(5, 10, 1, 1, None, &[("a", 1)])).write(Record::Stop(signal(5, 20)));
        story.write(enter(6, 30, 1, 2, None, &[("a", 1)])).write(Record::Cont(signal(5, 35)));
        story.write(exit(5, 40, 1, 1, outcome));
        let report = story.verify(&["a=1"]);
        assert_eq!(report.is_clean(), clean, "{outcome:?}: {report}");
        assert_eq!((report.paused, report.beside_another), (u64::from(clean), u64::from(!clean)));
    }
}

#[test]
fn truncated_last_record_is_tolerated_and_reported() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[]);
    let path = story.folder.path().join("history");
    fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"{\"enter\":{\"t_").unwrap();
    let report = story.verify(&[]);
    assert_eq!((report.records, report.cut_lines[0].line), (1, 2));
    let folder = story.folder.path().display().to_string();
    assert_snapshot!(
        report.to_string().replace(&folder, "FOLDER"),
        @"
        history
        files                                              1
        records                                            1
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           1
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  1
          beside another of the same task                  0
        cut off and left out: FOLDER/history, line 2

        violations: 0
        "
    );
}

#[test]
fn malformed_record_is_rejected_with_its_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken");
    fs::write(&path, "{\"stop\":{\"t_ns\":1,\"process\":{\"pid\":1}}}\nnonsense\n").unwrap();
    let error = verify(&[&path], &ExpectedLimits::default()).unwrap_err();
    assert!(matches!(error, Error::Malformed { line: 2, .. }), "{error}");
    let folder = folder.path().display().to_string();
    assert_snapshot!(
        error.to_string().replace(&folder, "FOLDER"),
        @"history FOLDER/broken, line 2"
    );
}

#[test]
fn expectation_is_split_at_last_equals_sign() {
    assert_eq!(ExpectedLimits::parse(["a=b=3"]).unwrap(), ExpectedLimits::default().with("a=b", 3));
    assert!(ExpectedLimits::parse(["a"]).is_err());
    assert!(ExpectedLimits::parse(["a=-1"]).is_err());
}

#[test]
fn report_round_trips_through_json() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("a", 1)]).enter(11, 2, &[("a", 1)]);
    let report = story.verify(&["a=1"]);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

#[test]
fn concurrent_writers_share_a_history_file() {
    let story = HistoryBuilder::new();
    std::thread::scope(|scope| {
        for pid in 1..=8 {
            let writer = story.writer.clone();
            scope.spawn(move || {
                for task in 0..500 {
                    let task = i64::from(pid) * 1_000 + task;
                    writer.write(&enter(pid, 1, task, 1, None, &[("a", 1)])).unwrap();
                }
            });
        }
    });
    assert_eq!(story.verify(&[]).records, 4_000);
}

/// Ten holders at a time of one limit, in turn, and one of them lets an eleventh in.
#[test]
fn verify_of_many_records_finds_single_violation() {
    let tasks = Cases { small: 100_000, full: 500_000 }.of_this_run();
    let story = HistoryBuilder::new();
    let mut lines = String::new();
    for task in 0..tasks {
        let enter_ns = task * 10;
        let exit_ns = enter_ns + if task == 77_777 { 101 } else { 100 };
        let number = task as i64;
        let begin = enter(
            (task % 4) as u32,
            enter_ns,
            number,
            1,
            Some(&(task % 100).to_string()),
            &[("a", 1)],
        );
        let end = exit((task % 4) as u32, exit_ns, number, 1, Outcome::Completed);
        for record in [begin, end] {
            lines.push_str(&serde_json::to_string(&record).unwrap());
            lines.push('\n');
        }
    }
    fs::write(story.folder.path().join("history"), lines).unwrap();
    let report = story.verify(&["a=10"]);
    assert_eq!((report.records, report.completed, report.workflows), (2 * tasks, tasks, 100));
    assert_eq!(report.limits[0].held_max, 11);
    assert_eq!(report.violations.total(), 1);
    assert_eq!(report.violations.limit_exceeded, 1);
}

/// Three holders under a limit that was 1 to begin with.
fn three_under_one() -> HistoryBuilder {
    let story = HistoryBuilder::new();
    story.limit(1, "a", Some(1), Some(1));
    story.enter(10, 1, &[("a", 1)]).enter(11, 2, &[("a", 1)]).enter(12, 3, &[("a", 1)]);
    story
}

#[test]
fn raised_limit_recorded_late_is_no_violation() {
    let story = three_under_one();
    assert_eq!(story.verify(&[]).violations.limit_exceeded, 2, "nobody has raised it");
    story.limit(20, "a", Some(3), Some(2));
    let report = story.verify(&[]);
    assert!(report.is_clean() && report.limits[0].reached, "{report}");
    assert!(report.to_string().contains(": 1 to 3, "), "{report}");
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            5
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           3
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  3
          beside another of the same task                  0

        limit  capacity  most held  reached  enters  violations
        a             3          3      yes       3           0
        a changed: 1 to 3, judged by 3

        violations: 0
        "
    );
    story.enter(21, 4, &[("a", 1)]);
    assert_eq!(story.verify(&[]).violations.limit_exceeded, 1, "the raise allows three");
}

#[test]
fn lowered_limit_is_checked_against_earlier_capacity() {
    let story = HistoryBuilder::new();
    story.limit(1, "a", Some(3), Some(4)).enter(10, 1, &[("a", 1)]).enter(11, 2, &[("a", 1)]);
    story.limit(12, "a", Some(1), Some(5)).enter(13, 3, &[("a", 1)]);
    let report = story.verify(&[]);
    assert!(report.is_clean(), "{report}");
    assert!(report.to_string().contains(": 3 to 1, "), "{report}");
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            5
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           3
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  3
          beside another of the same task                  0

        limit  capacity  most held  reached  enters  violations
        a             3          3      yes       3           0
        a changed: 3 to 1, judged by 3

        violations: 0
        "
    );
}

#[test]
fn unrecorded_limit_change_is_not_checked() {
    let story = three_under_one();
    story.limit(20, "a", Some(1), Some(3));
    let report = story.verify(&[]);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.limits[0].capacity, None);
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            5
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           3
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  3
          beside another of the same task                  0

        limit  capacity  most held  reached  enters  violations
        a             -          3       no       3           0
        a changed unseen, not judged; seen were: 1

        violations: 0
        "
    );
}

#[test]
fn temporarily_unset_limit_is_not_checked() {
    let story = three_under_one();
    story.limit(20, "a", None, Some(0)).limit(21, "a", Some(1), Some(1));
    let report = story.verify(&[]);
    assert!(report.is_clean(), "{report}");
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            6
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           3
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  3
          beside another of the same task                  0

        limit  capacity  most held  reached  enters  violations
        a             -          3       no       3           0
        a changed: unlimited to 1, not judged

        violations: 0
        "
    );
}

#[test]
fn expected_limit_overrides_recorded_changes() {
    let story = three_under_one();
    story.limit(20, "a", Some(3), Some(2));
    let report = story.verify(&["a=1"]);
    assert_eq!(report.violations.limit_exceeded, 2, "{report}");
    assert!(!report.to_string().contains("changed"), "{report}");
    assert!(story.verify(&["a=3"]).is_clean());
}

#[test]
fn limit_source_change_with_same_capacity_is_no_change() {
    let story = three_under_one();
    story.limit(20, "a", Some(1), Some(2));
    assert_eq!(story.verify(&[]).violations.limit_exceeded, 2);
}

#[test]
fn expected_limit_without_scope_suggests_full_name() {
    let story = HistoryBuilder::new();
    story.enter(10, 1, &[("group:mail", 1)]);
    let report = story.verify(&["mail=1"]).to_string();
    assert_snapshot!(
        report,
        @"
        history
        files                                              1
        records                                            1
        processes                                          1
        workflows                                          0
        tasks completed                                    0
        attempts                                           1
          ended by a kill                                  0
          paused and lost                                  0
          open, ended at the last record of their process  1
          beside another of the same task                  0

        limit       capacity  most held  reached  enters  violations
        group:mail         -          1       no       1           0
        mail               1          0       no       0           1

        violations: 1
          limit never entered: 1
          no attempt ever held mail; did you mean group:mail?
        "
    );
}

/// Only what ran inside the time counts, up to the kill where there was one.
#[test]
fn limit_usage_is_averaged_over_time_window() {
    let story = HistoryBuilder::new();
    story
        .enter(0, 1, &[("job:j", 1)])
        .exit(60, 1, 1, Outcome::Completed)
        .enter(100, 2, &[("job:j", 2)])
        .write(enter(2, 100, 3, 1, None, &[("job:j", 1)]))
        .write(Record::Kill(SignalRecord { t_ns: 120, process: process(2) }))
        .exit(200, 2, 1, Outcome::Completed);
    let used = limit_usage(&[story.folder.path().join("history")], 50..150).unwrap();
    assert_eq!(used["job:j"].mean, (10.0 + 2.0 * 50.0 + 20.0) / 100.0);
    assert_eq!(used["job:j"].last_enter_ns, 100);
}

#[test]
fn claims_are_counted_within_time_window() {
    let story = HistoryBuilder::new();
    for (t_ns, took_ns) in [(10, 9_000_000), (20, 2_000_000), (30, 1_000_000), (40, 9_000_000)] {
        let (wanted, ended, found) = (5, 1, 1);
        let process = process(1);
        story.write(Record::Claim(ClaimRecord { t_ns, process, took_ns, wanted, ended, found }));
    }
    let claims = ClaimTimes::read(&[story.folder.path().join("history")], 20..40).unwrap();
    assert_eq!((claims.count(), claims.upper_quantile_ms(0.5)), (2, Some(1.0)));
    assert_eq!(claims.upper_quantile_ms(0.0), Some(2.0));
    assert!(story.verify(&[]).is_clean());
}
