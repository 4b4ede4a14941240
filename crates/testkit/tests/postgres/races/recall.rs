//! A limit is lowered or paused, or a job gets a delay, while others are about to begin, each over all boundaries.

use std::sync::Arc;

use tidegate_core::tables::Position;
use tidegate_core::{Finish, Inspect, Pausable, Pause, SetJob, Store};
use tidegate_store::postgres::Options;

use super::cases::{after, ensure, nothing_else, race};
use super::lab::{Fine, Handle, Lab, Race, Verb, claim, exit, of_job, task};

fn pausing(handle: &Handle, paused: bool) -> Verb {
    let (store, what) = (handle.store.clone(), Pausable::Job("j".into()));
    Box::pin(async move { store.pause(Pause { what, paused }).await.map(drop) })
}

fn claiming(handle: &Handle) -> Verb {
    let store = handle.store.clone();
    Box::pin(async move { store.claim(claim("other", 2)).await.map(drop) })
}

/// How many are about to begin, and how many run.
async fn begun(lab: &Lab) -> (usize, usize) {
    let tasks = lab.free.store.snapshot().await.expect("snapshot").tasks;
    let count =
        |is: fn(&Position) -> bool| tasks.iter().filter(|t| t.positions.iter().any(is)).count();
    (count(|at| matches!(at, Position::Ready(_))), count(|at| matches!(at, Position::Running(_))))
}

/// No more than one is about to begin, and none where one runs.
async fn one_at_most(lab: Arc<Lab>) -> Fine {
    let (ready, running) = begun(&lab).await;
    ensure(ready == usize::from(running == 0), || format!("{ready} are ready, {running} run"))
}

/// A job is paused as its tasks are claimed: what is not claimed by then goes back.
async fn pause_and_claim(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.submit(vec![of_job("a", "j"); 4]).await;
    x.claim(0).await;
    Race {
        a: pausing(&x, true),
        b: claiming(&y),
        after: after(|lab| async move {
            let (ready, running) = begun(&lab).await;
            pausing(&lab.free, false).await.expect("resume");
            ensure(ready == 0, || format!("{ready} are ready, {running} run"))
        }),
    }
}

race!(a_job_is_paused_as_its_tasks_are_claimed, pause_and_claim);

/// A limit is lowered as its tasks are claimed.
async fn lower_and_claim(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(4)).await;
    x.submit(vec![task("a"); 5]).await;
    x.claim(0).await;
    Race { a: x.setting("group:a", Some(1)), b: claiming(&y), after: after(one_at_most) }
}

race!(a_limit_is_lowered_as_its_tasks_are_claimed, lower_and_claim);

/// A limit is lowered as an attempt ends and its worker asks for more.
async fn lower_and_go_on(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(3)).await;
    let running = x.start(task("a")).await;
    x.submit(vec![task("a"); 4]).await;
    x.claim(0).await;
    let (store, exits) = (y.store.clone(), vec![exit(&running)]);
    let finish = Finish { exits, claim: Some(claim("other", 2)) };
    Race {
        a: x.setting("group:a", Some(1)),
        b: Box::pin(async move { store.finish(finish).await.map(drop) }),
        after: after(one_at_most),
    }
}

race!(a_limit_is_lowered_as_a_worker_goes_on, lower_and_go_on);

/// One operator lowers a limit, another one raises it.
async fn lower_and_raise(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(3)).await;
    x.submit(vec![task("a"); 5]).await;
    x.claim(0).await;
    Race {
        a: x.setting("group:a", Some(1)),
        b: y.setting("group:a", Some(4)),
        after: nothing_else(),
    }
}

race!(a_limit_is_lowered_and_raised, lower_and_raise);

/// A job is paused as one of its tasks that have not begun is cancelled.
async fn pause_and_cancel(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    let all = x.submit(vec![of_job("a", "j"); 3]).await;
    x.claim(0).await;
    let store = y.store.clone();
    Race {
        a: pausing(&x, true),
        b: Box::pin(async move { store.cancel(vec![all[2], all[0]]).await.map(drop) }),
        after: after(|lab| async move {
            let (ready, _) = begun(&lab).await;
            pausing(&lab.free, false).await.expect("resume");
            ensure(ready == 0, || format!("{ready} are ready"))
        }),
    }
}

race!(a_job_is_paused_as_its_tasks_are_cancelled, pause_and_cancel);

fn delaying(handle: &Handle, delay_ms: i64) -> Verb {
    let set = SetJob { job: "j".into(), delay_ms: Some(delay_ms), ..SetJob::default() };
    let store = handle.store.clone();
    Box::pin(async move { store.set_job(set).await })
}

/// One may begin where none has; and none where one has.
async fn one_in_time(lab: Arc<Lab>) -> Fine {
    let (ready, running) = begun(&lab).await;
    delaying(&lab.free, 0).await.expect("no delay");
    ensure(ready == usize::from(running == 0), || format!("{ready} are ready, {running} run"))
}

/// A job gets a delay as its tasks are claimed: what is not claimed by then goes back, but for one.
async fn delay_and_claim(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.submit(vec![of_job("a", "j"); 5]).await;
    x.claim(0).await;
    Race { a: delaying(&x, 60_000), b: claiming(&y), after: after(one_in_time) }
}

race!(a_job_gets_a_delay_as_its_tasks_are_claimed, delay_and_claim);

/// A job gets a delay as an attempt ends and its worker asks for more. Others wait for a group.
async fn delay_and_go_on(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.set("group:a", Some(3)).await;
    let running = x.start(of_job("a", "j")).await;
    x.submit(vec![of_job("a", "j"); 5]).await;
    x.claim(0).await;
    let (store, exits) = (y.store.clone(), vec![exit(&running)]);
    let finish = Finish { exits, claim: Some(claim("other", 2)) };
    Race {
        a: delaying(&x, 60_000),
        b: Box::pin(async move { store.finish(finish).await.map(drop) }),
        after: after(|lab| async move {
            let (ready, _) = begun(&lab).await;
            delaying(&lab.free, 0).await.expect("no delay");
            ensure(ready == 0, || format!("{ready} are ready, and one began just now"))
        }),
    }
}

race!(a_job_gets_a_delay_as_a_worker_goes_on, delay_and_go_on);

/// One operator gives a job a delay, another one takes it away.
async fn delay_and_none(_: Arc<Lab>, x: Handle, y: Handle) -> Race {
    x.submit(vec![of_job("a", "j"); 4]).await;
    x.claim(0).await;
    Race {
        a: delaying(&x, 60_000),
        b: delaying(&y, 0),
        after: after(|lab| async move {
            delaying(&lab.free, 0).await.map_err(|error| error.to_string())
        }),
    }
}

race!(a_job_gets_a_delay_and_loses_it, delay_and_none);
