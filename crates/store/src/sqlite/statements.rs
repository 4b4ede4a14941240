//! Every query, prepared once per connection and found by its number. SQLite takes about as long
//! for a small statement as a look into a cache by its text does.

use rusqlite::{Connection, Params, Row, Statement, StatementStatus};
use tidegate_core::Result;

use super::error::Translated;
use super::planted::Planted;

macro_rules! queries {
    ($($name:ident $path:literal,)+) => {
        /// A query by the name of its file.
        #[derive(Debug, Clone, Copy)]
        pub(super) enum Query { $($name),+ }

        const SQL: &[&str] = &[$(include_str!($path)),+];
    };
}

queries! {
    FirstWaits "queries/first_waits.sql",
    ForgetKind "queries/forget_kind.sql",
    ForgetRegistrations "queries/forget_registrations.sql",
    IsKindUsed "queries/is_kind_used.sql",
    JobReady "queries/job_ready.sql",
    JobRunning "queries/job_running.sql",
    KindsUnseen "queries/kinds_unseen.sql",
    LeaveRegistrations "queries/leave_registrations.sql",
    PutSchemaVersion "queries/put_schema_version.sql",
    PutRegistration "queries/put_registration.sql",
    RegisteredBy "queries/registered_by.sql",
    RegisteredGroups "queries/registered_groups.sql",
    Registrations "queries/registrations.sql",
    SeeKind "queries/see_kind.sql",
    AbandonedLeases "queries/abandoned_leases.sql",
    AliveUntil "queries/alive_until.sql",
    Halted "queries/halted.sql",
    HighestTask "queries/highest_task.sql",
    Leave "queries/leave.sql",
    LeaveLanes "queries/leave_lanes.sql",
    ServedUntil "queries/served_until.sql",
    Arrived "queries/arrived.sql",
    ArrivedJobs "queries/arrived_jobs.sql",
    ArrivedOf "queries/arrived_of.sql",
    AttemptSlots "queries/attempt_slots.sql",
    Attempts "queries/attempts.sql",
    Begin "queries/begin.sql",
    BeginRead "queries/begin_read.sql",
    CancelRequests "queries/cancel_requests.sql",
    Commit "queries/commit.sql",
    Counts "queries/counts.sql",
    DataVersion "queries/data_version.sql",
    DirtyLimits "queries/dirty_limits.sql",
    DropLease "queries/drop_lease.sql",
    DropLimit "queries/drop_limit.sql",
    DropSlots "queries/drop_slots.sql",
    Due "queries/due.sql",
    EndLease "queries/end_lease.sql",
    EndTask "queries/end_task.sql",
    ExpiredLeases "queries/expired_leases.sql",
    Finished "queries/finished.sql",
    ForgetFenced "queries/forget_fenced.sql",
    ForgetPaces "queries/forget_paces.sql",
    ForgetWorkerLanes "queries/forget_worker_lanes.sql",
    ForgetWorkers "queries/forget_workers.sql",
    FreeSlot "queries/free_slot.sql",
    FreeSlots "queries/free_slots.sql",
    Holder "queries/holder.sql",
    Holders "queries/holders.sql",
    IdleLimits "queries/idle_limits.sql",
    IdsAll "queries/ids_all.sql",
    IdsArrived "queries/ids_arrived.sql",
    IdsFinal "queries/ids_final.sql",
    IdsLine "queries/ids_line.sql",
    IdsReady "queries/ids_ready.sql",
    IdsRunning "queries/ids_running.sql",
    IdsScheduled "queries/ids_scheduled.sql",
    InsertLane "queries/insert_lane.sql",
    InsertLimit "queries/insert_limit.sql",
    InsertSlot "queries/insert_slot.sql",
    InsertTask "queries/insert_task.sql",
    IsArrived "queries/is_arrived.sql",
    IsAskedFor "queries/is_asked_for.sql",
    IsServed "queries/is_served.sql",
    JobCounts "queries/job_counts.sql",
    Kind "queries/kind.sql",
    Kinds "queries/kinds.sql",
    Lanes "queries/lanes.sql",
    Lease "queries/lease.sql",
    Limit "queries/limit.sql",
    LimitNamed "queries/limit_named.sql",
    LimitsById "queries/limits_by_id.sql",
    LimitsByName "queries/limits_by_name.sql",
    LineAhead "queries/line_ahead.sql",
    LineAheadOfJob "queries/line_ahead_of_job.sql",
    LineByTask "queries/line_by_task.sql",
    LineFirst "queries/line_first.sql",
    LineNoWorker "queries/line_no_worker.sql",
    Load "queries/load.sql",
    LowestFreeSlots "queries/lowest_free_slots.sql",
    Meta "queries/meta.sql",
    NextDue "queries/next_due.sql",
    RemoveTasks "queries/remove_tasks.sql",
    StopAll "queries/stop_all.sql",
    News "queries/news.sql",
    NextSlot "queries/next_slot.sql",
    Pace "queries/pace.sql",
    PauseQueue "queries/pause_queue.sql",
    Paused "queries/paused.sql",
    Progress "queries/progress.sql",
    Peers "queries/peers.sql",
    PutArrival "queries/put_arrival.sql",
    PutArrived "queries/put_arrived.sql",
    PutFenced "queries/put_fenced.sql",
    PutKind "queries/put_kind.sql",
    PutLease "queries/put_lease.sql",
    PutLedger "queries/put_ledger.sql",
    PutLimit "queries/put_limit.sql",
    PutLine "queries/put_line.sql",
    PutMeta "queries/put_meta.sql",
    PutPace "queries/put_pace.sql",
    PutProgress "queries/put_progress.sql",
    PutReady "queries/put_ready.sql",
    PutHeartbeat "queries/put_heartbeat.sql",
    PutScheduled "queries/put_scheduled.sql",
    QueueCounts "queries/queue_counts.sql",
    ReadyAhead "queries/ready_ahead.sql",
    ReadyAheadOfJob "queries/ready_ahead_of_job.sql",
    ReadyHolders "queries/ready_holders.sql",
    ReadyAtSubmit "queries/ready_at_submit.sql",
    ReadyByTask "queries/ready_by_task.sql",
    ReadyPage "queries/ready_page.sql",
    ReadyPageAfter "queries/ready_page_after.sql",
    ReadyStale "queries/ready_stale.sql",
    Release "queries/release.sql",
    RemoveEnded "queries/remove_ended.sql",
    RenewLease "queries/renew_lease.sql",
    RequestCancel "queries/request_cancel.sql",
    ResumeQueue "queries/resume_queue.sql",
    ReviveTask "queries/revive_task.sql",
    Rollback "queries/rollback.sql",
    RollbackTo "queries/rollback_to.sql",
    RunningInGroup "queries/running_in_group.sql",
    RunningInLane "queries/running_in_lane.sql",
    RunningOfLimit "queries/running_of_limit.sql",
    RunningTokens "queries/running_tokens.sql",
    RunningUnder "queries/running_under.sql",
    Savepoint "queries/savepoint.sql",
    ScheduledAt "queries/scheduled_at.sql",
    SeeWorker "queries/see_worker.sql",
    ServeLane "queries/serve_lane.sql",
    ServedBy "queries/served_by.sql",
    SetGated "queries/set_gated.sql",
    SlotsHeld "queries/slots_held.sql",
    SlotsOf "queries/slots_of.sql",
    SnapshotArrived "queries/snapshot_arrived.sql",
    SnapshotLeases "queries/snapshot_leases.sql",
    SnapshotLine "queries/snapshot_line.sql",
    SnapshotReady "queries/snapshot_ready.sql",
    SnapshotRunning "queries/snapshot_running.sql",
    SnapshotScheduled "queries/snapshot_scheduled.sql",
    SnapshotSlots "queries/snapshot_slots.sql",
    SnapshotTasks "queries/snapshot_tasks.sql",
    StartFirst "queries/start_first.sql",
    StartOne "queries/start_one.sql",
    StartedAt "queries/started_at.sql",
    Stop "queries/stop.sql",
    StopKnown "queries/stop_known.sql",
    Tags "queries/tags.sql",
    TakeArrived "queries/take_arrived.sql",
    TakeArrivedOne "queries/take_arrived_one.sql",
    TakeFirstReady "queries/take_first_ready.sql",
    TakeLine "queries/take_line.sql",
    TakeReady "queries/take_ready.sql",
    TakeScheduled "queries/take_scheduled.sql",
    TakeSlot "queries/take_slot.sql",
    TaskBytes "queries/task_bytes.sql",
    TaskView "queries/task_view.sql",
    Unique "queries/unique.sql",
    UnstartFirst "queries/unstart_first.sql",
    Waiters "queries/waiters.sql",
    Whereabouts "queries/whereabouts.sql",
    WorkersAlive "queries/workers_alive.sql",
    WorkflowCounts "queries/workflow_counts.sql",
}

/// The queries of one connection.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    prepared: Vec<Option<Statement<'c>>>,
    planted: Planted,
}

impl<'c> Statements<'c> {
    pub(super) fn new(connection: &'c Connection, planted: Planted) -> Self {
        Self { connection, prepared: SQL.iter().map(|_| None).collect(), planted }
    }

    pub(super) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// Steps of SQLite's machine since the last call: what the statements cost, on a busy
    /// computer as on a quiet one.
    pub(super) fn take_steps(&self) -> u64 {
        let steps = |statement: &Statement<'_>| statement.reset_status(StatementStatus::VmStep);
        self.prepared.iter().flatten().map(|statement| steps(statement).max(0) as u64).sum()
    }

    fn get(&mut self, query: Query) -> Result<&mut Statement<'c>> {
        match &mut self.prepared[query as usize] {
            Some(statement) => Ok(statement),
            empty => {
                let sql = self.planted.sql(query, SQL[query as usize]);
                Ok(empty.insert(self.connection.prepare(&sql).translated()?))
            }
        }
    }

    /// Runs a statement without rows; returns how many it changed.
    pub(super) fn execute(&mut self, query: Query, params: impl Params) -> Result<usize> {
        self.get(query)?.execute(params).translated()
    }

    /// All rows of a query.
    pub(super) fn rows<T>(
        &mut self,
        query: Query,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let rows = self.get(query)?.query_map(params, read).translated()?;
        rows.collect::<rusqlite::Result<Vec<T>>>().translated()
    }

    /// The first row of a query.
    pub(super) fn first<T>(
        &mut self,
        query: Query,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        let mut rows = self.get(query)?.query(params).translated()?;
        match rows.next().translated()? {
            Some(row) => read(row).map(Some).translated(),
            None => Ok(None),
        }
    }
}
