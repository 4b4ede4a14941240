//! Hands slots on without the locks of their limits.
//!
//! A limit whose line is long would make all who finish under it wait for each other's commit. But
//! where as many begin as end, nothing of the limit changes except who holds which number: so
//! whoever ends a task takes the next in line along, and all of them share the limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, Exit, LaneId, LimitId, Result, TaskId, Token};
use tokio_postgres::Row;

use super::Inner;
use super::claim::{Batch, Claimed, Pick, Sort, ask_along, taken_along};
use super::draft::Left;
use super::error::Fault;
use super::finish::{Told, end_told};
use super::floors::{From, Key};
use super::gate::follow_briefly;
use super::leased::{Leased, bodies};
use super::look::{names, open};
use super::session::{Params, Tx, at_once};

pub(super) const HOLD_LIMITS: &str = include_str!("queries/hold_limits.sql");
const RELAY: &str = concat!(
    include_str!("queries/look.sql"),
    include_str!("queries/held.sql"),
    include_str!("queries/relay.sql"),
    include_str!("queries/pass.sql"),
    include_str!("queries/end.sql"),
    include_str!("queries/relayed.sql")
);
const ADMIT: &str = concat!(
    include_str!("queries/look.sql"),
    include_str!("queries/held.sql"),
    include_str!("queries/admit.sql"),
    include_str!("queries/pass.sql"),
    include_str!("queries/end.sql"),
    include_str!("queries/admitted.sql")
);

/// Attempts that are remembered at most.
const ATTEMPTS_MAX: usize = 100_000;

/// Limits whose lines are remembered at most.
const LINES_MAX: usize = 10_000;

/// A line is read from its start after so long: a relay that was undone may have left somebody
/// behind.
const DUE: Duration = Duration::from_millis(100);

/// What this process runs and could hand on, and how far it has come in the lines of the limits. A
/// guess: the server says what is so.
#[derive(Debug, Default)]
pub(super) struct Holding(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    attempts: BTreeMap<(Token, TaskId), LimitId>,
    lines: HashMap<LimitId, Line>,
}

/// What is known of the line of a limit.
#[derive(Debug, Default)]
struct Line {
    reached: Option<Reached>,
    /// Of which kinds tasks came out of it.
    kinds: BTreeSet<Arc<str>>,
}

/// The last who left a line for this process.
#[derive(Debug, Clone, Copy)]
struct Reached {
    /// How many had come to the line by then.
    refused: i64,
    /// Its place there: rank, tag, place.
    key: (i64, i64, i64),
    looked_at: Instant,
}

#[expect(clippy::disallowed_methods, reason = "a place in line is a guess; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl Holding {
    /// These were claimed.
    pub(super) fn add(&self, attempts: &[Attempt]) {
        let mut state = self.state();
        for attempt in attempts {
            if let [slot] = attempt.slots.as_slice()
                && attempt.job.is_none()
                && attempt.workflow.is_none()
            {
                state.attempts.insert((attempt.token, attempt.task), slot.limit);
                let line = state.lines.entry(slot.limit).or_default();
                if !line.kinds.contains(&attempt.kind) {
                    line.kinds.insert(attempt.kind.clone());
                }
            }
        }
        if state.lines.len() > LINES_MAX {
            state.lines.clear();
        }
        // Whoever never said how they ended did so long ago.
        while state.attempts.len() > ATTEMPTS_MAX {
            state.attempts.pop_first();
        }
    }

    /// Takes off those that end; gives which of them hold a slot, and the lines of their limits.
    fn take(&self, exits: &[Exit]) -> (BTreeSet<TaskId>, Lines) {
        let (mut tasks, mut limits) = (BTreeSet::new(), BTreeSet::new());
        let mut state = self.state();
        for exit in exits {
            if let Some(limit) = state.attempts.remove(&(exit.token, exit.task)) {
                tasks.insert(exit.task);
                limits.insert(limit);
            }
        }
        let now = now();
        let mut lines = Lines::default();
        for limit in limits {
            let line = state.lines.get(&limit);
            let reached = line.and_then(|line| line.reached.as_ref());
            lines.push(limit, reached.filter(|reached| now < reached.looked_at + DUE));
            lines.kinds.extend(line.into_iter().flat_map(|line| &line.kinds).cloned());
        }
        (tasks, lines)
    }

    /// Some have left their lines, which were read from there on.
    fn reached(&self, furthest: BTreeMap<LimitId, Reached>, from: &Lines) {
        let mut state = self.state();
        for (limit, new) in furthest {
            let is_from_start = from.is_from_start(limit);
            let line = state.lines.entry(limit).or_default();
            let reached = line.reached.get_or_insert(new);
            if is_from_start || new.refused > reached.refused {
                *reached = new;
            } else if new.refused == reached.refused {
                reached.key = reached.key.max(new.key);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list that is not there is empty.
fn list(row: &Row, column: &str) -> impl Iterator<Item = i64> {
    row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default().into_iter()
}

/// The last in each line of those who left it.
fn furthest(row: &Row) -> BTreeMap<LimitId, Reached> {
    let keys = list(row, "ranks").zip(list(row, "line_tags")).zip(list(row, "places"));
    let (now, of_lines) = (now(), list(row, "limits").zip(list(row, "refused")));
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

/// How far this process has come in lines, as columns of a statement.
#[derive(Debug, Default)]
struct Lines {
    limits: Vec<i64>,
    /// [`NEVER`] where the line is read from its start.
    refused: Vec<i64>,
    ranks: Vec<i64>,
    tags: Vec<i64>,
    places: Vec<i64>,
    /// The kinds of which tasks are expected there.
    kinds: BTreeSet<Arc<str>>,
}

/// No line has been come to so often.
const NEVER: i64 = -1;

impl Lines {
    fn push(&mut self, limit: LimitId, reached: Option<&Reached>) {
        let (rank, tag, place) = reached.map(|reached| reached.key).unwrap_or_default();
        self.limits.push(limit.0);
        self.refused.push(reached.map_or(NEVER, |reached| reached.refused));
        self.ranks.push(rank);
        self.tags.push(tag);
        self.places.push(place);
    }

    fn is_from_start(&self, limit: LimitId) -> bool {
        let mut lines = self.limits.iter().zip(&self.refused);
        lines.any(|(id, refused)| *id == limit.0 && *refused == NEVER)
    }

    /// What stands for the limits in `hold_limits.sql`, in the one order of locks.
    fn buckets(&self) -> Vec<i32> {
        let buckets: BTreeSet<i32> = self.limits.iter().map(|id| (id % 256) as i32).collect();
        buckets.into_iter().collect()
    }
}

/// What became of exits.
pub(super) enum Relay {
    /// They are ended, and this runs instead.
    Done(Claimed),
    /// These are yet to be ended, and the claim has to follow: those that hold slots or may, and those
    /// that do not.
    Left { slow: Vec<Exit>, quick: Vec<Exit> },
}

/// Ends attempts that went well, and goes on with the next in line.
pub(super) async fn relay(store: &Inner, exits: Vec<Exit>, claim: &Claim) -> Result<Relay> {
    let (held, lines) = store.holding.take(&exits);
    let (mine, rest): (Vec<_>, Vec<_>) =
        exits.into_iter().partition(|exit| held.contains(&exit.task));
    if mine.is_empty() || rest.is_empty() && mine.len() > claim.tasks_max as usize {
        return Ok(Relay::Left { slow: mine, quick: rest });
    }
    let (baton, pick) = (Baton { told: Told::new(&mine), lines }, Pick::new(store, claim));
    if rest.is_empty() {
        hand_on(store, mine, baton, pick).await
    } else {
        admit(store, mine, rest, baton, pick).await
    }
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

/// Everybody who ends holds a slot, and the next in line takes it over.
async fn hand_on(store: &Inner, exits: Vec<Exit>, baton: Baton, pick: Pick<'_>) -> Result<Relay> {
    let relayed = at_once!(store, tx => send_relay(store, &tx, &baton, &pick));
    let Some(Relayed { attempts, furthest, open, first, last_task, is_to_look, claimed }) = relayed
    else {
        return Ok(Relay::Left { slow: exits, quick: Vec::new() });
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
    Ok(Relay::Done(claimed))
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

/// All in one round trip.
async fn send_relay(
    store: &Inner,
    tx: &Tx<'_>,
    baton: &Baton,
    pick: &Pick<'_>,
) -> Result<Option<Relayed>, Fault> {
    let wanted = i64::from(pick.claim().tasks_max);
    let along = (wanted > baton.slots()).then_some(pick);
    let From { lanes, ranks, tags, tasks } = &pick.look.from;
    let order: Params<'_> = &[lanes, ranks, tags, tasks];
    let asked = Asked::new(pick, names(Some(pick.claim())).1);
    let (_, relayed, claimed, bodies, ()) = tokio::try_join!(biased;
        hold(store, tx, &baton.told.leases, &baton.lines),
        send_baton(store, tx, RELAY, baton, &asked, order),
        ask_along(store, tx, along, Sort::Any),
        bodies(tx),
        tx.commit(),
    )?;
    if !relayed.get::<_, bool>("is_on") {
        return Ok(None);
    }
    let leased = Leased::of(&relayed)?;
    let attempts = leased.map(|leased| leased.attempts(&bodies)).transpose()?;
    let claimed = claimed.map(|row| taken_along(store, &row, &bodies, pick)).transpose()?;
    Ok(Some(Relayed {
        attempts: attempts.unwrap_or_default(),
        furthest: furthest(&relayed),
        open: open(&relayed),
        first: first(&relayed),
        last_task: relayed.get("last_task"),
        is_to_look: relayed.get("is_to_look"),
        claimed: claimed.flatten(),
    }))
}

/// Others end beside those who hold slots, so a claim goes along that takes whoever is first: the next in
/// line are let in before it.
async fn admit(
    store: &Inner,
    mine: Vec<Exit>,
    rest: Vec<Exit>,
    baton: Baton,
    pick: Pick<'_>,
) -> Result<Relay> {
    let others = Told::new(&rest);
    let Admission { relayed, ended, claimed } =
        at_once!(store, tx => send_admit(store, &tx, &baton, &others, &pick));
    let mut slow: Vec<Exit> = rest.into_iter().filter(|exit| !ended.contains(&exit.task)).collect();
    let mut left = Left::default();
    if relayed.get("is_on") {
        store.holding.reached(furthest(&relayed), &baton.lines);
        left.new = admitted(&relayed);
        if relayed.get("is_to_look") {
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
        None => Relay::Left { slow, quick: Vec::new() },
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

/// All in one round trip.
async fn send_admit(
    store: &Inner,
    tx: &Tx<'_>,
    baton: &Baton,
    others: &Told,
    pick: &Pick<'_>,
) -> Result<Admission, Fault> {
    let leases: BTreeSet<i64> = baton.told.leases.iter().chain(&others.leases).copied().collect();
    let leases = leases.into_iter().collect();
    // Only the lanes of those next in line matter.
    let kinds = pick.claim().kinds.iter().filter(|kind| baton.lines.kinds.contains(*kind));
    let asked = Asked::new(pick, kinds.map(|kind| &**kind).collect());
    let (_, relayed, ended, claimed, bodies, ()) = tokio::try_join!(biased;
        hold(store, tx, &leases, &baton.lines),
        send_baton(store, tx, ADMIT, baton, &asked, &[]),
        end_told(store, tx, others),
        ask_along(store, tx, Some(pick), Sort::Admitted),
        bodies(tx),
        tx.commit(),
    )?;
    // A claim that found exits before it has not looked at all.
    let is_all = relayed.get("is_on") && ended.len() == others.tasks.len();
    let claimed = claimed.filter(|_| is_all);
    let claimed = claimed.map(|row| taken_along(store, &row, &bodies, pick)).transpose()?;
    Ok(Admission { relayed, ended, claimed: claimed.flatten() })
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
