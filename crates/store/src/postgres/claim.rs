//! Hands out ready tasks.

use std::collections::BTreeSet;

use tidegate_core::rules::gate;
use tidegate_core::tables::{Position, ReadyRow, Tables};
use tidegate_core::{Attempt, Claim, LaneId, LimitId, Millis, Result, SlotHeld, TaskId, Token};
use tokio_postgres::Row;

use super::draft::Left;
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, before_claim, follow_briefly};
use super::load::{Moment, Wanted, gather, moment};
use super::paged::Paged;
use super::rows;
use super::session::{Tx, glimpse};
use super::{Bug, Inner, transact};

const VERSION_SHARED: &str = include_str!("queries/version_shared.sql");
const LOOK: &str = include_str!("queries/claim_look.sql");
const SEE_WORKER: &str = include_str!("queries/see_worker.sql");
static CLAIM: Paged = Paged::new(include_str!("queries/claim.sql"));

/// Rounds in which a claim may send back what a younger limit applies to. After them it leaves
/// out the lanes where it still meets such tasks: their backlog does not hold up the others.
const ROUNDS_MAX: u32 = 100;

pub(super) async fn claim(store: &Inner, claim: Claim) -> Result<Vec<Attempt>> {
    claim.check()?;
    let mut view = glance(store, Some(&claim)).await?;
    if !view.is_noted {
        transact!(store, tx => see(&tx, &claim, &view));
    }
    if view.has_gate_work() {
        before_claim(store, &claim, view).await?;
        view = glance(store, Some(&claim)).await?;
    }
    if claim.tasks_max == 0 || !view.has_ready {
        return Ok(Vec::new());
    }
    let mut rounds = 0;
    loop {
        let (taken, left) = transact!(store, tx => take(store, &tx, &claim, &view));
        follow_briefly(store, left).await;
        let stale = match taken {
            Ok(attempts) => return Ok(attempts),
            Err(stale) => stale,
        };
        rounds += 1;
        if rounds >= ROUNDS_MAX {
            view.open.retain(|lane| !stale.contains(&LaneId(*lane)));
            store.changed.tell();
        }
    }
}

/// What a claim sees before it takes anything.
#[derive(Debug)]
pub(super) struct View {
    pub(super) moment: Moment,
    pub(super) arrivals: bool,
    pub(super) dirty: Vec<LimitId>,
    pub(super) no_worker: Vec<TaskId>,
    /// Lanes the worker serves that are open.
    open: Vec<i64>,
    has_ready: bool,
    pub(super) is_noted: bool,
}

impl View {
    pub(super) fn has_gate_work(&self) -> bool {
        self.arrivals || !self.dirty.is_empty() || !self.no_worker.is_empty()
    }
}

/// A look outside any transaction.
pub(super) async fn glance(store: &Inner, claim: Option<&Claim>) -> Result<View> {
    Ok(glimpse!(store, tx => look(store, &tx, claim)))
}

/// Looks for a worker, or for nobody in particular.
pub(super) async fn look(store: &Inner, tx: &Tx<'_>, claim: Option<&Claim>) -> Result<View, Fault> {
    let names = |of: fn(&Claim) -> &[std::sync::Arc<str>]| -> Vec<&str> {
        claim.map(|claim| of(claim).iter().map(|name| &**name).collect()).unwrap_or_default()
    };
    let (queues, kinds) = (names(|claim| &claim.queues), names(|claim| &claim.kinds));
    let worker = claim.map_or("", |claim| &*claim.worker.0);
    let noted_for = claim.map_or(0, |claim| claim.lease_ms / 4 * 3);
    let now = store.options.clock.as_ref().map(|clock| clock());
    let row = tx.one(LOOK, &[&queues, &kinds, &worker, &noted_for, &now]).await?;
    let moment = Moment {
        now: row.get("now"),
        virtual_time: row.get("virtual_time"),
        limits_version: row.get("limits_version"),
    };
    Ok(View {
        open: row.get("open"),
        moment,
        arrivals: row.get("arrivals"),
        dirty: row.get::<_, Vec<i64>>("dirty").into_iter().map(LimitId).collect(),
        no_worker: row.get::<_, Vec<i64>>("no_worker").into_iter().map(TaskId).collect(),
        has_ready: row.get("has_ready"),
        is_noted: row.get("is_noted"),
    })
}

/// Notes that the worker lives and what it serves, in a transaction of its own.
async fn see(tx: &Tx<'_>, claim: &Claim, view: &View) -> Result<(), Fault> {
    let alive_until = view.moment.now + claim.lease_ms;
    tx.execute(SEE_WORKER, &[&&*claim.worker.0, &alive_until, &view.open]).await?;
    Ok(())
}

/// Notes what a worker asks for before a transaction that needs it noted.
pub(super) async fn announce(store: &Inner, claim: &Claim) -> Result<()> {
    let mut client = store.client().await?;
    let note = async {
        let tx = Tx::begin(store, &mut client).await?;
        let view = look(store, &tx, Some(claim)).await?;
        see(&tx, claim, &view).await?;
        tx.commit().await
    };
    Ok(note.await?)
}

/// For a heartbeat: the worker lives.
pub(super) async fn see_worker(
    tx: &Tx<'_>,
    worker: &str,
    alive_until: Millis,
) -> Result<(), Fault> {
    let none: [i64; 0] = [];
    tx.execute(SEE_WORKER, &[&worker, &alive_until, &&none[..]]).await?;
    Ok(())
}

/// What was claimed, or the lanes whose rows were sent back to the gate, where some had to be.
type Taken = std::result::Result<Vec<Attempt>, BTreeSet<LaneId>>;

async fn take(
    store: &Inner,
    tx: &Tx<'_>,
    claim: &Claim,
    view: &View,
) -> Result<(Taken, Left), Fault> {
    let (_, picked) =
        tokio::try_join!(biased; share_version(store, tx), pick(store, tx, claim, view))?;
    let stale = picked.iter().filter(|row| row.get("is_stale"));
    let stale: Vec<ReadyRow> = stale.map(rows::ready).collect();
    if stale.is_empty() {
        let left = Left { windows: windows(&picked), ..Left::default() };
        return Ok((Ok(attempts(&picked, claim, view)), left));
    }
    let lanes = stale.iter().map(|row| row.lane).collect();
    let left = send_back(store, tx, stale).await?;
    Ok((Err(lanes), left))
}

/// No limit begins from here to the end of the transaction.
pub(super) async fn share_version(store: &Inner, tx: &Tx<'_>) -> Result<(), Fault> {
    if store.options.is_planted(Bug::VersionUnshared) {
        return Ok(());
    }
    tx.query(VERSION_SHARED, &[]).await.map(drop)
}

/// The claim that goes with a finish, in its transaction, and the jobs of which tasks were
/// claimed. None where it has to follow: a limit has begun that the tasks have to go back for.
pub(super) async fn take_along(
    store: &Inner,
    tx: &Tx<'_>,
    claim: Option<&Claim>,
    view: &View,
) -> Result<Option<(Vec<Attempt>, Vec<LimitId>)>, Fault> {
    let Some(claim) = claim else {
        return Ok(None);
    };
    if claim.tasks_max == 0 {
        return Ok(Some(Default::default()));
    }
    let picked = pick(store, tx, claim, view).await?;
    let is_stale = picked.iter().any(|row| row.get("is_stale"));
    Ok((!is_stale).then(|| (attempts(&picked, claim, view), windows(&picked))))
}

/// The jobs whose windows tasks left.
fn windows(picked: &[Row]) -> Vec<LimitId> {
    let job = |row: &Row| row.get::<_, Option<i64>>("job_limit").map(LimitId);
    let jobs: BTreeSet<LimitId> = picked.iter().filter_map(job).collect();
    jobs.into_iter().collect()
}

async fn pick(store: &Inner, tx: &Tx<'_>, claim: &Claim, view: &View) -> Result<Vec<Row>, Fault> {
    let paged = store.options.planted_claim().unwrap_or(&CLAIM);
    let (sql, _) = paged.of(2 * claim.tasks_max as usize + 64);
    let wanted = i64::from(claim.tasks_max);
    let now = view.moment.now;
    let expires_at = now + claim.lease_ms;
    let worker = &*claim.worker.0;
    tx.query(sql, &[&view.open, &wanted, &worker, &expires_at, &now]).await
}

fn attempts(picked: &[Row], claim: &Claim, view: &View) -> Vec<Attempt> {
    let expires_at = view.moment.now + claim.lease_ms;
    let attempt = |row: &Row| Attempt {
        task: TaskId(row.get("task")),
        token: Token(row.get("token")),
        kind: row.get::<_, &str>("kind").into(),
        queue: row.get::<_, &str>("queue").into(),
        group: row.get::<_, &str>("group_name").into(),
        weight: rows::number(row, "weight"),
        payload: row.get("payload"),
        number: rows::number(row, "spent") + 1,
        max_attempts: rows::number(row, "max_attempts"),
        timeout_ms: row.get("timeout_ms"),
        job: rows::text(row, "job"),
        workflow: rows::text(row, "workflow"),
        slots: slots(row),
        expires_at,
    };
    picked.iter().map(attempt).collect()
}

fn slots(row: &Row) -> Vec<SlotHeld> {
    let limits: Vec<i64> = row.get::<_, Option<_>>("limits").unwrap_or_default();
    let numbers: Vec<i64> = row.get::<_, Option<_>>("numbers").unwrap_or_default();
    let names: Vec<&str> = row.get::<_, Option<_>>("names").unwrap_or_default();
    let slots = limits.into_iter().zip(numbers).zip(names);
    let slot = |((limit, number), name): ((i64, i64), &str)| SlotHeld {
        limit: LimitId(limit),
        name: name.into(),
        number: u32::try_from(number).unwrap_or_default(),
    };
    slots.map(slot).collect()
}

/// Sends tasks back to the gate that a younger limit applies to.
async fn send_back(store: &Inner, tx: &Tx<'_>, rows: Vec<ReadyRow>) -> Result<Left, Fault> {
    let moment = moment(store, tx).await?;
    let tasks = rows.iter().map(|row| row.task).collect();
    let wanted = Wanted { tasks, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    rows.iter().for_each(|row| draft.stand(row.task, Position::Ready(*row)));
    draft.seal();
    for row in rows {
        draft.take_ready(row)?;
        let Some(tags) = draft.tags(row.task)? else {
            continue;
        };
        if row.gated {
            gate::release(&mut draft, &tags, false, tags.job.is_some())?;
        }
        if let gate::Verdict::Unlocked(_) = gate::arrive(&mut draft, &tags)? {
            return Err(Fault::Again);
        }
    }
    let mut budget = BUDGET;
    gate::settle(&mut draft, &mut budget)?;
    flush(tx, &draft).await?;
    Ok(draft.left())
}
