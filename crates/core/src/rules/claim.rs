use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::admission;
use super::admit::{admit_or_put_in_inbox, admit_pending};
use crate::fault_injection::{InjectedBug, is_injected};
use crate::tables::{Lane, Lease, ReadyRow, Tables};
use crate::{Attempt, Claim, LimitId, LimitScope, Result, TaskId, Token};

/// Hands out the first ready tasks of the lanes a worker serves, under one new lease.
pub fn claim(tables: &mut dyn Tables, claim: &Claim) -> Result<Vec<Attempt>> {
    claim.check()?;
    let lanes = record_demand(tables, claim)?;
    claim_from_lanes(tables, claim, &lanes)
}

/// The same for a worker that was announced, from the lanes that are open to it.
pub(super) fn claim_from_lanes(
    tables: &mut dyn Tables,
    claim: &Claim,
    lanes: &[Lane],
) -> Result<Vec<Attempt>> {
    let mut budget = tables.admission_budget();
    for row in tables.waiters_without_worker(lanes, budget)? {
        admission::retry_admission(tables, row)?;
        budget -= 1;
    }
    // Arrivals that are left matter to nobody who is ready.
    let is_left = admit_pending(tables, &mut budget)?.has_more
        && tables.next_limit_to_recheck(LimitId(0))?.is_some();
    let rows = pick_until_stable(tables, lanes, claim.tasks_max as usize, is_left, &mut budget)?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let lease = new_lease(tables, claim, &rows)?;
    let attempts = tables.start_attempts(&rows, &lease)?;
    record_job_claims(tables, &attempts, &mut budget)?;
    Ok(attempts)
}

/// Notes what a worker asks for: the lanes it serves that are open now.
pub(super) fn record_demand(tables: &mut dyn Tables, claim: &Claim) -> Result<Vec<Lane>> {
    let mut lanes = tables.existing_lanes(&claim.queues, &claim.kinds)?;
    retain_open_lanes(tables, &mut lanes)?;
    let until = tables.now() + claim.lease_ms;
    tables.record_live_worker(&claim.worker, until, Some(&lanes))?;
    Ok(lanes)
}

/// Leaves out lanes whose queue is paused or whose kind is outside its time of day.
fn retain_open_lanes(tables: &mut dyn Tables, lanes: &mut Vec<Lane>) -> Result<()> {
    let now = tables.now();
    let mut open = Vec::with_capacity(lanes.len());
    for lane in lanes.drain(..) {
        let window = tables.kind(&lane.kind)?.and_then(|kind| kind.day_window);
        if window.is_none_or(|window| window.is_open(now))
            && !tables.is_queue_paused(&lane.queue)?
        {
            open.push(lane);
        }
    }
    *lanes = open;
    Ok(())
}

fn new_lease(tables: &mut dyn Tables, claim: &Claim, rows: &[ReadyRow]) -> Result<Lease> {
    let mut counters = tables.counters()?;
    counters.last_token += 1;
    let furthest = rows.iter().map(|row| row.tag).max().unwrap_or_default();
    counters.virtual_time = counters.virtual_time.max(furthest);
    tables.set_counters(counters)?;
    Ok(Lease {
        token: Token(counters.last_token),
        worker: claim.worker.clone(),
        expires_at: tables.now() + claim.lease_ms,
    })
}

/// A claimed task leaves its job's window; the next of the job may pass its line.
fn record_job_claims(
    tables: &mut dyn Tables,
    attempts: &[Attempt],
    budget: &mut u32,
) -> Result<()> {
    let mut passed = false;
    for job in attempts.iter().filter_map(|attempt| attempt.job.as_ref()) {
        if let Some(limit) = tables.limit_id(&LimitScope::Job.limit_name(job))? {
            admission::record_job_claim(tables, limit)?;
            passed = true;
        }
    }
    if passed {
        admission::admit_from_dirty_limits(tables, budget)?;
    }
    Ok(())
}

/// One lane's next rows while several lanes are merged.
struct LaneCursor {
    buffered_rows: VecDeque<ReadyRow>,
    last_row: Option<ReadyRow>,
    page_size: u32,
}

impl LaneCursor {
    fn next_row(&mut self, tables: &mut dyn Tables, lane: &Lane) -> Result<Option<ReadyRow>> {
        if self.buffered_rows.is_empty() {
            self.buffered_rows = tables.ready_page(lane.id, self.last_row, self.page_size)?.into();
        }
        let next = self.buffered_rows.pop_front();
        self.last_row = next.or(self.last_row);
        Ok(next)
    }
}

/// Picks until nothing had to be sent back to the gate: what was sent back gives slots away
/// and may come back ready behind the place the scan had reached.
fn pick_until_stable(
    tables: &mut dyn Tables,
    lanes: &[Lane],
    wanted: usize,
    is_left: bool,
    budget: &mut u32,
) -> Result<Vec<ReadyRow>> {
    loop {
        let (picked, sent_back) = pick_ready_tasks(tables, lanes, wanted, is_left, budget)?;
        if !sent_back {
            return Ok(picked);
        }
        admission::admit_from_dirty_limits(tables, budget)?;
    }
}

/// The first `wanted` ready rows over all lanes, without those among them that had to be sent
/// back, and whether some had. Every lane is an index range of its own, so nothing is read
/// that could not be claimed. When the budget is gone, a lane whose next row would have to be
/// sent back is left to the next claim: one lane's backlog does not hold up the others. So is a lane whose
/// next row goes back to a line, where the gate left some of what it had to do.
fn pick_ready_tasks(
    tables: &mut dyn Tables,
    lanes: &[Lane],
    wanted: usize,
    is_left: bool,
    budget: &mut u32,
) -> Result<(Vec<ReadyRow>, bool)> {
    let (mut picked, mut sent_back) = (Vec::new(), false);
    if wanted == 0 {
        return Ok((picked, sent_back));
    }
    let version = tables.counters()?.limits_version;
    let page = (2 * wanted / lanes.len().max(1)).clamp(4.min(wanted), wanted) as u32;
    let mut cursors: Vec<LaneCursor> = lanes
        .iter()
        .map(|_| LaneCursor { buffered_rows: VecDeque::new(), last_row: None, page_size: page })
        .collect();
    let mut heads: BinaryHeap<Reverse<(i64, i64, TaskId, usize)>> = BinaryHeap::new();
    let mut current: Vec<Option<ReadyRow>> = vec![None; lanes.len()];
    let mut refill: Vec<usize> = (0..lanes.len()).collect();
    let mut looked_at = 0;
    while looked_at < wanted {
        for i in refill.drain(..) {
            current[i] = cursors[i].next_row(tables, &lanes[i])?;
            if let Some(row) = current[i] {
                heads.push(Reverse((row.rank, row.tag, row.task, i)));
            }
        }
        let Some(Reverse((_, _, _, i))) = heads.pop() else {
            break;
        };
        let Some(row) = current[i].take() else {
            continue;
        };
        if is_left && admission::is_revocation_pending(tables, row)? {
            tables.notify_workers_on_commit();
            continue;
        }
        if row.limits_version == version || !is_older_than_limit(tables, row)? {
            picked.push(row);
        } else if *budget > 0 {
            *budget -= 1;
            sent_back = true;
            return_to_admission(tables, row)?;
        } else {
            tables.notify_workers_on_commit();
            continue;
        }
        looked_at += 1;
        refill.push(i);
    }
    Ok((picked, sent_back))
}

/// Whether a limit began to apply after the task was made ready.
fn is_older_than_limit(tables: &mut dyn Tables, row: ReadyRow) -> Result<bool> {
    if is_injected(InjectedBug::NewLimitSkipsReadyTasks) {
        return Ok(false);
    }
    let Some(tags) = tables.task_info(row.task)? else {
        return Ok(false);
    };
    for need in admission::required_limits(tables, &tags)? {
        // A limit this transaction has not locked cannot be judged: back to the gate.
        if tables
            .locked_limit(need.limit)?
            .is_none_or(|limit| limit.applies_from_version > row.limits_version)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends a ready task back to the gate.
fn return_to_admission(tables: &mut dyn Tables, row: ReadyRow) -> Result<()> {
    revoke_admission(tables, row)?;
    admit_or_put_in_inbox(tables, row.task)?;
    Ok(())
}

/// Takes an admission back: the task stands nowhere and holds only what is its own for life.
pub(super) fn revoke_admission(tables: &mut dyn Tables, row: ReadyRow) -> Result<()> {
    tables.remove_ready(row)?;
    if row.holds_slots
        && let Some(tags) = tables.task_info(row.task)?
    {
        admission::release_task_slots(tables, &tags, false, tags.job.is_some())?;
    }
    Ok(())
}
