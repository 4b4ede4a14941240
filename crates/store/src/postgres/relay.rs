//! Hands slots on without the locks of their limits.
//!
//! A limit whose line is long would make all who finish under it wait for each other's commit. But
//! where as many begin as end, nothing of the limit changes except who holds which number: so
//! whoever ends a task takes the next in line along, and all of them share the limit.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, Exit, LaneId, LimitId, Result, TaskId};
use tokio_postgres::Row;

use super::Inner;
use super::claim::{Batch, Claimed, Pick, ask_along, taken_along};
use super::claim_texts::Sort;
use super::draft::Left;
use super::error::Fault;
use super::failed::{FailedBatch, may_be_fast};
use super::finish::{Told, end_told};
use super::floors::{From, Key};
use super::gate::follow_briefly;
use super::holding::{Lines, Reached, now};
use super::leased::{Leased, bodies};
use super::look::{names, open};
use super::session::{Params, Tx, at_once};

pub(super) const HOLD_LIMITS: &str = include_str!("queries/lock_limits_shared_then_leases.sql");
const RELAY: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/hand_off_eligible.sql"),
    include_str!("queries/hand_off_start.sql"),
    include_str!("queries/record_limit_deltas.sql"),
    include_str!("queries/complete_tasks.sql"),
    include_str!("queries/hand_off_result.sql")
);
const ADMIT: &str = concat!(
    include_str!("queries/claim_probe.sql"),
    include_str!("queries/hand_off_eligible.sql"),
    include_str!("queries/hand_off_admit.sql"),
    include_str!("queries/record_limit_deltas.sql"),
    include_str!("queries/complete_tasks.sql"),
    include_str!("queries/hand_off_admit_result.sql")
);

/// A list that is not there is empty.
fn list(row: &Row, column: &str) -> impl Iterator<Item = i64> {
    row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default().into_iter()
}

/// The last in each line of those who left it.
fn furthest(row: &Row) -> BTreeMap<LimitId, Reached> {
    let keys = list(row, "ranks").zip(list(row, "line_tags")).zip(list(row, "places"));
    let (now, of_lines) = (now(), list(row, "limits").zip(list(row, "parked_total")));
    let mut furthest: BTreeMap<LimitId, Reached> = BTreeMap::new();
    for ((limit, refused), ((rank, tag), place)) in of_lines.zip(keys) {
        let key = (rank, tag, place);
        let new = Reached { refused, key, looked_at: now };
        let one = furthest.entry(LimitId(limit)).or_insert(new);
        one.key = one.key.max(key);
    }
    furthest
}

/// What is ready first in lanes.
fn first(row: &Row) -> BTreeMap<LaneId, Key> {
    let keys = list(row, "first_ranks").zip(list(row, "first_tags")).zip(list(row, "first_tasks"));
    let keys = keys.map(|((rank, tag), task)| (rank, tag, task));
    list(row, "first_lanes").map(LaneId).zip(keys).collect()
}

/// Those who are ready with their slots.
fn admitted(row: &Row) -> Vec<ReadyRow> {
    let tasks = list(row, "holders").zip(list(row, "lanes"));
    let places = list(row, "ranks").zip(list(row, "tags"));
    let ready = |((task, lane), (rank, tag))| ReadyRow {
        task: TaskId(task),
        lane: LaneId(lane),
        rank,
        tag,
        stamp: row.get("limits_version"),
        gated: true,
        since: row.get("now"),
    };
    tasks.zip(places).map(ready).collect()
}

/// Notes when the next task is due: by the look of the hand-off, and by the retries that were written after it.
fn note_due(store: &Inner, row: &Row, failed: Option<&FailedBatch>) {
    store.next_due.update_from(row);
    if let Some(failed) = failed {
        failed.note_due(store);
    }
}

/// Whether a task is due, or a limit is due to be looked at.
fn is_due(row: &Row) -> bool {
    row.get::<_, Option<i64>>("next_due").is_some_and(|due| due <= row.get("now"))
}

/// What became of exits.
pub(super) enum Relay {
    /// They are ended, and this runs instead.
    Done(Claimed),
    /// These are yet to be ended, and the claim has to follow: those that hold slots or may, and those
    /// that do not. `is_refused`: some of the former could have been handed on.
    Left { slow: Vec<Exit>, quick: Vec<Exit>, is_refused: bool },
    /// Nothing is done: these failed attempts need the general path first. The others may be tried again.
    NotEligible { failed: Vec<Exit>, others: Vec<Exit> },
    /// These are yet to be ended: tasks wait for admission that may come before the next in line.
    AdmissionPending { exits: Vec<Exit>, is_due: bool },
}

/// Ends attempts, and goes on with the next in line. `has_new_ready`: the same call has made tasks ready, which
/// come before the next in line.
pub(super) async fn relay(
    store: &Inner,
    exits: Vec<Exit>,
    claim: &Claim,
    has_new_ready: bool,
) -> Result<Relay> {
    let held = store.holding.take(&exits);
    let (mut mine, mut rest): (Vec<_>, Vec<_>) =
        exits.into_iter().partition(|exit| held.contains_key(&exit.task));
    if mine.is_empty() {
        return Ok(Relay::Left { slow: mine, quick: rest, is_refused: false });
    }
    // Where fewer are wanted than end, the next in line are ready for any worker.
    if rest.is_empty() && !has_new_ready && mine.len() <= claim.tasks_max as usize {
        let baton = Baton { told: Told::new(&mine), lines: store.holding.lines(&mine, &held) };
        match hand_on(store, &mine, baton, Pick::new(store, claim)).await? {
            HandOff::Done(claimed) => return Ok(Relay::Done(claimed)),
            HandOff::NotEligible(failed) => {
                return Ok(not_eligible(store, mine, &failed, &held));
            }
            HandOff::AdmissionPending { is_due } => {
                store.holding.put_back(&mine, &held);
                return Ok(Relay::AdmissionPending { exits: mine, is_due });
            }
            HandOff::Refused { held } => {
                let is_held = |exit: &Exit| held.contains(&exit.task.0);
                (mine, rest) = mine.into_iter().partition(is_held);
            }
        }
        if mine.is_empty() {
            return Ok(Relay::Left { slow: rest, quick: Vec::new(), is_refused: true });
        }
    }
    let baton = Baton { told: Told::new(&mine), lines: store.holding.lines(&mine, &held) };
    admit(store, mine, rest, baton, Pick::new(store, claim), &held).await
}

/// Splits off the failed attempts that need the general path.
fn not_eligible(
    store: &Inner,
    exits: Vec<Exit>,
    failed: &FailedBatch,
    held: &BTreeMap<TaskId, LimitId>,
) -> Relay {
    let (others, failed) = failed.partition(exits);
    store.holding.put_back(&others, held);
    Relay::NotEligible { failed, others }
}

/// What is handed on.
struct Baton {
    told: Told,
    lines: Lines,
}

impl Baton {
    fn slots(&self) -> i64 {
        self.told.tasks.len() as i64
    }
}

/// What became of a hand-off.
enum HandOff {
    Done(Claimed),
    NotEligible(FailedBatch),
    AdmissionPending {
        is_due: bool,
    },
    /// Nothing is done. The next in line may be admitted for these exits; for none of them where the
    /// general path has to do it.
    Refused {
        held: Vec<i64>,
    },
}

/// Everybody who ends holds a slot, and the next in line takes it over.
async fn hand_on(store: &Inner, exits: &[Exit], baton: Baton, pick: Pick<'_>) -> Result<HandOff> {
    let relayed = at_once!(store, tx => send_relay(store, &tx, exits, &baton, &pick));
    let Relayed { attempts, furthest, open, first, last_task, is_to_look, claimed } = match relayed
    {
        Answer::Done(relayed) => *relayed,
        Answer::NotEligible(failed) => return Ok(HandOff::NotEligible(failed)),
        Answer::AdmissionPending { is_due } => return Ok(HandOff::AdmissionPending { is_due }),
        Answer::Refused(held) => return Ok(HandOff::Refused { held }),
    };
    if is_to_look {
        store.changed.here();
    }
    store.holding.reached(furthest, &baton.lines);
    pick.look.looked(&open, &first, last_task);
    let mut left = Left::default();
    let claim = pick.claim();
    let claimed = match claimed {
        Some(batch) => {
            let (claimed, windows) = pick.settle(batch.after(attempts, claim));
            left.windows = windows;
            claimed
        }
        None => {
            let is_all_there_is = attempts.len() == claim.tasks_max as usize;
            Claimed { attempts, is_all_there_is }
        }
    };
    follow_briefly(store, left).await;
    Ok(HandOff::Done(claimed))
}

/// What the server answers to a hand-off.
enum Answer {
    Done(Box<Relayed>),
    NotEligible(FailedBatch),
    AdmissionPending {
        is_due: bool,
    },
    /// With the exits for which the next in line may be admitted.
    Refused(Vec<i64>),
}

struct Relayed {
    attempts: Vec<Attempt>,
    /// How far they were in their lines.
    furthest: BTreeMap<LimitId, Reached>,
    /// The lanes that were looked at, and what is ready first there.
    open: Vec<LaneId>,
    first: BTreeMap<LaneId, Key>,
    last_task: i64,
    /// Whether somebody has to look a moment later, whoever was told that there is nothing.
    is_to_look: bool,
    /// What was claimed beside; none where the claim has to follow.
    claimed: Option<Batch>,
}

/// Sends the locks; and where some attempts failed, waits until it is decided about them.
async fn hold_and_decide(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
    leases: &Vec<i64>,
    lines: &Lines,
) -> Result<FailedBatch, Fault> {
    let (_, failed) = tokio::try_join!(biased;
        hold(store, tx, leases, lines),
        FailedBatch::decide(store, tx, exits),
    )?;
    Ok(failed)
}

/// All in one round trip; in two if some attempts failed.
async fn send_relay(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
    baton: &Baton,
    pick: &Pick<'_>,
) -> Result<Answer, Fault> {
    let mut failed = None;
    if exits.iter().any(may_be_fast) {
        let decided = hold_and_decide(store, tx, exits, &baton.told.leases, &baton.lines).await?;
        if !decided.partition(exits.to_vec()).1.is_empty() {
            return Ok(Answer::NotEligible(decided));
        }
        failed = Some(decided);
    }
    let wanted = i64::from(pick.claim().tasks_max);
    let along = (wanted > baton.slots()).then_some(pick);
    let From { lanes, ranks, tags, tasks } = &pick.look.from;
    let order: Params<'_> = &[lanes, ranks, tags, tasks];
    let asked = Asked::new(pick, names(Some(pick.claim())).1);
    let (_, relayed, (), claimed, bodies, ()) = tokio::try_join!(biased;
        hold_first(store, tx, failed.as_ref(), &baton.told.leases, &baton.lines),
        send_baton(store, tx, RELAY, baton, &asked, order),
        write(tx, failed.as_ref()),
        ask_along(store, tx, along, Sort::Any),
        bodies(tx),
        tx.commit(),
    )?;
    note_due(store, &relayed, failed.as_ref());
    if !relayed.get::<_, bool>("is_on") {
        if relayed.get("has_gate_work") {
            return Ok(Answer::AdmissionPending { is_due: is_due(&relayed) });
        }
        return Ok(Answer::Refused(list(&relayed, "held").collect()));
    }
    let leased = Leased::of(&relayed)?;
    let attempts = leased.map(|leased| leased.attempts(&bodies)).transpose()?;
    let claimed = claimed.map(|row| taken_along(store, &row, &bodies, pick)).transpose()?;
    Ok(Answer::Done(Box::new(Relayed {
        attempts: attempts.unwrap_or_default(),
        furthest: furthest(&relayed),
        open: open(&relayed),
        first: first(&relayed),
        last_task: relayed.get("last_task"),
        is_to_look: relayed.get("has_recheck"),
        claimed: claimed.flatten(),
    })))
}

/// Takes the locks, unless they were taken to decide about failed attempts.
async fn hold_first(
    store: &Inner,
    tx: &Tx<'_>,
    failed: Option<&FailedBatch>,
    leases: &Vec<i64>,
    lines: &Lines,
) -> Result<(), Fault> {
    match failed {
        Some(_) => Ok(()),
        None => hold(store, tx, leases, lines).await.map(drop),
    }
}

async fn write(tx: &Tx<'_>, failed: Option<&FailedBatch>) -> Result<(), Fault> {
    match failed {
        Some(failed) => failed.write(tx).await,
        None => Ok(()),
    }
}

/// Others end beside those who hold slots, so a claim goes along that takes whoever is first: the next in
/// line are let in before it.
async fn admit(
    store: &Inner,
    mine: Vec<Exit>,
    rest: Vec<Exit>,
    baton: Baton,
    pick: Pick<'_>,
    held: &BTreeMap<TaskId, LimitId>,
) -> Result<Relay> {
    let others = Told::new(&rest);
    let exits: Vec<Exit> = mine.iter().chain(&rest).cloned().collect();
    let admission = at_once!(store, tx => send_admit(store, &tx, &exits, &baton, &others, &pick));
    let Admission { relayed, ended, claimed } = match admission {
        Ok(admission) => admission,
        Err(failed) => return Ok(not_eligible(store, exits, &failed, held)),
    };
    let mut slow: Vec<Exit> = rest.into_iter().filter(|exit| !ended.contains(&exit.task)).collect();
    let is_refused = !relayed.get::<_, bool>("is_on");
    if is_refused && relayed.get("has_gate_work") {
        store.holding.put_back(&mine, held);
        slow.extend(mine);
        return Ok(Relay::AdmissionPending { exits: slow, is_due: is_due(&relayed) });
    }
    let mut left = Left::default();
    if !is_refused {
        store.holding.reached(furthest(&relayed), &baton.lines);
        left.new = admitted(&relayed);
        if relayed.get("has_recheck") {
            store.changed.here();
        }
    } else {
        slow.extend(mine);
    }
    let settled = claimed.map(|mut batch| {
        let tasks = batch.tasks();
        batch.expected(&left.new);
        left.new.retain(|row| !tasks.contains(&row.task));
        let (claimed, windows) = pick.settle(batch);
        left.windows = windows;
        claimed
    });
    left.ready = !left.new.is_empty();
    follow_briefly(store, left).await;
    Ok(match settled {
        Some(claimed) => Relay::Done(claimed),
        None => Relay::Left { slow, quick: Vec::new(), is_refused },
    })
}

struct Admission {
    /// What became of those who hold slots.
    relayed: Row,
    /// Which of the others are ended.
    ended: BTreeSet<TaskId>,
    /// None where the claim has to follow.
    claimed: Option<Batch>,
}

/// All in one round trip; in two if some attempts failed. Gives the decisions about these, and does
/// nothing, where one of them needs the general path.
async fn send_admit(
    store: &Inner,
    tx: &Tx<'_>,
    exits: &[Exit],
    baton: &Baton,
    others: &Told,
    pick: &Pick<'_>,
) -> Result<Result<Admission, FailedBatch>, Fault> {
    let leases: BTreeSet<i64> = baton.told.leases.iter().chain(&others.leases).copied().collect();
    let leases: Vec<i64> = leases.into_iter().collect();
    let mut failed = None;
    if exits.iter().any(may_be_fast) {
        let decided = hold_and_decide(store, tx, exits, &leases, &baton.lines).await?;
        if !decided.partition(exits.to_vec()).1.is_empty() {
            return Ok(Err(decided));
        }
        failed = Some(decided);
    }
    // Only the lanes of those next in line matter.
    let kinds = pick.claim().kinds.iter().filter(|kind| baton.lines.kinds.contains(*kind));
    let asked = Asked::new(pick, kinds.map(|kind| &**kind).collect());
    let (_, relayed, ended, (), claimed, bodies, ()) = tokio::try_join!(biased;
        hold_first(store, tx, failed.as_ref(), &leases, &baton.lines),
        send_baton(store, tx, ADMIT, baton, &asked, &[]),
        end_told(store, tx, others),
        write(tx, failed.as_ref()),
        ask_along(store, tx, Some(pick), Sort::Admitted),
        bodies(tx),
        tx.commit(),
    )?;
    note_due(store, &relayed, failed.as_ref());
    // A claim that found exits before it has not looked at all.
    let is_all = relayed.get("is_on") && ended.len() == others.tasks.len();
    let claimed = claimed.filter(|_| is_all);
    let claimed = claimed.map(|row| taken_along(store, &row, &bodies, pick)).transpose()?;
    Ok(Ok(Admission { relayed, ended, claimed: claimed.flatten() }))
}

async fn hold(
    store: &Inner,
    tx: &Tx<'_>,
    leases: &Vec<i64>,
    lines: &Lines,
) -> Result<Vec<Row>, Fault> {
    tx.query(store.options.hold_limits_text(), &[leases, &lines.buckets()]).await
}

/// Who asks, and for which of its kinds.
struct Asked<'a> {
    claim: &'a Claim,
    kinds: Vec<&'a str>,
    arrived_from: i64,
}

impl<'a> Asked<'a> {
    fn new(pick: &Pick<'a>, kinds: Vec<&'a str>) -> Self {
        Self { claim: pick.claim(), kinds, arrived_from: pick.look.arrived_from }
    }
}

/// What both texts are about.
async fn send_baton(
    store: &Inner,
    tx: &Tx<'_>,
    sql: &'static str,
    baton: &Baton,
    asked: &Asked<'_>,
    more: Params<'_>,
) -> Result<Row, Fault> {
    let Baton { told: Told { tasks, tokens, results, leases }, lines } = baton;
    let Asked { claim, kinds, arrived_from } = asked;
    let (queues, _) = names(Some(claim));
    let (worker, now, slots) = (&*claim.worker.0, store.options.now(), baton.slots());
    let params: Params<'_> = &[
        &queues,
        kinds,
        &worker,
        &claim.lease_ms,
        &now,
        arrived_from,
        tasks,
        tokens,
        results,
        leases,
        &slots,
        &lines.limits,
        &lines.refused,
        &lines.ranks,
        &lines.tags,
        &lines.places,
    ];
    tx.one(sql, &[params, more].concat()).await
}
