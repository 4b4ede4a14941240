//! Lets what waits at the gate through, in transactions of bounded size.

use std::collections::BTreeSet;

use tidegate_core::bounds::{GATE_STEP, JOB_WINDOW};
use tidegate_core::rules::gate::{self, Verdict};
use tidegate_core::tables::{Position, ReadyRow, Tables};
use tidegate_core::{Admitted, Claim, LimitId, Result, TaskId};

use super::call;
use super::draft::{Draft, Left};
use super::due::admit_due_and_glance;
use super::error::{Fault, log_behind_commit, unless_unavailable};
use super::flush::flush_and_commit;
use super::listen::Since;
use super::load::{Moment, Wanted, gather, moment};
use super::look::{AtGate, glance_at_gate};
use super::paged::Paged;
use super::rows;
use super::session::{Params, Tx, at_once, glimpse};
use super::{Bug, Inner};

const GATEKEEPER: &str = include_str!("queries/try_admission_lock.sql");
const FULL_WINDOWS: &str = include_str!("queries/full_windows.sql");
const DUE: &str = include_str!("queries/lock_due_tasks.sql");
const LOCK_ARRIVALS: &str = include_str!("queries/lock_inbox_head.sql");
static READY_HOLDERS: Paged = Paged::new(include_str!("queries/ready_holders.sql"));
const LOCK_READY_OF: &str = include_str!("queries/lock_ready_tasks.sql");
const LOCK_ARRIVALS_OF_JOBS: &str = include_str!("queries/lock_inbox_of_jobs.sql");

/// Tasks the gate looks at in the lines in one transaction.
pub(super) const BUDGET: u32 = 16;

/// The same in a transaction that only drains lines.
const FOLLOW_BUDGET: u32 = 250;

/// Due tasks, and as many arrivals, that come to the gate in one transaction at most.
const ARRIVALS_MAX: usize = 1000;

/// Transactions that follow one verb at most; what is left then is taken up by claims.
const FOLLOW_MAX: u32 = 1000;

/// The same behind a claim.
const FOLLOW_BRIEFLY: u32 = 4;

/// The name of these transactions in events.
const FOLLOW_STEP: &str = "admission behind a commit";

/// Of these, how many look again at windows they filled themselves: while others claim as fast
/// as this one fills, it is they who go on.
const WINDOW_ROUNDS: u32 = 4;

pub(super) async fn admit(store: &Inner) -> Result<Admitted> {
    let mut admitted = Admitted::default();
    let news = match store.changed.since_nothing(None) {
        Since::Nothing => return Ok(admitted),
        Since::NothingHeard(news) | Since::News(news) => news,
    };
    // The fast path for due tasks goes along, and the look shows what it has left.
    let (due, view, at_gate) = admit_due_and_glance(store).await?;
    (admitted.ready, admitted.parked) = (due.ready, due.parked);
    drop(due);
    if !view.needs_admission() {
        store.changed.nothing_for(None, news, view.due_in());
        return Ok(admitted);
    }
    follow(store, Left { dirty: at_gate.dirty, ..Left::default() }).await?;
    if at_gate.arrivals {
        admitted = arrivals(store, admitted).await?;
    }
    Ok(admitted)
}

/// What a claim does before it takes ready tasks. `at_gate` is what the claim has seen already.
pub(super) async fn before_claim(
    store: &Inner,
    claim: &Claim,
    at_gate: Option<AtGate>,
) -> Result<()> {
    let mut at_gate = match at_gate {
        Some(at_gate) => at_gate,
        None => glance_at_gate(store, claim).await?,
    };
    let mut seen = 0;
    while !at_gate.no_worker.is_empty() && seen < GATE_STEP as usize {
        let left = at_once!(store, tx => reconsider(store, &tx, &at_gate.no_worker));
        follow(store, left).await?;
        seen += at_gate.no_worker.len();
        at_gate = glance_at_gate(store, claim).await?;
    }
    if !at_gate.dirty.is_empty() {
        // Whoever has one of them locked looks itself, as a rule; otherwise the next claim does.
        let at_gate = Left { dirty: std::mem::take(&mut at_gate.dirty), ..Left::default() };
        let left = at_once!(store, tx => settle(store, &tx, &at_gate, true));
        follow(store, Left { dirty: Vec::new(), ..left }).await?;
    }
    if at_gate.arrivals {
        arrivals(store, Admitted::default()).await?;
    }
    Ok(())
}

/// Goes on with lines that a transaction left dirty, until nothing is left; and tells others
/// of what became ready. What it cannot finish stays marked, and the next claim takes it up.
pub(super) async fn follow(store: &Inner, left: Left) -> Result<()> {
    unless_unavailable(FOLLOW_STEP, go_on(store, left, FOLLOW_MAX).await)
}

/// The same behind a claim. Who has claimed must begin before its lease ends, so it goes on for
/// a few rounds, and no error keeps it from what is committed.
pub(super) async fn follow_briefly(store: &Inner, left: Left) {
    if let Err(error) = go_on(store, left, FOLLOW_BRIEFLY).await {
        log_behind_commit(FOLLOW_STEP, &error);
    }
}

/// Only these steps find that a window was filled while tasks were claimed out of it, so they continue after the
/// caller is gone.
async fn go_on(store: &Inner, left: Left, rounds: u32) -> Result<()> {
    call::behind_commit(Box::pin(take_rounds(store, left, rounds))).await
}

async fn take_rounds(store: &Inner, mut left: Left, rounds: u32) -> Result<()> {
    for round in 0..rounds {
        store.floors.lower(&left.new);
        if left.ready {
            store.changed.tell();
        }
        if !left.windows.is_empty() && round < WINDOW_ROUNDS {
            left.dirty.extend(full_windows(store, &left.windows).await?);
        }
        if left.dirty.is_empty() && left.over.is_empty() {
            return Ok(());
        }
        left = at_once!(store, tx => settle(store, &tx, &left, false));
    }
    // Somebody else goes on.
    store.floors.lower(&left.new);
    store.changed.tell();
    Ok(())
}

async fn full_windows(store: &Inner, jobs: &[LimitId]) -> Result<Vec<LimitId>> {
    if store.options.is_planted(Bug::WindowUnseen) {
        return Ok(Vec::new());
    }
    let jobs: Vec<i64> = jobs.iter().map(|job| job.0).collect();
    let jobs: Params<'_> = &[&jobs];
    let full = glimpse!(store, tx => tx.query(FULL_WINDOWS, jobs));
    Ok(full.iter().map(|row| LimitId(row.get("id"))).collect())
}

/// Drains lines that may have room, and takes back to them who must not begin; returns those that are
/// left.
async fn settle(store: &Inner, tx: &Tx<'_>, left: &Left, free_only: bool) -> Result<Left, Fault> {
    let moment = moment(store, tx).await?;
    let mut budget = FOLLOW_BUDGET;
    let locked = lock_holders(tx, &left.over).await?;
    let tasks = locked.iter().map(|row| row.task).collect();
    let limits = left.dirty.iter().chain(&left.over).copied().collect();
    let wanted = Wanted { tasks, limits, budget, free_only, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    add_holders(tx, &mut draft, &left.over, &locked).await?;
    draft.seal();
    gate::settle(&mut draft, &mut budget)?;
    flush_and_commit(tx, &draft).await?;
    Ok(draft.left())
}

/// Locks ready tasks that hold slots of these limits. Whoever is claiming one of them is waited for: it
/// may leave it where it is.
async fn lock_holders(tx: &Tx<'_>, limits: &[LimitId]) -> Result<Vec<ReadyRow>, Fault> {
    let mut tasks = Vec::new();
    for limit in limits {
        tasks.extend(holders(tx, *limit).await?.0);
    }
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    Ok(tx.query(LOCK_READY_OF, &[&tasks]).await?.iter().map(rows::ready).collect())
}

/// Ready tasks that hold slots of a limit, and whether these are all.
async fn holders(tx: &Tx<'_>, limit: LimitId) -> Result<(Vec<i64>, bool), Fault> {
    let (sql, page) = READY_HOLDERS.of(FOLLOW_BUDGET as usize);
    let rows = tx.query(sql, &[&limit.0]).await?;
    let is_all = rows.len() < page;
    Ok((rows.iter().map(|row| row.get("task")).collect(), is_all))
}

/// Takes up those that were locked. Under the limits' locks nobody else comes: who did before was let in by
/// somebody who raised the limit for a moment, and the next transaction takes it back.
async fn add_holders(
    tx: &Tx<'_>,
    draft: &mut Draft,
    limits: &[LimitId],
    locked: &[ReadyRow],
) -> Result<(), Fault> {
    locked.iter().for_each(|row| draft.stand(row.task, Position::Ready(*row)));
    for limit in limits {
        let (tasks, is_all) = holders(tx, *limit).await?;
        let is_locked = |task: &i64| locked.iter().any(|row| row.task.0 == *task);
        draft.recalled.insert(*limit, is_all && tasks.iter().all(is_locked));
    }
    Ok(())
}

/// Looks again at tasks that were parked because nobody served them.
async fn reconsider(store: &Inner, tx: &Tx<'_>, tasks: &[TaskId]) -> Result<Left, Fault> {
    let moment = moment(store, tx).await?;
    let (in_line, tasks) = (tasks.len(), tasks.to_vec());
    let wanted = Wanted { tasks: tasks.clone(), in_line, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    draft.seal();
    let mut rows = Vec::new();
    for task in tasks {
        if let Some(Position::Line(row)) = draft.position(task)?
            && row.class == tidegate_core::tables::Class::NoWorker
        {
            rows.push(row);
        }
    }
    rows.sort_unstable();
    for row in rows {
        gate::reconsider(&mut draft, row)?;
    }
    let mut budget = BUDGET;
    gate::settle(&mut draft, &mut budget)?;
    flush_and_commit(tx, &draft).await?;
    Ok(draft.left())
}

/// Admits due and submitted tasks, unless another transaction holds the admission lock. `admitted` counts tasks
/// that the caller has admitted before.
/// The caller has tried the fast path for due tasks.
async fn arrivals(store: &Inner, mut admitted: Admitted) -> Result<Admitted> {
    let mut seen = admitted.ready + admitted.parked;
    loop {
        let (step, left) = at_once!(store, tx => bring(store, &tx));
        follow(store, left).await?;
        admitted.ready += step.ready;
        admitted.parked += step.parked;
        seen += step.ready + step.parked;
        admitted.more = step.more;
        if !step.more || seen >= GATE_STEP {
            return Ok(admitted);
        }
    }
}

async fn bring(store: &Inner, tx: &Tx<'_>) -> Result<(Admitted, Left), Fault> {
    let mut admitted = Admitted::default();
    let now = store.options.now();
    let at: Params<'_> = &[&now];
    let (keeper, due, mut arrived) = tokio::try_join!(biased;
        tx.one(GATEKEEPER, at),
        tx.query(DUE, &[]),
        tx.query(LOCK_ARRIVALS, &[]),
    )?;
    if !keeper.get::<_, bool>("is_gatekeeper") {
        return Ok((admitted, Left::default()));
    }
    let moment = Moment::of(&keeper);
    let due: Vec<(TaskId, i64)> =
        due.iter().map(|row| (TaskId(row.get("task")), row.get("run_at"))).collect();
    admitted.more = due.len() == ARRIVALS_MAX || arrived.len() == ARRIVALS_MAX;
    if arrived.len() == ARRIVALS_MAX {
        let last: Option<i64> = arrived.last().map(|row| row.get("task"));
        let params: Params<'_> = &[&i64::from(JOB_WINDOW), &last];
        arrived.extend(tx.query(LOCK_ARRIVALS_OF_JOBS, params).await?);
    }
    let arrived = arrived.iter().map(|row| TaskId(row.get("task")));
    // Who is among the first of its job may be among the first of all.
    let arrived = Vec::from_iter(arrived.collect::<BTreeSet<TaskId>>());
    let order: Vec<TaskId> =
        due.iter().map(|(task, _)| *task).chain(arrived.iter().copied()).collect();
    let wanted = Wanted { tasks: order.clone(), budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    due.iter().for_each(|(task, run_at)| draft.stand(*task, Position::Scheduled(*run_at)));
    arrived.iter().for_each(|task| draft.stand(*task, Position::Arrived));
    draft.seal();
    due.iter().try_for_each(|(task, run_at)| draft.take_scheduled(*task, *run_at))?;
    arrived.iter().try_for_each(|task| draft.take_arrived_one(*task))?;
    for task in order {
        arrive(&mut draft, task, &mut admitted)?;
    }
    let mut budget = BUDGET;
    gate::settle(&mut draft, &mut budget)?;
    flush_and_commit(tx, &draft).await?;
    Ok((admitted, draft.left()))
}

fn arrive(draft: &mut Draft, task: TaskId, admitted: &mut Admitted) -> Result<(), Fault> {
    let Some(tags) = draft.tags(task)? else {
        return Ok(());
    };
    match gate::arrive(draft, &tags)? {
        Verdict::Ready => admitted.ready += 1,
        Verdict::Parked => admitted.parked += 1,
        // Whoever stays behind would be overtaken by the next step of its workflow.
        Verdict::Unlocked(_) => return Err(Fault::Again),
    }
    Ok(())
}
