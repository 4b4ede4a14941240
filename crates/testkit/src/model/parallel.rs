//! One sequence over several handles at once.

use std::sync::Arc;

use tidegate_core::invariants::{check, check_idle_store};
use tidegate_core::{
    CapacitySource, Completion, Finish, LimitScope, Outcome, PauseTarget, SetLimit, SetPaused,
    Store,
};

use super::apply::{StoreUnderTest, to_claim};
use super::op::{ClaimSpec, Op};
use crate::conformance::fixture::{Backend, Handle, ManualClock, settle};

/// Handles that take the steps of a sequence in turn.
const HANDLES: usize = 3;

pub(super) async fn run(backend: Box<dyn Backend>, ops: Vec<Op>) -> Result<(), String> {
    let clock = ManualClock::default();
    let mut handles = Vec::new();
    for _ in 0..HANDLES {
        handles.push(backend.open(clock.as_clock()).await);
    }
    migrate(&handles).await?;
    let first = StoreUnderTest::new(handles[0].store.clone());
    let ops = Arc::new(ops);
    let mut running = Vec::new();
    for (turn, handle) in handles.iter().enumerate() {
        let side = StoreUnderTest { store: handle.store.clone(), known: first.known.clone() };
        running.push(tokio::spawn(run_share(
            side,
            handle.clone(),
            clock.clone(),
            ops.clone(),
            turn,
        )));
    }
    for turns in running {
        turns.await.map_err(|error| error.to_string())??;
    }
    run_to_rest(&handles[0], &clock, &first).await?;
    let mut completed = first.known().completed.clone();
    completed.sort();
    match completed.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two completions of task {} were accepted", pair[0])),
        None => Ok(()),
    }
}

/// All of them at once, as processes do that start together on a new store.
async fn migrate(handles: &[Handle]) -> Result<(), String> {
    let migrations = handles.iter().map(|handle| {
        let store = handle.store.clone();
        tokio::spawn(async move { store.migrate().await })
    });
    for migration in migrations.collect::<Vec<_>>() {
        migration.await.map_err(|error| error.to_string())?.map_err(error_text)?;
    }
    Ok(())
}

async fn run_share(
    side: StoreUnderTest,
    handle: Handle,
    clock: ManualClock,
    ops: Arc<Vec<Op>>,
    turn: usize,
) -> Result<(), String> {
    for op in ops.iter().skip(turn).step_by(HANDLES) {
        if let Op::Advance(ms) = op {
            clock.advance(*ms);
        }
        let answer = side.apply(op, clock.now()).await;
        answer.map_err(|error| format!("{op:?}: {error}"))?;
        let snapshot = handle.reader.snapshot().await.map_err(|error| error.to_string())?;
        let faults = check(&snapshot);
        if !faults.is_empty() {
            return Err(format!("after {op:?}: {faults:#?}"));
        }
    }
    Ok(())
}

/// With room in every limit and every lease run out, all of it can be done.
async fn run_to_rest(
    handle: &Handle,
    clock: &ManualClock,
    side: &StoreUnderTest,
) -> Result<(), String> {
    let store = &*handle.store;
    open_limits(handle).await?;
    for queue in handle.reader.queues().await.map_err(error_text)? {
        resume(store, PauseTarget::Queue(queue.name.to_string())).await?;
    }
    for job in handle.reader.jobs().await.map_err(error_text)? {
        resume(store, PauseTarget::Job(job.name.to_string())).await?;
    }
    let everything = ClaimSpec { worker: 9, kinds: 7, queues: 3, tasks_max: 100, lease_ms: 30_000 };
    for _ in 0..200 {
        // Past every lease, delay and quiet hour.
        clock.advance(5 * 3_600_000);
        reap(store).await?;
        store
            .claim(to_claim(&ClaimSpec { tasks_max: 0, ..everything.clone() }))
            .await
            .map_err(error_text)?;
        for workflow in handle.reader.workflows().await.map_err(error_text)? {
            resume(store, PauseTarget::Workflow(workflow.name.to_string())).await?;
        }
        settle(store).await;
        let claimed = store.claim(to_claim(&everything)).await.map_err(error_text)?;
        let exits: Vec<Completion> = claimed
            .iter()
            .map(|one| Completion {
                task: one.task,
                token: one.token,
                outcome: Outcome::Completed(b"null".to_vec()),
            })
            .collect();
        side.known().completed.extend(exits.iter().map(|exit| exit.task));
        let finished =
            store.finish(Finish { completions: exits, claim: None }).await.map_err(error_text)?;
        if !finished.lost_attempts.is_empty() {
            return Err(format!("a live lease was lost: {:?}", finished.lost_attempts));
        }
        let snapshot = handle.reader.snapshot().await.map_err(error_text)?;
        if snapshot.tasks.is_empty() {
            let faults = check_idle_store(&snapshot);
            return if faults.is_empty() { Ok(()) } else { Err(format!("{faults:#?}")) };
        }
    }
    let snapshot = handle.reader.snapshot().await.map_err(error_text)?;
    Err(format!("it does not come to rest: {:#?}", snapshot.tasks))
}

async fn resume(store: &dyn Store, what: PauseTarget) -> Result<(), String> {
    store.set_paused(SetPaused { target: what, paused: false }).await.map(drop).map_err(error_text)
}

async fn open_limits(handle: &Handle) -> Result<(), String> {
    for limit in handle.reader.limits().await.map_err(error_text)? {
        if limit.scope() != LimitScope::Workflow {
            let name = limit.name.to_string();
            let open = SetLimit { name, capacity: Some(1000), source: CapacitySource::Operator };
            handle.store.set_limit(open).await.map_err(error_text)?;
        }
    }
    Ok(())
}

async fn reap(store: &dyn Store) -> Result<(), String> {
    while store.reap().await.map_err(error_text)?.has_more {}
    Ok(())
}

fn error_text(error: tidegate_core::Error) -> String {
    error.to_string()
}
