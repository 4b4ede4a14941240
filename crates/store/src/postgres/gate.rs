//! Lets what waits at the gate through, in transactions of bounded size.

use tidegate_core::bounds::GATE_STEP;
use tidegate_core::rules::gate::{self, Verdict};
use tidegate_core::tables::{Lane, Position, Tables};
use tidegate_core::{Admitted, LimitId, Result, TaskId};

use super::draft::Draft;
use super::error::Fault;
use super::flush::flush;
use super::load::{Wanted, gather, moment};
use super::session::Tx;
use super::{Inner, transact};

const GATEKEEPER: &str = include_str!("queries/gatekeeper.sql");
const GATE_WORK: &str = include_str!("queries/gate_work.sql");
const DUE: &str = include_str!("queries/due.sql");
const LOCK_ARRIVALS: &str = include_str!("queries/lock_arrivals.sql");

/// Tasks the gate looks at in the lines in one transaction.
pub(super) const BUDGET: u32 = 32;

/// Tasks that come to the gate in one transaction.
const ARRIVALS_MAX: i64 = 250;

/// Transactions that follow one verb at most; what is left then is taken up by claims.
const FOLLOW_MAX: u32 = 1000;

pub(super) async fn admit(store: &Inner) -> Result<Admitted> {
    let work = transact!(store, tx => look(store, &tx, &[]));
    let mut admitted = Admitted::default();
    follow(store, work.dirty).await?;
    if work.arrivals {
        admitted = arrivals(store).await?;
    }
    Ok(admitted)
}

/// What a claim does before it looks at the ready tasks.
pub(super) async fn before_claim(store: &Inner, lanes: &[Lane]) -> Result<()> {
    let lanes: Vec<i64> = lanes.iter().map(|lane| lane.id.0).collect();
    let mut work = transact!(store, tx => look(store, &tx, &lanes));
    let mut seen = 0;
    while !work.no_worker.is_empty() && seen < GATE_STEP as usize {
        let left = transact!(store, tx => reconsider(store, &tx, &work.no_worker));
        follow(store, left).await?;
        seen += work.no_worker.len();
        work = transact!(store, tx => look(store, &tx, &lanes));
    }
    if !work.dirty.is_empty() {
        // Whoever has one of them locked is about to look itself, and follows up.
        transact!(store, tx => settle(store, &tx, &work.dirty, true));
    }
    if work.arrivals {
        arrivals(store).await?;
    }
    Ok(())
}

/// Goes on with lines that a transaction left dirty, until nothing is left.
pub(super) async fn follow(store: &Inner, mut left: Vec<LimitId>) -> Result<()> {
    for _ in 0..FOLLOW_MAX {
        if left.is_empty() {
            break;
        }
        left = transact!(store, tx => settle(store, &tx, &left, false));
    }
    Ok(())
}

#[derive(Debug)]
struct Work {
    arrivals: bool,
    dirty: Vec<LimitId>,
    no_worker: Vec<TaskId>,
}

async fn look(store: &Inner, tx: &Tx<'_>, lanes: &[i64]) -> Result<Work, Fault> {
    let now = moment(store, tx).await?.now;
    let row = tx.one(GATE_WORK, &[&now, &lanes]).await?;
    Ok(Work {
        arrivals: row.get("arrivals"),
        dirty: row.get::<_, Vec<i64>>("dirty").into_iter().map(LimitId).collect(),
        no_worker: row.get::<_, Vec<i64>>("no_worker").into_iter().map(TaskId).collect(),
    })
}

/// Drains lines that may have room; returns those that are left.
async fn settle(
    store: &Inner,
    tx: &Tx<'_>,
    limits: &[LimitId],
    free_only: bool,
) -> Result<Vec<LimitId>, Fault> {
    let moment = moment(store, tx).await?;
    let wanted = Wanted { limits: limits.to_vec(), budget: BUDGET, free_only, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    draft.seal();
    let mut budget = BUDGET;
    gate::settle(&mut draft, &mut budget)?;
    flush(tx, &draft).await?;
    Ok(draft.dirty())
}

/// Looks again at tasks that were parked because nobody served them.
async fn reconsider(store: &Inner, tx: &Tx<'_>, tasks: &[TaskId]) -> Result<Vec<LimitId>, Fault> {
    let moment = moment(store, tx).await?;
    let wanted = Wanted { tasks: tasks.to_vec(), budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    draft.seal();
    let mut rows = Vec::new();
    for task in tasks {
        if let Some(Position::Line(row)) = draft.position(*task)?
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
    flush(tx, &draft).await?;
    Ok(draft.dirty())
}

/// Brings what is due and what arrived to the gate, as long as nobody else does.
async fn arrivals(store: &Inner) -> Result<Admitted> {
    let mut admitted = Admitted::default();
    let mut seen = 0;
    loop {
        let (step, left) = transact!(store, tx => bring(store, &tx));
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

async fn bring(store: &Inner, tx: &Tx<'_>) -> Result<(Admitted, Vec<LimitId>), Fault> {
    let mut admitted = Admitted::default();
    if !tx.one(GATEKEEPER, &[]).await?.get::<_, bool>("is_gatekeeper") {
        return Ok((admitted, Vec::new()));
    }
    let moment = moment(store, tx).await?;
    let due = tx.query(DUE, &[&moment.now, &ARRIVALS_MAX]).await?;
    let due: Vec<(TaskId, i64)> =
        due.iter().map(|row| (TaskId(row.get("task")), row.get("run_at"))).collect();
    let rest = ARRIVALS_MAX - due.len() as i64;
    let arrived = tx.query(LOCK_ARRIVALS, &[&rest]).await?;
    let arrived: Vec<TaskId> = arrived.iter().map(|row| TaskId(row.get("task"))).collect();
    admitted.more = due.len() + arrived.len() == ARRIVALS_MAX as usize;
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
    flush(tx, &draft).await?;
    Ok((admitted, draft.dirty()))
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
