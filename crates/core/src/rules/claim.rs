use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::admit::{bring, step};
use super::gate;
use crate::planted::{Bug, is_planted};
use crate::tables::{Lane, Lease, ReadyRow, Tables};
use crate::{Attempt, Claim, LimitId, Result, Scope, TaskId, Token};

/// Hands out the first ready tasks of the lanes a worker serves, under one new lease.
pub fn claim(tables: &mut dyn Tables, claim: &Claim) -> Result<Vec<Attempt>> {
    claim.check()?;
    let lanes = announce(tables, claim)?;
    take(tables, claim, &lanes)
}

/// The same for a worker that was announced, from the lanes that are open to it.
pub(super) fn take(tables: &mut dyn Tables, claim: &Claim, lanes: &[Lane]) -> Result<Vec<Attempt>> {
    let mut budget = tables.gate_budget();
    for row in tables.line_no_worker(lanes, budget)? {
        gate::reconsider(tables, row)?;
        budget -= 1;
    }
    // Arrivals that are left matter to nobody who is ready.
    let is_left = step(tables, &mut budget)?.more && tables.next_dirty(LimitId(0))?.is_some();
    let rows = pick_settled(tables, lanes, claim.tasks_max as usize, is_left, &mut budget)?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let lease = next_lease(tables, claim, &rows)?;
    let attempts = tables.start(&rows, &lease)?;
    pass_windows(tables, &attempts, &mut budget)?;
    Ok(attempts)
}

/// Notes what a worker asks for: the lanes it serves that are open now.
pub(super) fn announce(tables: &mut dyn Tables, claim: &Claim) -> Result<Vec<Lane>> {
    let mut lanes = tables.lanes(&claim.queues, &claim.kinds)?;
    retain_open(tables, &mut lanes)?;
    let until = tables.now() + claim.lease_ms;
    tables.see_worker(&claim.worker, until, Some(&lanes))?;
    Ok(lanes)
}

/// Leaves out lanes whose queue is paused or whose kind is outside its time of day.
fn retain_open(tables: &mut dyn Tables, lanes: &mut Vec<Lane>) -> Result<()> {
    let now = tables.now();
    let mut open = Vec::with_capacity(lanes.len());
    for lane in lanes.drain(..) {
        let window = tables.kind(&lane.kind)?.and_then(|kind| kind.window);
        if window.is_none_or(|window| window.is_open(now)) && !tables.is_paused(&lane.queue)? {
            open.push(lane);
        }
    }
    *lanes = open;
    Ok(())
}

fn next_lease(tables: &mut dyn Tables, claim: &Claim, rows: &[ReadyRow]) -> Result<Lease> {
    let mut counters = tables.counters()?;
    counters.token += 1;
    let furthest = rows.iter().map(|row| row.tag).max().unwrap_or_default();
    counters.virtual_time = counters.virtual_time.max(furthest);
    tables.set_counters(counters)?;
    Ok(Lease {
        token: Token(counters.token),
        worker: claim.worker.clone(),
        expires_at: tables.now() + claim.lease_ms,
    })
}

/// A claimed task leaves its job's window; the next of the job may pass its line.
fn pass_windows(tables: &mut dyn Tables, attempts: &[Attempt], budget: &mut u32) -> Result<()> {
    let mut passed = false;
    for job in attempts.iter().filter_map(|attempt| attempt.job.as_ref()) {
        if let Some(limit) = tables.limit_named(&Scope::Job.name(job))? {
            gate::claimed(tables, limit)?;
            passed = true;
        }
    }
    if passed {
        gate::settle(tables, budget)?;
    }
    Ok(())
}

/// One lane's next rows while several lanes are merged.
struct Cursor {
    rows: VecDeque<ReadyRow>,
    last: Option<ReadyRow>,
    page: u32,
}

impl Cursor {
    fn next(&mut self, tables: &mut dyn Tables, lane: &Lane) -> Result<Option<ReadyRow>> {
        if self.rows.is_empty() {
            self.rows = tables.ready_page(lane.id, self.last, self.page)?.into();
        }
        let next = self.rows.pop_front();
        self.last = next.or(self.last);
        Ok(next)
    }
}

/// Picks until nothing had to be sent back to the gate: what was sent back gives slots away
/// and may come back ready behind the place the scan had reached.
fn pick_settled(
    tables: &mut dyn Tables,
    lanes: &[Lane],
    wanted: usize,
    is_left: bool,
    budget: &mut u32,
) -> Result<Vec<ReadyRow>> {
    loop {
        let (picked, sent_back) = pick(tables, lanes, wanted, is_left, budget)?;
        if !sent_back {
            return Ok(picked);
        }
        gate::settle(tables, budget)?;
    }
}

/// The first `wanted` ready rows over all lanes, without those among them that had to be sent
/// back, and whether some had. Every lane is an index range of its own, so nothing is read
/// that could not be claimed. When the budget is gone, a lane whose next row would have to be
/// sent back is left to the next claim: one lane's backlog does not hold up the others. So is a lane whose
/// next row goes back to a line, where the gate left some of what it had to do.
fn pick(
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
    let mut cursors: Vec<Cursor> =
        lanes.iter().map(|_| Cursor { rows: VecDeque::new(), last: None, page }).collect();
    let mut heads: BinaryHeap<Reverse<(i64, i64, TaskId, usize)>> = BinaryHeap::new();
    let mut current: Vec<Option<ReadyRow>> = vec![None; lanes.len()];
    let mut refill: Vec<usize> = (0..lanes.len()).collect();
    let mut looked_at = 0;
    while looked_at < wanted {
        for i in refill.drain(..) {
            current[i] = cursors[i].next(tables, &lanes[i])?;
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
        if is_left && gate::is_recalled(tables, row)? {
            tables.leave_more();
            continue;
        }
        if row.stamp == version || !is_stale(tables, row)? {
            picked.push(row);
        } else if *budget > 0 {
            *budget -= 1;
            sent_back = true;
            send_back(tables, row)?;
        } else {
            tables.leave_more();
            continue;
        }
        looked_at += 1;
        refill.push(i);
    }
    Ok((picked, sent_back))
}

/// Whether a limit began to apply after the task was made ready.
fn is_stale(tables: &mut dyn Tables, row: ReadyRow) -> Result<bool> {
    if is_planted(Bug::StaleReady) {
        return Ok(false);
    }
    let Some(tags) = tables.tags(row.task)? else {
        return Ok(false);
    };
    for need in gate::needs(tables, &tags)? {
        // A limit this transaction has not locked cannot be judged: back to the gate.
        if tables.limit(need.limit)?.is_none_or(|limit| limit.since > row.stamp) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends a ready task back to the gate.
fn send_back(tables: &mut dyn Tables, row: ReadyRow) -> Result<()> {
    withdraw(tables, row)?;
    bring(tables, row.task)?;
    Ok(())
}

/// Takes an admission back: the task stands nowhere and holds only what is its own for life.
pub(super) fn withdraw(tables: &mut dyn Tables, row: ReadyRow) -> Result<()> {
    tables.take_ready(row)?;
    if row.gated
        && let Some(tags) = tables.tags(row.task)?
    {
        gate::release(tables, &tags, false, tags.job.is_some())?;
    }
    Ok(())
}
