//! What the maps of the tables hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::tables::{Position, TaskInfo};
use tidegate_core::{LaneId, Millis, NewTask, Progress, WorkerReport};

#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerRow {
    pub(super) alive_until: Millis,
    pub(super) last_heartbeat: Option<LastHeartbeat>,
    /// Until when it serves which lanes.
    pub(super) lanes_served_until: BTreeMap<LaneId, Millis>,
    /// What it last said of itself.
    pub(super) report: Option<WorkerReport>,
}

/// The last heartbeat of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastHeartbeat {
    /// Its time plus its lease length.
    pub(super) expires_at: Millis,
    pub(super) lease_ms: Millis,
}

#[derive(Debug, Clone)]
pub(crate) struct StoredTask {
    pub(crate) submitted: Arc<NewTask>,
    pub(crate) info: TaskInfo,
    pub(crate) queue: Arc<str>,
    pub(crate) position: Option<Position>,
    pub(crate) created_at: Millis,
    pub(crate) finished_at: Option<Millis>,
    pub(crate) error: Option<String>,
    pub(crate) result: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RunningAttempt {
    pub(crate) holds_slots: bool,
    pub(crate) cancel_requested: bool,
    pub(crate) started_at: Millis,
    pub(crate) progress: Option<Progress>,
}
