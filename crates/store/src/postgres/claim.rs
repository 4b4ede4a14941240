//! Hands out ready tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate_core::requests::{FallbackReason, RequestPath};
use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, LaneId, LimitId, Millis, Result, TaskId};
use tokio_postgres::Row;

use super::back::Stale;
use super::call::{self, Verb};
use super::claim_texts::Sort;
use super::draft::Left;
use super::due::{NewlyReady, admit_expected};
use super::error::{Fault, log_behind_commit};
use super::floors::{Found, From, Key, Look};
use super::gate::{before_claim, follow_briefly};
use super::leased::{Bodies, Leased, bodies};
use super::listen::Since;
use super::look::{View, last_task, look, look_idly, names, open};
use super::session::{Params, Tx, at_once, glimpse, once};
use super::{Bug, Inner, transact};

const VERSION_SHARED: &str = include_str!("queries/lock_limits_version_shared.sql");
const SEE_WORKER: &str = include_str!("queries/put_worker_and_lanes.sql");

/// Steps in which a claim may send back what a younger limit applies to, at most, and how many of them
/// are only about those that it met.
const STEPS_MAX: u32 = 100;
const FEW_STEPS: u32 = 32;

/// Lanes that a claim reads at most; a worker that serves more is given of others each time.
const LANES_MAX: usize = 512;

/// One statement in one round trip, where nothing waits at the gate.
pub(super) async fn claim(store: &Inner, claim: Claim) -> Result<Vec<Attempt>> {
    claim.check()?;
    let claimed = claim_once(store, &claim).await?;
    Ok(fill_up(store, claim, claimed).await)
}

/// Takes what else there is, where fewer were found than are wanted and not all was looked at.
pub(super) async fn fill_up(store: &Inner, mut claim: Claim, claimed: Claimed) -> Vec<Attempt> {
    let Claimed { mut attempts, mut is_all_there_is } = claimed;
    let wanted = claim.tasks_max as usize;
    while !is_all_there_is && attempts.len() < wanted {
        claim.tasks_max = (wanted - attempts.len()) as u32;
        let more = match claim_once(store, &claim).await {
            Ok(more) => more,
            Err(error) => {
                // The attempts so far are committed: the worker has to get them.
                log_behind_commit("claim of more tasks", &error);
                break;
            }
        };
        is_all_there_is = more.attempts.is_empty() || more.is_all_there_is;
        attempts.extend(more.attempts);
    }
    attempts
}

async fn claim_once(store: &Inner, claim: &Claim) -> Result<Claimed> {
    call::note_path(Verb::Claim, RequestPath::Fast);
    let news = match store.changed.since_nothing(Some(claim)) {
        Since::Nothing => return Ok(Claimed::default()),
        Since::NothingHeard(news) if is_idle(store, claim, news).await? => {
            return Ok(Claimed::default());
        }
        Since::NothingHeard(news) | Since::News(news) => news,
    };
    let mut new = admit_expected(store, 0).await;
    let claimed = claim_ready(store, claim, news, &mut new).await?;
    new.claimed(&claimed.attempts);
    Ok(claimed)
}

/// Takes ready tasks, and where there are none, those that admission makes ready.
async fn claim_ready(
    store: &Inner,
    claim: &Claim,
    news: u64,
    new: &mut NewlyReady<'_>,
) -> Result<Claimed> {
    let mut pick = Pick::new(store, claim);
    let mut taken = take_first(store, &mut pick).await?;
    let mut at_gate = None;
    if let Taken::Nothing(view, _) = &taken
        && view.has_due()
    {
        at_gate = new.admit_due_before(claim).await?;
        if at_gate.is_none() {
            pick.look = store.floors.look();
            taken = take_first(store, &mut pick).await?;
        }
    }
    let Taken::Nothing(view, took) = taken else {
        return go_on(store, pick, taken).await;
    };
    let is_complete = pick.closed.is_empty() && pick.look.is_complete(&view.open);
    let has_looked = view.is_noted && !view.needs_admission();
    if has_looked {
        let (open, last_task) = (pick.read(view.open.clone()), view.last_task);
        pick.look.found(Found { open, took, is_all: true, last_task, ..Found::default() });
    }
    if !pick.closed.is_empty() {
        // There may be more than the worker is told of.
        store.changed.here();
    }
    let is_thorough = !pick.look.again(&view.open);
    if !view.is_noted {
        call::note_fallback(Verb::Claim, FallbackReason::WorkerNotRecorded);
        transact!(store, tx => see(&tx, claim, &view));
    }
    if view.needs_admission() {
        call::note_fallback(Verb::Claim, FallbackReason::AdmissionPending);
        before_claim(store, claim, at_gate).await?;
        // What has come through the gate may be anywhere.
        pick.look = store.floors.look();
    } else if view.is_noted && is_thorough {
        if is_complete {
            store.changed.nothing_for(Some(claim), news, view.due_in());
        }
        return Ok(Claimed::default());
    }
    go_on(store, pick, Taken::Again).await
}

/// Takes ready tasks, if nothing waits for admission.
async fn take_first(store: &Inner, pick: &mut Pick<'_>) -> Result<Taken> {
    let mut taken = at_once!(store, tx => take_at_once(store, &tx, pick));
    if let Taken::Wider(open) = &taken {
        call::note_fallback(Verb::Claim, FallbackReason::ManyQueues);
        pick.widen(open);
        taken = at_once!(store, tx => take_at_once(store, &tx, pick));
    }
    if matches!(taken, Taken::Nothing(..)) && std::mem::take(&mut pick.look.arrived_from) > 0 {
        // The claim reports an empty result only after it has examined every submitted task.
        taken = at_once!(store, tx => take_at_once(store, &tx, pick));
    }
    Ok(taken)
}

/// A look of a worker that had nothing to do: whether that is still so.
async fn is_idle(store: &Inner, claim: &Claim, news: u64) -> Result<bool> {
    let (view, has_ready) = glimpse!(store, tx => look_idly(store, &tx, claim));
    if has_ready || view.needs_admission() {
        return Ok(false);
    }
    if !view.is_noted {
        transact!(store, tx => see(&tx, claim, &view));
    }
    store.changed.nothing_for(Some(claim), news, view.due_in());
    Ok(true)
}

/// Claims until there is nothing in the way.
async fn go_on(store: &Inner, mut pick: Pick<'_>, mut taken: Taken) -> Result<Claimed> {
    pick.is_told_to = true;
    let mut steps = 0;
    loop {
        match taken {
            Taken::Some(batch) => {
                if !pick.look.is_plain {
                    call::note_fallback(Verb::Claim, FallbackReason::TasksHoldSlots);
                }
                let (claimed, windows) = pick.settle(batch);
                follow_briefly(store, Left { windows, ..Left::default() }).await;
                return Ok(claimed);
            }
            Taken::Nothing(view, took) => {
                let View { open, last_task, .. } = view;
                let read = pick.read(open.clone());
                pick.look.found(Found {
                    open: read,
                    took,
                    is_all: true,
                    last_task,
                    ..Found::default()
                });
                if !pick.look.again(&open) {
                    if !pick.closed.is_empty() {
                        // There may be more than the worker is told of.
                        store.changed.here();
                    }
                    return Ok(Claimed::default());
                }
            }
            Taken::Wider(open) => pick.widen(&open),
            Taken::Special => {
                store.floors.meet_special();
                pick.look.is_plain = false;
            }
            Taken::Again => {}
            Taken::Stale(stale) => {
                call::note_fallback(Verb::Claim, FallbackReason::NewLimit);
                store.floors.meet_special();
                steps += 1;
                if steps <= STEPS_MAX && store.back.may_go_on() {
                    let is_many = steps > FEW_STEPS || store.back.is_many();
                    let way = is_many.then_some(&pick.look.from);
                    store.back.step(store, &stale, way).await?;
                } else if std::mem::replace(&mut pick.takes_rest, true) {
                    // They do not hold up the others.
                    store.back.close(&stale.lanes);
                    if pick.close(stale) {
                        store.changed.here();
                        return Ok(Claimed::default());
                    }
                }
                pick.look = store.floors.look();
            }
        }
        taken = at_once!(store, tx => take_at_once(store, &tx, &pick));
    }
}

/// What a claim asks for.
#[derive(Debug)]
pub(super) struct Pick<'a> {
    claim: &'a Claim,
    pub(super) look: Look<'a>,
    /// Whatever waits at the gate.
    is_told_to: bool,
    /// Whatever else there is that a younger limit applies to.
    takes_rest: bool,
    /// Lanes that are left out.
    closed: Vec<i64>,
    /// How many there may be besides.
    lanes: usize,
}

impl<'a> Pick<'a> {
    pub(super) fn new(store: &'a Inner, claim: &'a Claim) -> Self {
        let look = store.floors.look();
        let lanes = look.lanes.min(lanes_max(claim)).min(LANES_MAX);
        let closed = store.back.closed();
        let takes_rest = !store.back.may_go_on();
        Self { claim, look, is_told_to: false, takes_rest, closed, lanes }
    }

    /// There are more lanes than were reckoned with. Where they are too many, some are left out, and
    /// others the next time.
    fn widen(&mut self, open: &[LaneId]) {
        let mut open = self.read(open.to_vec());
        self.lanes = open.len().min(LANES_MAX);
        if open.len() > LANES_MAX {
            let first = self.look.first_of(open.len(), LANES_MAX);
            open.rotate_left(first);
            self.closed.extend(open[LANES_MAX..].iter().map(|lane| lane.0));
        }
    }

    /// Leaves out the lanes of these, and says whether no others are left.
    fn close(&mut self, stale: Stale) -> bool {
        self.closed.extend(stale.lanes);
        self.read(stale.open).is_empty()
    }

    /// The lanes it has read of those that are open.
    fn read(&self, mut open: Vec<LaneId>) -> Vec<LaneId> {
        open.retain(|lane| !self.closed.contains(&lane.0));
        open
    }

    /// The same, whatever waits at the gate.
    pub(super) fn told_to(store: &'a Inner, claim: &'a Claim) -> Self {
        Self { is_told_to: true, ..Self::new(store, claim) }
    }

    pub(super) fn claim(&self) -> &'a Claim {
        self.claim
    }

    /// What was taken is committed; gives also the jobs whose windows it left.
    pub(super) fn settle(&self, batch: Batch) -> (Claimed, Vec<LimitId>) {
        let Found { open, is_all, .. } = &batch.found;
        let is_behind = self.look.arrived_from > 0 || !self.look.is_thorough(open);
        let has_left_some = batch.has_left_some || !self.closed.is_empty();
        let is_all_there_is = !(has_left_some || *is_all && (is_behind || batch.has_due));
        self.look.found(batch.found);
        (Claimed { attempts: batch.attempts, is_all_there_is }, batch.windows)
    }
}

/// The lanes that a claim may be about.
fn lanes_max(claim: &Claim) -> usize {
    (claim.queues.len() * claim.kinds.len()).max(1)
}

/// Tasks that are taken and committed.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) attempts: Vec<Attempt>,
    /// As many as were wanted, or all that there are.
    pub(super) is_all_there_is: bool,
}

impl Default for Claimed {
    fn default() -> Self {
        Self { attempts: Vec::new(), is_all_there_is: true }
    }
}

/// Tasks that are taken.
#[derive(Debug)]
pub(super) struct Batch {
    attempts: Vec<Attempt>,
    /// The jobs whose windows they left.
    windows: Vec<LimitId>,
    /// Some that a younger limit applies to were left.
    has_left_some: bool,
    /// A task is due that this claim has passed.
    has_due: bool,
    found: Found,
}

impl Batch {
    pub(super) fn tasks(&self) -> BTreeSet<TaskId> {
        self.attempts.iter().map(|attempt| attempt.task).collect()
    }

    fn of(row: &Row, leased: Leased, bodies: &Bodies, pick: &Pick<'_>) -> Result<Self> {
        let attempts = leased.attempts(bodies)?;
        let (mut last, stale) = (last(row), Stale::of(row));
        // The next claim begins before those that were left.
        last.retain(|lane, _| !stale.lanes.contains(&lane.0));
        let found = Found {
            open: pick.read(open(row)),
            last,
            is_all: stale.tasks.is_empty() && attempts.len() < pick.claim.tasks_max as usize,
            is_special: row.get("has_special"),
            last_task: last_task(row),
            took: took(row),
        };
        let windows: Vec<i64> = row.get("windows");
        let windows = windows.into_iter().map(LimitId).collect();
        let (has_left_some, has_due) = (!stale.tasks.is_empty(), View::of(row).has_due());
        Ok(Self { attempts, windows, has_left_some, has_due, found })
    }

    /// These with slots were to be met; others would be special.
    pub(super) fn expected(&mut self, ready: &[ReadyRow]) {
        let is_expected = |task: TaskId| ready.iter().any(|row| row.task == task);
        let mut held = self.attempts.iter().filter(|attempt| !attempt.slots.is_empty());
        self.found.is_special = held.any(|attempt| !is_expected(attempt.task));
    }

    /// The same behind others that the worker has got already.
    pub(super) fn after(mut self, mut others: Vec<Attempt>, claim: &Claim) -> Self {
        others.append(&mut self.attempts);
        self.found.is_all &= others.len() < claim.tasks_max as usize;
        self.attempts = others;
        self
    }

    fn nothing(view: View, took: Duration) -> Self {
        let has_due = view.has_due();
        let View { open, last_task, .. } = view;
        let found = Found { open, is_all: true, took, last_task, ..Found::default() };
        Self { attempts: Vec::new(), windows: Vec::new(), has_left_some: false, has_due, found }
    }
}

/// The last that was picked of each lane.
fn last(row: &Row) -> BTreeMap<LaneId, Key> {
    let list = |column: &str| row.get::<_, Vec<i64>>(column).into_iter();
    let keys = list("ranks").zip(list("tags")).zip(list("tasks"));
    let keys = keys.map(|((rank, tag), task)| (rank, tag, task));
    list("lanes").map(LaneId).zip(keys).collect()
}

/// How long the server took.
fn took(row: &Row) -> Duration {
    Duration::from_micros(row.get::<_, i64>("took_us").unsigned_abs())
}

/// What came of it.
#[derive(Debug)]
enum Taken {
    Some(Batch),
    /// What was seen, and how long it took.
    Nothing(View, Duration),
    Stale(Stale),
    /// There are some that are not plain.
    Special,
    /// More lanes are open, these, than were reckoned with.
    Wider(Vec<LaneId>),
    /// The gate was in the way.
    Again,
}

impl Taken {
    fn of(row: &Row, bodies: &Bodies, pick: &Pick<'_>) -> Result<Self> {
        if let Some(leased) = Leased::of(row)? {
            return Batch::of(row, leased, bodies, pick).map(Self::Some);
        }
        let stale = Stale::of(row);
        if !stale.tasks.is_empty() {
            return Ok(Self::Stale(stale));
        }
        if row.get::<_, Option<Vec<i64>>>("tasks").is_some() {
            return Ok(Self::Special);
        }
        let view = View::of(row);
        let is_read = view.is_noted && (pick.is_told_to || !view.has_gate_work);
        if is_read && pick.read(view.open.clone()).len() > pick.lanes {
            return Ok(Self::Wider(view.open));
        }
        Ok(Self::Nothing(view, took(row)))
    }
}

/// Notes that the worker lives and what it serves, in a transaction of its own.
async fn see(tx: &Tx<'_>, claim: &Claim, view: &View) -> Result<(), Fault> {
    let alive_until = view.moment.now + claim.lease_ms;
    let open: Vec<i64> = view.open.iter().map(|lane| lane.0).collect();
    tx.execute(SEE_WORKER, &[&&*claim.worker.0, &alive_until, &open]).await?;
    Ok(())
}

/// Notes what a worker asks for before a transaction that needs it noted.
pub(super) async fn announce(store: &Inner, claim: &Claim) -> Result<()> {
    let note = async |tx: &Tx<'_>| {
        let view = look(store, tx, Some(claim)).await?;
        see(tx, claim, &view).await?;
        tx.commit().await
    };
    let noted = once!(store, client, begin, tx => note(&tx));
    Ok(noted?)
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

async fn take_at_once(store: &Inner, tx: &Tx<'_>, pick: &Pick<'_>) -> Result<Taken, Fault> {
    let ((), taken, ()) = tokio::try_join!(biased;
        share_version(store, tx),
        take(store, tx, pick, &pick.look.from),
        tx.commit(),
    )?;
    Ok(taken)
}

async fn take(store: &Inner, tx: &Tx<'_>, pick: &Pick<'_>, from: &From) -> Result<Taken, Fault> {
    let sort = if pick.look.is_plain { Sort::Plain } else { Sort::Any };
    let (row, bodies) = tokio::try_join!(biased; ask(store, tx, pick, from, sort), bodies(tx))?;
    Ok(Taken::of(&row, &bodies, pick)?)
}

/// Gives the row that tells what came of it.
async fn ask(
    store: &Inner,
    tx: &Tx<'_>,
    pick: &Pick<'_>,
    from: &From,
    sort: Sort,
) -> Result<Row, Fault> {
    let sql = store.options.claim_texts().of(pick.lanes, sort);
    let (queues, kinds) = names(Some(pick.claim));
    let Claim { worker, tasks_max, lease_ms, .. } = pick.claim;
    let (worker, wanted, now) = (&*worker.0, i64::from(*tasks_max), store.options.now());
    let Pick { is_told_to, takes_rest, closed, .. } = pick;
    let From { lanes, ranks, tags, tasks } = from;
    let lanes_max = pick.lanes as i64;
    let params: Params<'_> = &[
        &queues,
        &kinds,
        &worker,
        lease_ms,
        &now,
        &pick.look.arrived_from,
        &wanted,
        is_told_to,
        closed,
        lanes,
        ranks,
        tags,
        tasks,
        &lanes_max,
        takes_rest,
    ];
    let row = tx.one(sql, params).await?;
    store.floors.meet_lanes(open(&row).len());
    store.next_due.update_from(&row);
    Ok(row)
}

/// No limit begins from here to the end of the transaction.
pub(super) async fn share_version(store: &Inner, tx: &Tx<'_>) -> Result<(), Fault> {
    if store.options.is_planted(Bug::VersionUnshared) {
        return Ok(());
    }
    tx.query(VERSION_SHARED, &[]).await.map(drop)
}

/// The claim that goes with exits, in their transaction. None where it has to follow: something
/// waits at the gate, or a limit has begun that the tasks have to go back for. `new` are the first of
/// each lane that the same transaction has made ready.
pub(super) async fn take_along(
    store: &Inner,
    tx: &Tx<'_>,
    pick: Option<&Pick<'_>>,
    new: &[ReadyRow],
) -> Result<Option<Batch>, Fault> {
    let Some(pick) = pick else {
        return Ok(None);
    };
    let from = pick.look.from.not_above(new);
    Ok(along(store, take(store, tx, pick, &from).await?, pick))
}

fn along(store: &Inner, taken: Taken, pick: &Pick<'_>) -> Option<Batch> {
    match taken {
        Taken::Some(batch) => Some(batch),
        Taken::Special => {
            store.floors.meet_special();
            None
        }
        Taken::Nothing(view, took) if pick.is_told_to || view.is_noted && !view.has_gate_work => {
            Some(Batch::nothing(view, took))
        }
        _ => None,
    }
}

/// The same where the bodies are asked for once, for this and for what the transaction has done before.
pub(super) async fn ask_along(
    store: &Inner,
    tx: &Tx<'_>,
    pick: Option<&Pick<'_>>,
    sort: Sort,
) -> Result<Option<Row>, Fault> {
    match pick {
        Some(pick) => ask(store, tx, pick, &pick.look.from, sort).await.map(Some),
        None => Ok(None),
    }
}

/// What came of it.
pub(super) fn taken_along(
    store: &Inner,
    row: &Row,
    bodies: &Bodies,
    pick: &Pick<'_>,
) -> Result<Option<Batch>> {
    Ok(along(store, Taken::of(row, bodies, pick)?, pick))
}
