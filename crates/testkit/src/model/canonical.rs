//! A committed state in lines of text that do not depend on how a store numbers things: tasks
//! and tokens by the order they appeared in, limits by name, lanes and places in line by rank.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::reader::{
    Explanation, NotRunningReason, Snapshot, SnapshotTask, StoreReader, TaskFilter,
};
use tidegate_core::tables::{Counters, Position};
use tidegate_core::{LaneId, Limit, LimitId, PauseCause};

use super::apply::SeenIds;

struct Canonical<'a> {
    known: &'a SeenIds,
    limits: BTreeMap<LimitId, &'a str>,
    lanes: BTreeMap<LaneId, usize>,
    places: BTreeMap<i64, usize>,
}

/// Everything the invariants speak of.
pub fn canonical_lines(snapshot: &Snapshot, known: &SeenIds) -> Vec<String> {
    let limits = snapshot.limits.iter().map(|limit| (limit.id, &*limit.name)).collect();
    let (lanes, places) = ranks(snapshot);
    let canon = Canonical { known, limits, lanes, places };
    let Counters { last_token: token, virtual_time, limits_version, .. } = snapshot.counters;
    let now = snapshot.now;
    let mut lines = vec![
        format!("now {now} token {token} virtual {virtual_time} limits {limits_version}"),
        format!("finished {:?}", snapshot.finished),
    ];
    lines.extend(snapshot.tasks.iter().map(|task| canon.task(task)));
    let mut limits: Vec<&Limit> = snapshot.limits.iter().collect();
    limits.sort_by_key(|limit| limit.name.clone());
    lines.extend(limits.iter().map(|limit| canon.limit(limit)));
    let mut slots: Vec<String> = snapshot
        .slots
        .iter()
        .map(|s| format!("slot {} {:03} {}", canon.name(s.limit), s.number, known.task(s.task)))
        .collect();
    slots.sort();
    lines.extend(slots);
    lines.extend(snapshot.leases.iter().map(|lease| {
        format!("lease {} {} until {}", known.token(lease.token), lease.worker, lease.expires_at)
    }));
    lines
}

fn ranks(snapshot: &Snapshot) -> (BTreeMap<LaneId, usize>, BTreeMap<i64, usize>) {
    let (mut lanes, mut places) = (BTreeSet::new(), BTreeSet::new());
    for position in snapshot.tasks.iter().flat_map(|task| &task.positions) {
        match position {
            Position::Ready(row) => drop(lanes.insert(row.lane)),
            Position::Waiting(row) => {
                lanes.insert(row.lane);
                places.insert(row.admission_seq);
            }
            _ => {}
        }
    }
    (rank_all(lanes), rank_all(places))
}

fn rank_all<T: Ord>(all: BTreeSet<T>) -> BTreeMap<T, usize> {
    all.into_iter().enumerate().map(|(rank, one)| (one, rank)).collect()
}

impl Canonical<'_> {
    fn name(&self, limit: LimitId) -> &str {
        self.limits.get(&limit).copied().unwrap_or("a limit that is not there")
    }

    fn task(&self, task: &SnapshotTask) -> String {
        let positions: Vec<String> = task.positions.iter().map(|p| self.position(p)).collect();
        format!(
            "{} {} {:?} {:?} {:?} {:?} weight {} spent {} deaths {} gated {} {positions:?}",
            self.known.task(task.id),
            task.kind,
            task.group,
            task.job,
            task.workflow,
            task.unique_key,
            task.weight,
            task.attempts_used,
            task.crashes,
            task.holds_slots
        )
    }

    fn position(&self, position: &Position) -> String {
        match position {
            Position::Scheduled(at) => format!("scheduled at {at}"),
            Position::Inbox => "arrived".into(),
            Position::Ready(row) => format!(
                "ready lane {} rank {} tag {} stamp {} gated {} since {}",
                self.lanes[&row.lane],
                row.rank,
                row.tag,
                row.limits_version,
                row.holds_slots,
                row.ready_at
            ),
            Position::Waiting(row) => format!(
                "in line of {} {:?} rank {} tag {} place {} lane {} moves {} passed {} since {}",
                self.name(row.limit),
                row.wait_reason,
                row.rank,
                row.tag,
                self.places[&row.admission_seq],
                self.lanes[&row.lane],
                row.queue_switches,
                row.in_job_window,
                row.due_at
            ),
            Position::Running(token) => format!("runs under {}", self.known.token(*token)),
            Position::Finished(state) => format!("{state}"),
        }
    }

    fn halt(&self, halt: PauseCause) -> String {
        match halt {
            PauseCause::Operator => "by an operator".into(),
            PauseCause::FailedStep(task) => format!("by {}", self.known.task(task)),
        }
    }

    fn limit(&self, limit: &Limit) -> String {
        format!(
            "limit {} {:?} by {} base {:?} version {} since {} held {} waiting {} \
             aside {} refused {} reserver {:?} dirty {} look at {:?} halt {:?} share {:?}",
            limit.name,
            limit.capacity,
            limit.source,
            limit.capacity_without_override,
            limit.version,
            limit.applies_from_version,
            limit.held,
            limit.waiting,
            limit.skipped,
            limit.parked_total,
            limit.reserving_task.map(|task| self.known.task(task)),
            limit.dirty,
            limit.recheck_at,
            limit.paused_by.map(|halt| self.halt(halt)),
            limit.fair_share
        )
    }
}

/// What people see: every task with its explanation, and every list. Workers are left out:
/// when one was last seen is written now and then only.
pub async fn visible_lines(reader: &dyn StoreReader, known: &SeenIds) -> Vec<String> {
    let mut lines = Vec::new();
    let all = TaskFilter { tasks_max: 10_000, ..TaskFilter::default() };
    for mut view in reader.tasks(all).await.expect("tasks") {
        let whole = reader.task(view.id).await.expect("task").expect("it is listed");
        let explanation = reader.explain(view.id).await.expect("explain").expect("it is listed");
        lines.push(format!("{} {}", known.task(view.id), format_explanation(explanation, known)));
        let result = (whole.payload, whole.result);
        // The id is the store's own; the order of the list is not.
        view.id = tidegate_core::TaskId(0);
        lines.push(format!("{view:?} {result:?}"));
    }
    lines.extend(reader.jobs().await.expect("jobs").iter().map(|job| format!("{job:?}")));
    lines.extend(reader.kinds().await.expect("kinds").iter().map(|kind| format!("{kind:?}")));
    lines.push(format!("{:?}", reader.task_counts().await.expect("counts")));
    for limit in reader.limits().await.expect("limits") {
        let holders = reader.slot_holders(limit.id).await.expect("holders");
        let holders = holders.iter().map(|holder| {
            let task = known.task(holder.task);
            format!(
                "{} {task} {} {:?} {:?}",
                holder.slot, holder.kind, holder.worker, holder.expires_at
            )
        });
        lines.push(format!("{} {:?}", limit.name, holders.collect::<Vec<_>>()));
        for mut waiter in reader.waiters(limit.id, 100).await.expect("waiters") {
            let task = known.task(std::mem::take(&mut waiter.task));
            lines.push(format!("{} {task} {waiter:?}", limit.name));
        }
    }
    for queue in reader.queues().await.expect("queues") {
        lines.push(format!("{} {:?} {:?}", queue.name, queue.paused_at, queue.tasks));
    }
    let workers = reader.workers().await.expect("workers");
    for worker in workers.iter().filter(|worker| !worker.registered_capacities.is_empty()) {
        lines.push(format!("{} {:?} {:?}", worker.id, worker.registered_capacities, worker.report));
    }
    let workflows = reader.workflows().await.expect("workflows");
    lines.extend(workflows.iter().map(|workflow| format!("{workflow:?}")));
    lines
}

fn format_explanation(explanation: Explanation, known: &SeenIds) -> String {
    let Explanation {
        task: _,
        state,
        mut reason,
        reason_since: since,
        queue_paused_at: paused_at,
        estimated_wait_ms: estimate_ms,
    } = explanation;
    let mut named = Vec::new();
    match &mut reason {
        NotRunningReason::InWaitQueue { holders, .. } => {
            for holder in holders {
                named.push(known.task(std::mem::take(&mut holder.task)));
            }
        }
        NotRunningReason::Running { slots, .. } => {
            slots.iter_mut().for_each(|slot| slot.limit = LimitId(0));
        }
        // A store writes only now and then until when a worker serves a lane.
        NotRunningReason::Ready { is_served, .. } | NotRunningReason::InInbox { is_served } => {
            *is_served = true
        }
        _ => {}
    }
    format!("{state} since {since:?} {reason:?} {named:?} {paused_at:?} {estimate_ms:?}")
}
