//! A limit is lowered or paused, or a job gets a delay, while others are about to begin, each over all boundaries.

use std::sync::Arc;

use tidegate_core::tables::Position;
use tidegate_core::{Finish, PauseTarget, SetJob, SetPaused, Store, StoreReader};
use tidegate_store::postgres::Options;

use super::admission::{after, ensure, nothing_else, race};
use super::harness::{
    CheckResult, Handle, Race, RaceHarness, VerbFuture, claim_request, completion_of, task,
    task_of_job,
};

fn pausing(handle: &Handle, paused: bool) -> VerbFuture {
    let (store, what) = (handle.store.clone(), PauseTarget::Job("j".into()));
    Box::pin(async move { store.set_paused(SetPaused { target: what, paused }).await.map(drop) })
}

fn claiming(handle: &Handle) -> VerbFuture {
    let store = handle.store.clone();
    Box::pin(async move { store.claim(claim_request("other", 2)).await.map(drop) })
}

/// How many are about to begin, and how many run.
async fn begun(lab: &RaceHarness) -> (usize, usize) {
    let tasks = lab.free_store.store.snapshot().await.expect("snapshot").tasks;
    let count =
        |is: fn(&Position) -> bool| tasks.iter().filter(|t| t.positions.iter().any(is)).count();
    (count(|at| matches!(at, Position::Ready(_))), count(|at| matches!(at, Position::Running(_))))
}

/// No more than one is about to begin, and none where one runs.
async fn one_at_most(lab: Arc<RaceHarness>) -> CheckResult {
    let (ready, running) = begun(&lab).await;
    ensure(ready == usize::from(running == 0), || format!("{ready} are ready, {running} run"))
}

/// A job is paused as its tasks are claimed: what is not claimed by then goes back.
async fn pause_and_claim(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task_of_job("a", "j"); 4]).await;
    x.claim(0).await;
    Race {
        a: pausing(&x, true),
        b: claiming(&y),
        after: after(|lab| async move {
            let (ready, running) = begun(&lab).await;
            pausing(&lab.free_store, false).await.expect("resume");
            ensure(ready == 0, || format!("{ready} are ready, {running} run"))
        }),
    }
}

race!(pause_of_job_racing_with_claim_returns_admitted_tasks, pause_and_claim);

/// A limit is lowered as its tasks are claimed.
async fn lower_and_claim(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(4)).await;
    x.submit(vec![task("a"); 5]).await;
    x.claim(0).await;
    Race { a: x.set_limit_verb("group:a", Some(1)), b: claiming(&y), after: after(one_at_most) }
}

race!(lowered_limit_racing_with_claim_is_exact, lower_and_claim);

/// A limit is lowered as an attempt ends and its worker asks for more.
async fn lower_and_go_on(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(3)).await;
    let running = x.submit_and_claim(task("a")).await;
    x.submit(vec![task("a"); 4]).await;
    x.claim(0).await;
    let (store, exits) = (y.store.clone(), vec![completion_of(&running)]);
    let finish = Finish { completions: exits, claim: Some(claim_request("other", 2)) };
    Race {
        a: x.set_limit_verb("group:a", Some(1)),
        b: Box::pin(async move { store.finish(finish).await.map(drop) }),
        after: after(one_at_most),
    }
}

race!(lowered_limit_racing_with_finish_and_claim_is_exact, lower_and_go_on);

/// One operator lowers a limit, another one raises it.
async fn lower_and_raise(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(3)).await;
    x.submit(vec![task("a"); 5]).await;
    x.claim(0).await;
    Race {
        a: x.set_limit_verb("group:a", Some(1)),
        b: y.set_limit_verb("group:a", Some(4)),
        after: nothing_else(),
    }
}

race!(lowered_limit_racing_with_raise_keeps_invariants, lower_and_raise);

/// A job is paused as one of its tasks that have not begun is cancelled.
async fn pause_and_cancel(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    let all = x.submit(vec![task_of_job("a", "j"); 3]).await;
    x.claim(0).await;
    let store = y.store.clone();
    Race {
        a: pausing(&x, true),
        b: Box::pin(async move { store.cancel(vec![all[2], all[0]]).await.map(drop) }),
        after: after(|lab| async move {
            let (ready, _) = begun(&lab).await;
            pausing(&lab.free_store, false).await.expect("resume");
            ensure(ready == 0, || format!("{ready} are ready"))
        }),
    }
}

race!(pause_of_job_racing_with_cancel_leaves_no_ready_task, pause_and_cancel);

fn delaying(handle: &Handle, delay_ms: i64) -> VerbFuture {
    let set = SetJob { job: "j".into(), delay_ms: Some(delay_ms), ..SetJob::default() };
    let store = handle.store.clone();
    Box::pin(async move { store.set_job(set).await })
}

/// One may begin where none has; and none where one has.
async fn one_in_time(lab: Arc<RaceHarness>) -> CheckResult {
    let (ready, running) = begun(&lab).await;
    delaying(&lab.free_store, 0).await.expect("no delay");
    ensure(ready == usize::from(running == 0), || format!("{ready} are ready, {running} run"))
}

/// A job gets a delay as its tasks are claimed: what is not claimed by then goes back, but for one.
async fn delay_and_claim(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task_of_job("a", "j"); 5]).await;
    x.claim(0).await;
    Race { a: delaying(&x, 60_000), b: claiming(&y), after: after(one_in_time) }
}

race!(job_delay_racing_with_claim_is_kept, delay_and_claim);

/// A job gets a delay as an attempt ends and its worker asks for more. Others wait for a group.
async fn delay_and_go_on(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.set_limit("group:a", Some(3)).await;
    let running = x.submit_and_claim(task_of_job("a", "j")).await;
    x.submit(vec![task_of_job("a", "j"); 5]).await;
    x.claim(0).await;
    let (store, exits) = (y.store.clone(), vec![completion_of(&running)]);
    let finish = Finish { completions: exits, claim: Some(claim_request("other", 2)) };
    Race {
        a: delaying(&x, 60_000),
        b: Box::pin(async move { store.finish(finish).await.map(drop) }),
        after: after(|lab| async move {
            let (ready, _) = begun(&lab).await;
            delaying(&lab.free_store, 0).await.expect("no delay");
            ensure(ready == 0, || format!("{ready} are ready, and one began just now"))
        }),
    }
}

race!(job_delay_racing_with_finish_and_claim_is_kept, delay_and_go_on);

/// One operator gives a job a delay, another one takes it away.
async fn delay_and_none(_: Arc<RaceHarness>, x: Handle, y: Handle) -> Race {
    x.submit(vec![task_of_job("a", "j"); 4]).await;
    x.claim(0).await;
    Race {
        a: delaying(&x, 60_000),
        b: delaying(&y, 0),
        after: after(|lab| async move {
            delaying(&lab.free_store, 0).await.map_err(|error| error.to_string())
        }),
    }
}

race!(job_delay_racing_with_its_removal_keeps_invariants, delay_and_none);
