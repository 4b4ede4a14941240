//! A committed state in lines of text that do not depend on how a store numbers things: tasks
//! and tokens by the order they appeared in, limits by name, lanes and places in line by rank.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::inspect::{Explanation, Inspect, Reason, Snapshot, TaskFilter, TaskRow};
use tidegate_core::tables::{Counters, Position};
use tidegate_core::{Halt, LaneId, Limit, LimitId};

use super::apply::Known;

struct Canon<'a> {
    known: &'a Known,
    limits: BTreeMap<LimitId, &'a str>,
    lanes: BTreeMap<LaneId, usize>,
    places: BTreeMap<i64, usize>,
}

/// Everything the invariants speak of.
pub fn lines(snapshot: &Snapshot, known: &Known) -> Vec<String> {
    let limits = snapshot.limits.iter().map(|limit| (limit.id, &*limit.name)).collect();
    let (lanes, places) = ranks(snapshot);
    let canon = Canon { known, limits, lanes, places };
    let Counters { token, virtual_time, limits_version, .. } = snapshot.counters;
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
            Position::Line(row) => drop((lanes.insert(row.lane), places.insert(row.place))),
            _ => {}
        }
    }
    (ranked(lanes), ranked(places))
}

fn ranked<T: Ord>(all: BTreeSet<T>) -> BTreeMap<T, usize> {
    all.into_iter().enumerate().map(|(rank, one)| (one, rank)).collect()
}

impl Canon<'_> {
    fn name(&self, limit: LimitId) -> &str {
        self.limits.get(&limit).copied().unwrap_or("a limit that is not there")
    }

    fn task(&self, task: &TaskRow) -> String {
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
            task.spent,
            task.deaths,
            task.gated
        )
    }

    fn position(&self, position: &Position) -> String {
        match position {
            Position::Scheduled(at) => format!("scheduled at {at}"),
            Position::Arrived => "arrived".into(),
            Position::Ready(row) => format!(
                "ready lane {} rank {} tag {} stamp {} gated {} since {}",
                self.lanes[&row.lane], row.rank, row.tag, row.stamp, row.gated, row.since
            ),
            Position::Line(row) => format!(
                "in line of {} {:?} rank {} tag {} place {} lane {} moves {} passed {} since {}",
                self.name(row.limit),
                row.class,
                row.rank,
                row.tag,
                self.places[&row.place],
                self.lanes[&row.lane],
                row.moves,
                row.passed,
                row.since
            ),
            Position::Running(token) => format!("runs under {}", self.known.token(*token)),
            Position::Final(state) => format!("{state}"),
        }
    }

    fn halt(&self, halt: Halt) -> String {
        match halt {
            Halt::Operator => "by an operator".into(),
            Halt::Step(task) => format!("by {}", self.known.task(task)),
        }
    }

    fn limit(&self, limit: &Limit) -> String {
        format!(
            "limit {} {:?} by {} base {:?} version {} since {} held {} waiting {} \
             aside {} refused {} reserver {:?} dirty {} look at {:?} halt {:?} share {:?}",
            limit.name,
            limit.capacity,
            limit.source,
            limit.base,
            limit.version,
            limit.since,
            limit.held,
            limit.waiting,
            limit.aside,
            limit.refused,
            limit.reserver.map(|task| self.known.task(task)),
            limit.dirty,
            limit.look_at,
            limit.halt.map(|halt| self.halt(halt)),
            limit.share
        )
    }
}

/// What people see: every task with its explanation, and every list. Workers are left out:
/// when one was last seen is written now and then only.
pub async fn shown(inspect: &dyn Inspect, known: &Known) -> Vec<String> {
    let mut lines = Vec::new();
    let all = TaskFilter { tasks_max: 10_000, ..TaskFilter::default() };
    for mut view in inspect.tasks(all).await.expect("tasks") {
        let whole = inspect.task(view.id).await.expect("task").expect("it is listed");
        let explanation = inspect.explain(view.id).await.expect("explain").expect("it is listed");
        lines.push(format!("{} {}", known.task(view.id), explained(explanation, known)));
        let result = (whole.payload, whole.result);
        // The id is the store's own; the order of the list is not.
        view.id = tidegate_core::TaskId(0);
        lines.push(format!("{view:?} {result:?}"));
    }
    lines.extend(inspect.jobs().await.expect("jobs").iter().map(|job| format!("{job:?}")));
    lines.extend(inspect.kinds().await.expect("kinds").iter().map(|kind| format!("{kind:?}")));
    lines.push(format!("{:?}", inspect.counts().await.expect("counts")));
    for limit in inspect.limits().await.expect("limits") {
        let holders = inspect.holders(limit.id).await.expect("holders");
        let holders = holders.iter().map(|holder| {
            let task = known.task(holder.task);
            format!(
                "{} {task} {} {:?} {:?}",
                holder.slot, holder.kind, holder.worker, holder.expires_at
            )
        });
        lines.push(format!("{} {:?}", limit.name, holders.collect::<Vec<_>>()));
        for mut waiter in inspect.waiters(limit.id, 100).await.expect("waiters") {
            let task = known.task(std::mem::take(&mut waiter.task));
            lines.push(format!("{} {task} {waiter:?}", limit.name));
        }
    }
    for queue in inspect.queues().await.expect("queues") {
        lines.push(format!("{} {:?} {:?}", queue.name, queue.paused_at, queue.tasks));
    }
    let workers = inspect.workers().await.expect("workers");
    for worker in workers.iter().filter(|worker| !worker.registered.is_empty()) {
        lines.push(format!("{} {:?} {:?}", worker.id, worker.registered, worker.report));
    }
    let workflows = inspect.workflows().await.expect("workflows");
    lines.extend(workflows.iter().map(|workflow| format!("{workflow:?}")));
    lines
}

fn explained(explanation: Explanation, known: &Known) -> String {
    let Explanation { task: _, state, mut reason, since, paused_at, estimate_ms } = explanation;
    let mut named = Vec::new();
    match &mut reason {
        Reason::InLine { holders, .. } => {
            for holder in holders {
                named.push(known.task(std::mem::take(&mut holder.task)));
            }
        }
        Reason::Running { slots, .. } => {
            slots.iter_mut().for_each(|slot| slot.limit = LimitId(0));
        }
        // A store writes only now and then until when a worker serves a lane.
        Reason::Ready { is_served, .. } | Reason::AtGate { is_served } => *is_served = true,
        _ => {}
    }
    format!("{state} since {since:?} {reason:?} {named:?} {paused_at:?} {estimate_ms:?}")
}
