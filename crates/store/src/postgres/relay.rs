//! Hands slots on without the locks of their limits.
//!
//! A limit whose line is long would make all who finish under it wait for each other's commit. But
//! where as many begin as end, nothing of the limit changes except who holds which number: so
//! whoever ends a task takes the next in line along, and all of them share the limit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::tables::ReadyRow;
use tidegate_core::{Attempt, Claim, Exit, LaneId, LimitId, Result, TaskId, Token};
use tokio_postgres::Row;

use super::Inner;
use super::claim::{Batch, Claimed, Pick, ask_along, taken_along};
use super::draft::Left;
use super::error::Fault;
use super::finish::Told;
use super::floors::From;
use super::gate::follow_briefly;
use super::leased::{Leased, bodies};
use super::look::names;
use super::session::{Params, Tx, at_once};

pub(super) const HOLD_LIMITS: &str = include_str!("queries/hold_limits.sql");
const RELAY: &str = concat!(
    include_str!("queries/look.sql"),
    include_str!("queries/relay.sql"),
    include_str!("queries/end.sql"),
    include_str!("queries/relayed.sql")
);

/// Attempts that are remembered at most.
const ATTEMPTS_MAX: usize = 100_000;

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
    lines: HashMap<LimitId, Reached>,
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
        let held = |attempt: &Attempt| match attempt.slots.as_slice() {
            [slot] if attempt.job.is_none() && attempt.workflow.is_none() => {
                Some(((attempt.token, attempt.task), slot.limit))
            }
            _ => None,
        };
        let mut state = self.state();
        state.attempts.extend(attempts.iter().filter_map(held));
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
        for (limit, reached) in limits.iter().filter_map(|id| Some((id, state.lines.get(id)?))) {
            if now < reached.looked_at + DUE {
                let (rank, tag, place) = reached.key;
                lines.limits.push(limit.0);
                lines.refused.push(reached.refused);
                lines.ranks.push(rank);
                lines.tags.push(tag);
                lines.places.push(place);
            }
        }
        (tasks, lines)
    }

    /// Some have left their lines, which were read from there on.
    fn reached(&self, furthest: BTreeMap<LimitId, Reached>, from: &Lines) {
        let mut state = self.state();
        for (limit, new) in furthest {
            let is_from_start = !from.limits.contains(&limit.0);
            let reached = state.lines.entry(limit).or_insert(new);
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
    let keys = list(row, "ranks").zip(list(row, "tags")).zip(list(row, "places"));
    let (now, of_lines) = (now(), list(row, "lines").zip(list(row, "refused")));
    let mut furthest: BTreeMap<LimitId, Reached> = BTreeMap::new();
    for ((limit, refused), ((rank, tag), place)) in of_lines.zip(keys) {
        let key = (rank, tag, place);
        let new = Reached { refused, key, looked_at: now };
        let one = furthest.entry(LimitId(limit)).or_insert(new);
        one.key = one.key.max(key);
    }
    furthest
}

/// Those who are ready instead of running: others come before them.
fn let_in(row: &Row) -> Vec<ReadyRow> {
    if row.get("is_first") {
        return Vec::new();
    }
    let tasks = list(row, "gone").zip(list(row, "lanes"));
    let places = list(row, "ranks").zip(list(row, "ready_tags"));
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
    refused: Vec<i64>,
    ranks: Vec<i64>,
    tags: Vec<i64>,
    places: Vec<i64>,
}

/// What became of exits.
pub(super) enum Relay {
    /// They are ended, and this runs instead.
    Done(Claimed),
    /// Those that hold slots are, and these run instead; the others are yet to be ended.
    Part(Vec<Attempt>, Vec<Exit>),
    /// Nothing was done: that is not all there is to it. These hold slots.
    No(BTreeSet<TaskId>),
}

/// Ends attempts that went well, and goes on with the next in line.
pub(super) async fn relay(store: &Inner, exits: &[Exit], claim: &Claim) -> Result<Relay> {
    let (held, lines) = store.holding.take(exits);
    if held.is_empty() || held.len() > claim.tasks_max as usize {
        return Ok(Relay::No(held));
    }
    let pick = Pick::new(store, claim);
    let (mine, rest): (Vec<_>, Vec<_>) =
        exits.iter().cloned().partition(|exit| held.contains(&exit.task));
    let (told, slots) = (Told::new(&mine), held.len() as i64);
    // A claim that has more to do than to fill up would keep the limits for as long as it takes.
    let may_fill_up = rest.is_empty();
    let baton = Baton { told, slots, may_fill_up, lines };
    let relayed = at_once!(store, tx => hand_on(store, &tx, &baton, &pick));
    let Some(Relayed { attempts, furthest, let_in, urgent, claimed }) = relayed else {
        return Ok(Relay::No(held));
    };
    store.holding.reached(furthest, &baton.lines);
    let is_ready = !let_in.is_empty();
    let mut left = Left { dirty: urgent, new: let_in, ready: is_ready, ..Left::default() };
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
    Ok(if rest.is_empty() { Relay::Done(claimed) } else { Relay::Part(claimed.attempts, rest) })
}

/// What is handed on.
struct Baton {
    told: Told,
    slots: i64,
    /// Whether a claim goes along where more are wanted than there are slots.
    may_fill_up: bool,
    lines: Lines,
}

struct Relayed {
    attempts: Vec<Attempt>,
    /// Who else has left a line, and is ready.
    let_in: Vec<ReadyRow>,
    /// How far that is in their lines.
    furthest: BTreeMap<LimitId, Reached>,
    /// Limits that somebody should look at.
    urgent: Vec<LimitId>,
    /// What was claimed beside; none where the claim has to follow.
    claimed: Option<Batch>,
}

/// All in one round trip.
async fn hand_on(
    store: &Inner,
    tx: &Tx<'_>,
    baton: &Baton,
    pick: &Pick<'_>,
) -> Result<Option<Relayed>, Fault> {
    let Baton { told: Told { tasks, tokens, results, leases }, slots, may_fill_up, lines } = baton;
    let claim = pick.claim();
    let (queues, kinds) = names(Some(claim));
    let (worker, now, wanted) = (&*claim.worker.0, store.options.now(), i64::from(claim.tasks_max));
    let From { lanes, ranks, tags, tasks: from } = &pick.look.from;
    let of_leases: Params<'_> = &[leases];
    let of_all: Params<'_> = &[
        &queues,
        &kinds,
        &worker,
        &claim.lease_ms,
        &now,
        tasks,
        tokens,
        results,
        leases,
        lanes,
        ranks,
        tags,
        from,
        slots,
        &wanted,
        &lines.limits,
        &lines.refused,
        &lines.ranks,
        &lines.tags,
        &lines.places,
        &!may_fill_up,
    ];
    let along = (*may_fill_up && wanted > *slots).then_some(pick);
    let (_, relayed, claimed, bodies, ()) = tokio::try_join!(biased;
        tx.query(store.options.hold_limits_text(), of_leases),
        tx.one(RELAY, of_all),
        ask_along(store, tx, along),
        bodies(tx),
        tx.commit(),
    )?;
    if !relayed.get::<_, bool>("is_on") {
        return Ok(None);
    }
    let urgent: Vec<i64> = relayed.get("urgent");
    let leased = Leased::of(&relayed);
    Ok(Some(Relayed {
        attempts: leased.map_or_else(Vec::new, |leased| leased.attempts(&bodies)),
        let_in: let_in(&relayed),
        furthest: furthest(&relayed),
        urgent: urgent.into_iter().map(LimitId).collect(),
        claimed: claimed.and_then(|row| taken_along(store, &row, &bodies, pick)),
    }))
}
