//! Model-based tests: generated sequences of verbs run on a store and on the reference, and the
//! two are compared after every step. A sequence that tells them apart is shrunk.
//!
//! The same sequences also run split over several handles at once. Then no order is given, but
//! every committed state keeps the invariants, and what is left can be worked off to rest.

pub mod apply;
pub mod canonical;
pub mod op;
mod parallel;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tidegate_core::Millis;
use tidegate_core::invariants::check;
use tidegate_core::reader::StoreReader;
use tidegate_core::tables::Position;
use tidegate_store::memory::Memory;
use tokio::runtime::Runtime;

use crate::conformance::fixture::{Backend, Handle, ManualClock, settle};
use crate::tier::Cases;
use apply::StoreUnderTest;
use op::Op;

/// Steps in a sequence.
const STEPS_MAX: usize = 50;

/// How many sequences a run makes; instead of the test's own number.
const CASES_VARIABLE: &str = "TIDEGATE_MODEL_CASES";

/// Where the sequences begin; the default is the same in every run.
const SEED_VARIABLE: &str = "TIDEGATE_MODEL_SEED";

/// Runs of a shrunk sequence on a store that takes its time.
const SHRINK_ITERS_MAX: u32 = 400;

/// How many runs a shrink may take; instead of [`SHRINK_ITERS_MAX`].
const SHRINKS_VARIABLE: &str = "TIDEGATE_MODEL_SHRINKS";

/// How a sequence is run.
#[derive(Debug, Clone, Copy)]
pub enum RunMode {
    /// Step by step, through so many handles in turn, beside the reference.
    Sequential(usize),
    /// Through several handles at once; then what they leave is worked off.
    Parallel,
}

/// Compares a store with the reference, step by step, over so many sequences.
pub fn assert_equals_reference<B: Backend>(cases: Cases<u32>) {
    assert_no_fault::<B>(RunMode::Sequential(1), cases);
}

/// The same with two handles that take the steps in turn: what one remembers, the other has
/// changed.
pub fn assert_equals_reference_with_two_handles<B: Backend>(cases: Cases<u32>) {
    assert_no_fault::<B>(RunMode::Sequential(2), cases);
}

/// Runs sequences over several handles at once, and works off what they leave.
pub fn assert_rules_in_parallel<B: Backend>(cases: Cases<u32>) {
    assert_no_fault::<B>(RunMode::Parallel, cases);
}

fn assert_no_fault<B: Backend>(way: RunMode, cases: Cases<u32>) {
    let cases = cases.or_from(CASES_VARIABLE);
    let shrinks = parse_variable(SHRINKS_VARIABLE).unwrap_or(SHRINK_ITERS_MAX);
    if let Some(fault) = find_fault(way, cases, shrinks, || Box::new(B::create())) {
        panic!("with {SEED_VARIABLE}={} {CASES_VARIABLE}={cases}: {fault}", seed());
    }
}

/// The first fault of a store over so many sequences, shrunk in so many runs at most.
pub fn find_fault(
    way: RunMode,
    cases: u32,
    max_shrink_iters: u32,
    create: impl Fn() -> Box<dyn Backend>,
) -> Option<String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let runtime = runtime();
    let run = |ops| match way {
        RunMode::Sequential(handles) => runtime.block_on(compare(create(), handles, ops)),
        RunMode::Parallel => runtime.block_on(parallel::run(create(), ops)),
    };
    TestRunner::new_with_rng(config, rng)
        .run(&op::sequence(STEPS_MAX), |ops| run(ops).map_err(TestCaseError::fail))
        .err()
        .map(|fault| fault.to_string())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn seed() -> u64 {
    parse_variable(SEED_VARIABLE).unwrap_or(1)
}

fn parse_variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

async fn compare(backend: Box<dyn Backend>, handles: usize, ops: Vec<Op>) -> Result<(), String> {
    let clock = ManualClock::default();
    let reader = clock.as_clock();
    let reference = Handle::new(Memory::with_clock(move || reader()));
    let mut tested = Vec::new();
    for _ in 0..handles {
        tested.push(backend.open(clock.as_clock()).await);
    }
    tested[0].store.migrate().await.map_err(|error| error.to_string())?;
    let mut sides = [
        StoreUnderTest::new(reference.store.clone()),
        StoreUnderTest::new(tested[0].store.clone()),
    ];
    for (step, op) in ops.iter().enumerate() {
        let at = |what: &str| format!("step {step}, {op:?}: {what}");
        let tested = &tested[step % handles];
        sides[1].store = tested.store.clone();
        if let Op::Advance(ms) = op {
            clock.advance(*ms);
        }
        if !backend.promotes_parked_tasks()
            && gives_reserve_to_parked_tasks(op, &*reference.reader).await.map_err(|e| at(&e))?
        {
            continue;
        }
        let mut answers = Vec::new();
        for side in &sides {
            let answer = side.apply(op, clock.now()).await;
            answers.push(answer.map_err(|error| at(&error.to_string()))?);
        }
        if answers[0] != answers[1] {
            return Err(at(&format!("answers {} instead of {}", answers[1], answers[0])));
        }
        if backend.needs_settling() {
            settle(&*reference.store).await;
            settle(&*tested.store).await;
        }
        // When the reference admits in a step, it also examines limits whose time has come. Another store may leave
        // a limit that the step does not touch to the next claim or admission, and no longer. After `Advance` nothing
        // is admitted here, so that the claims and admissions that follow meet such limits.
        let examines_limits = matches!(op, Op::Claim(_) | Op::Admit | Op::Advance(_));
        if !examines_limits
            && has_overdue_limit(&*tested.reader, clock.now()).await.map_err(|e| at(&e))?
        {
            for store in [&reference.store, &tested.store] {
                store.admit().await.map_err(|error| at(&error.to_string()))?;
            }
        }
        let expected = canonical_state(&*reference.reader, &sides[0]).await.map_err(|e| at(&e))?;
        let found = canonical_state(&*tested.reader, &sides[1]).await.map_err(|e| at(&e))?;
        difference(&expected, &found).map_err(|e| at(&e))?;
    }
    compare_shown(&reference, &tested[0], &sides).await
}

async fn compare_shown(
    reference: &Handle,
    tested: &Handle,
    sides: &[StoreUnderTest; 2],
) -> Result<(), String> {
    let known = sides.each_ref().map(|side| std::mem::take(&mut *side.known()));
    let expected = canonical::visible_lines(&*reference.reader, &known[0]).await;
    let found = canonical::visible_lines(&*tested.reader, &known[1]).await;
    difference(&expected, &found)
}

/// Returns whether an operation changes the reserve of a job of which tasks wait at another limit.
async fn gives_reserve_to_parked_tasks(op: &Op, inspect: &dyn StoreReader) -> Result<bool, String> {
    let Op::SetJob(job) = op else { return Ok(false) };
    let snapshot = inspect.snapshot().await.map_err(|error| error.to_string())?;
    let name = format!("j{}", job.job);
    let is_parked =
        |position: &Position| matches!(position, Position::Waiting(row) if row.in_job_window);
    let mut tasks = snapshot.tasks.iter().filter(|task| task.job.as_deref() == Some(&*name));
    Ok(job.min_concurrency > 0 && tasks.any(|task| task.positions.iter().any(is_parked)))
}

/// Returns whether the time has come to examine a limit that is not marked dirty.
async fn has_overdue_limit(reader: &dyn StoreReader, now: Millis) -> Result<bool, String> {
    let snapshot = reader.snapshot().await.map_err(|error| error.to_string())?;
    Ok(snapshot.limits.iter().any(|limit| limit.recheck_at.is_some_and(|at| at <= now)))
}

/// The canonical state, once it keeps the invariants.
async fn canonical_state(
    reader: &dyn StoreReader,
    side: &StoreUnderTest,
) -> Result<Vec<String>, String> {
    let snapshot = reader.snapshot().await.map_err(|error| error.to_string())?;
    let faults = check(&snapshot);
    if !faults.is_empty() {
        return Err(format!("{faults:#?}"));
    }
    Ok(canonical::canonical_lines(&snapshot, &side.known()))
}

fn difference(expected: &[String], found: &[String]) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    let only = |these: &[String], those: &[String]| {
        let lines = these.iter().filter(|line| !those.contains(line));
        lines.map(|line| format!("  {line}\n")).collect::<String>()
    };
    Err(format!(
        "\nthe reference has\n{}the store has\n{}",
        only(expected, found),
        only(found, expected)
    ))
}
