//! Sends back to the gate what a younger limit applies to.
//!
//! A limit holds from its first moment: no claim takes a task that was made ready before it. Such tasks
//! have to come to the gate once more. Whoever meets them sends some of them back, many at a time; and
//! where there are a great many, it does so for a part of the time only, so that others go on.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_core::rules::gate;
use tidegate_core::tables::{Position, ReadyRow, Tables};
use tidegate_core::{LaneId, Result};
use tokio_postgres::Row;

use super::claim::share_version;
use super::draft::Left;
use super::error::Fault;
use super::floors::{From, key};
use super::flush::flush;
use super::gate::{BUDGET, follow_briefly};
use super::load::{Wanted, gather, moment};
use super::look::open;
use super::paged::Paged;
use super::rows;
use super::session::Tx;
use super::{Inner, transact};

const LOCK_STALE_OF: &str = include_str!("queries/lock_stale_ready_tasks.sql");
static LOCK_STALE: Paged = Paged::new(include_str!("queries/lock_stale_ready_in_lanes.sql"));

/// Tasks that go back in one transaction where there are many, about.
const STEP: usize = 1000;

/// While there are more, the pauses between steps are so many times as long as they take.
const APART: u32 = 4;

/// Tasks that a claim has met.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) tasks: Vec<i64>,
    pub(super) lanes: Vec<i64>,
    /// All lanes that are open.
    pub(super) open: Vec<LaneId>,
}

impl Stale {
    pub(super) fn of(row: &Row) -> Self {
        let list = |column| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
        Self { tasks: list("stale"), lanes: list("stale_lanes"), open: open(row) }
    }
}

/// Of so many claims in a pause one looks at the lanes that were closed.
const CLOSED_FOR: u32 = 8;

/// When this process may send back the next of many.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: Option<Instant>,
    /// Lanes where nothing else was met in this pause, and how many claims have left them out.
    closed: BTreeSet<i64>,
    claims: u32,
}

impl Pace {
    pub(super) fn is_many(&self) -> bool {
        self.state().next.is_some()
    }

    pub(super) fn may_go_on(&self) -> bool {
        self.state().next.is_none_or(|next| now() >= next)
    }

    /// In these lanes nothing is met but what has to go back.
    pub(super) fn close(&self, lanes: &[i64]) {
        let mut state = self.state();
        if state.next.is_some() {
            state.closed.extend(lanes);
        }
    }

    /// The lanes that a claim leaves out.
    pub(super) fn closed(&self) -> Vec<i64> {
        let mut state = self.state();
        if state.closed.is_empty() || state.next.is_none_or(|next| now() >= next) {
            state.closed.clear();
            return Vec::new();
        }
        state.claims = (state.claims + 1) % CLOSED_FOR;
        if state.claims == 0 { Vec::new() } else { state.closed.iter().copied().collect() }
    }

    /// Sends these back, or the first of their lanes from these floors.
    pub(super) async fn step(
        &self,
        store: &Inner,
        stale: &Stale,
        lanes_from: Option<&From>,
    ) -> Result<()> {
        let began = now();
        let (tasks, left) = transact!(store, tx => send_back(store, &tx, stale, lanes_from));
        if lanes_from.is_some() {
            let ended = now();
            let next = (tasks >= STEP / 2).then(|| ended + (ended - began) * APART);
            *self.state() = State { next, ..State::default() };
            // Whoever looked meanwhile found them locked.
            store.changed.tell();
        }
        follow_briefly(store, left).await;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::disallowed_methods, reason = "a pace; nothing depends on it")]
fn now() -> Instant {
    Instant::now()
}

/// Locks those who go back.
async fn lock(
    tx: &Tx<'_>,
    stale: &Stale,
    lanes_from: Option<&From>,
) -> Result<Vec<ReadyRow>, Fault> {
    let rows = match lanes_from {
        None => tx.query(LOCK_STALE_OF, &[&stale.tasks]).await?,
        Some(from) => {
            let From { lanes, ranks, tags, tasks } = from.of(&stale.lanes);
            let (sql, _) = LOCK_STALE.of(STEP.div_ceil(lanes.len().max(1)));
            tx.query(sql, &[&lanes, &ranks, &tags, &tasks]).await?
        }
    };
    let mut rows: Vec<ReadyRow> = rows.iter().map(rows::ready).collect();
    rows.sort_by_key(key);
    Ok(rows)
}

async fn send_back(
    store: &Inner,
    tx: &Tx<'_>,
    stale: &Stale,
    lanes_from: Option<&From>,
) -> Result<(usize, Left), Fault> {
    let ((), moment, rows) = tokio::try_join!(biased;
        share_version(store, tx),
        moment(store, tx),
        lock(tx, stale, lanes_from),
    )?;
    let tasks = rows.iter().map(|row| row.task).collect();
    let wanted = Wanted { tasks, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    rows.iter().for_each(|row| draft.stand(row.task, Position::Ready(*row)));
    draft.seal();
    for row in &rows {
        draft.take_ready(*row)?;
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
    Ok((rows.len(), draft.left()))
}
