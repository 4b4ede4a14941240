//! Workers: until when they live, what they serve, and what they say of themselves.

use tidegate_core::tables::Lane;
use tidegate_core::{LaneId, Millis, WorkerId, WorkerReport};

use super::WorkingState;
use super::rows::{LastHeartbeat, WorkerRow};
use crate::clock;

pub(crate) fn record_worker(
    state: &mut WorkingState,
    worker: &WorkerId,
    until: Millis,
    lanes: &[Lane],
) {
    let worker = state.workers.get_or_insert_with(worker.clone(), WorkerRow::default);
    worker.alive_until = until;
    let noted = lanes.iter().map(|lane| worker.lanes_served_until.get(&lane.id).copied());
    if !clock::are_expiries_late_enough(noted, state.now, until) {
        worker.lanes_served_until.extend(lanes.iter().map(|lane| (lane.id, until)));
    }
}

pub(super) fn is_lane_served(state: &WorkingState, lane: LaneId) -> bool {
    let until = state.workers.values().filter_map(|worker| worker.lanes_served_until.get(&lane));
    until.into_iter().any(|until| *until > state.now)
}

/// Whether a live worker asks for tasks of the lane when it has room for them.
pub(super) fn is_lane_of_live_worker(state: &WorkingState, lane: LaneId) -> bool {
    let mut live = state.workers.values().filter(|worker| worker.alive_until > state.now);
    live.any(|worker| worker.lanes_served_until.contains_key(&lane))
}

/// Records a heartbeat and its report. Returns the number of other live workers that have room.
pub(super) fn record_heartbeat(
    state: &mut WorkingState,
    id: &WorkerId,
    lease_ms: Millis,
    report: Option<&WorkerReport>,
) -> u32 {
    let until = state.now + lease_ms;
    let worker = state.workers.get_or_insert_with(id.clone(), WorkerRow::default);
    worker.alive_until = until;
    worker.last_heartbeat = Some(LastHeartbeat { expires_at: until, lease_ms });
    if let Some(report) = report {
        worker.report = Some(report.clone());
    }
    let others = state.workers.iter().filter(|(other, _)| *other != id);
    let live = others.filter(|(_, worker)| worker.alive_until > state.now);
    live.filter(|(_, worker)| worker.report.as_ref().is_some_and(WorkerReport::has_free_capacity))
        .count() as u32
}
