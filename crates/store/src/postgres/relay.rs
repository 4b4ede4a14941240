//! Hands slots on without the locks of their limits.
//!
//! A limit whose line is long would make all who finish under it wait for each other's commit. But
//! where as many begin as end, nothing of the limit changes except who holds which number: so
//! whoever ends a task takes the next in line along, and all of them share the limit.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::{Attempt, Claim, Exit, LimitId, Result, TaskId, Token};
use tokio_postgres::Row;

use super::Inner;
use super::claim::{Batch, Claimed, Pick, attempts, names, share_version, take_along};
use super::draft::Left;
use super::error::Fault;
use super::finish::Told;
use super::floors::From;
use super::gate::follow_briefly;
use super::session::{Params, Tx, at_once};

const LIMITS_SHARED: &str = include_str!("queries/limits_shared.sql");
const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
pub(super) const RELAY: &str = concat!(
    include_str!("queries/look.sql"),
    include_str!("queries/relay.sql"),
    include_str!("queries/end.sql"),
    include_str!("queries/relayed.sql")
);

/// Attempts that are remembered at most.
const ATTEMPTS_MAX: usize = 100_000;

/// What this process runs and could hand on. A guess: the lease says what is so.
#[derive(Debug, Default)]
pub(super) struct Holding(Mutex<BTreeSet<(Token, TaskId)>>);

impl Holding {
    /// These were claimed.
    pub(super) fn add(&self, attempts: &[Attempt]) {
        let is_plain = |attempt: &&Attempt| {
            attempt.slots.len() == 1 && attempt.job.is_none() && attempt.workflow.is_none()
        };
        let mut all = self.all();
        all.extend(attempts.iter().filter(is_plain).map(|one| (one.token, one.task)));
        // Whoever never said how they ended did so long ago.
        while all.len() > ATTEMPTS_MAX {
            all.pop_first();
        }
    }

    /// Takes off those that end; gives how many of them there were.
    fn take(&self, exits: &[Exit]) -> usize {
        let mut all = self.all();
        exits.iter().filter(|exit| all.remove(&(exit.token, exit.task))).count()
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<(Token, TaskId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends attempts that went well and goes on with the next in line. None, and nothing is done, where
/// that is not all there is to it.
pub(super) async fn relay(
    store: &Inner,
    exits: &[Exit],
    claim: &Claim,
) -> Result<Option<Claimed>> {
    let held = store.holding.take(exits);
    if held == 0 || held > claim.tasks_max as usize {
        return Ok(None);
    }
    let pick = Pick::new(store, claim);
    let is_more_wanted = claim.tasks_max as usize > held;
    let told = Told::new(exits);
    let relayed = at_once!(store, tx => hand_on(store, &tx, &told, &pick, is_more_wanted));
    let Some(Relayed { attempts, urgent, claimed }) = relayed else {
        return Ok(None);
    };
    let mut left = Left { dirty: urgent, ..Left::default() };
    let claimed = match claimed {
        Some(batch) => {
            let (claimed, windows) = pick.settle(batch.after(&attempts, claim));
            left.windows = windows;
            claimed
        }
        None => {
            let is_all_there_is = attempts.len() == claim.tasks_max as usize;
            Claimed { attempts, is_all_there_is }
        }
    };
    follow_briefly(store, left).await;
    Ok(Some(claimed))
}

struct Relayed {
    attempts: Vec<Attempt>,
    /// Limits that somebody should look at.
    urgent: Vec<LimitId>,
    /// What was claimed beside; none where the claim has to follow.
    claimed: Option<Batch>,
}

/// All in one round trip.
async fn hand_on(
    store: &Inner,
    tx: &Tx<'_>,
    told: &Told,
    pick: &Pick<'_>,
    is_more_wanted: bool,
) -> Result<Option<Relayed>, Fault> {
    let Told { tasks, tokens, results, leases } = told;
    let claim = pick.claim();
    let (queues, kinds) = names(Some(claim));
    let (worker, now) = (&*claim.worker.0, store.options.now());
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
        &is_more_wanted,
    ];
    let ((), _, _, rows, claimed, ()) = tokio::try_join!(biased;
        share_version(store, tx),
        tx.query(LIMITS_SHARED, of_leases),
        tx.query(LOCK_LEASES, of_leases),
        tx.query(RELAY, of_all),
        take_along(store, tx, is_more_wanted.then_some(pick), &[]),
        tx.commit(),
    )?;
    let Some(first) = rows.first().filter(|row| row.get("is_on")) else {
        return Ok(None);
    };
    let urgent: Vec<i64> = first.get("urgent");
    let has_next = |row: &&Row| row.get::<_, Option<i64>>("task").is_some();
    let next: Vec<Row> = rows.iter().filter(has_next).cloned().collect();
    let attempts = attempts(&next, claim);
    let urgent = urgent.into_iter().map(LimitId).collect();
    Ok(Some(Relayed { attempts, urgent, claimed }))
}
