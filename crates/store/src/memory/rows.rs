//! What the maps of the tables hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::tables::{Position, Tags};
use tidegate_core::{LaneId, Millis, NewTask, Progress, WorkerReport};

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    pub(super) alive_until: Millis,
    pub(super) heartbeat: Option<Heartbeat>,
    /// Until when it serves which lanes.
    pub(super) lanes: BTreeMap<LaneId, Millis>,
    /// What it last said of itself.
    pub(super) report: Option<WorkerReport>,
}

/// The last heartbeat of a worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heartbeat {
    /// Its time plus its lease length.
    pub(super) until: Millis,
    pub(super) lease_ms: Millis,
}

#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) new: Arc<NewTask>,
    pub(crate) tags: Tags,
    pub(crate) queue: Arc<str>,
    pub(crate) position: Option<Position>,
    pub(crate) created_at: Millis,
    pub(crate) finished_at: Option<Millis>,
    pub(crate) error: Option<String>,
    pub(crate) result: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Running {
    pub(crate) gated: bool,
    pub(crate) cancel: bool,
    pub(crate) started_at: Millis,
    pub(crate) progress: Option<Progress>,
}
