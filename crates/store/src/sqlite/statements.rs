//! Every query, prepared once per connection and found by its number. SQLite takes about as long
//! for a small statement as a look into a cache by its text does.

use rusqlite::{Connection, Params, Row, Statement, StatementStatus};
use tidegate_core::Result;

use super::error::SqliteResultExt;
use super::fault_injection::FaultInjection;

macro_rules! queries {
    ($($name:ident $path:literal,)+) => {
        /// A query by the name of its file.
        #[derive(Debug, Clone, Copy)]
        pub(super) enum Query { $($name),+ }

        const QUERY_TEXTS: &[&str] = &[$(include_str!($path)),+];
    };
}

queries! {
    FirstWaiterDueTimes "queries/first_waiter_due_times.sql",
    DeleteKind "queries/delete_kind.sql",
    DeleteRegistrationsOfDeadWorkers "queries/delete_registrations_of_dead_workers.sql",
    IsKindUsed "queries/is_kind_used.sql",
    FirstReadyOfJobs "queries/first_ready_of_jobs.sql",
    RunningCountsOfJobs "queries/running_counts_of_jobs.sql",
    KindsNotRegisteredSince "queries/kinds_not_registered_since.sql",
    DeleteWorkerRegistrations "queries/delete_worker_registrations.sql",
    SetWorkerSchemaVersion "queries/set_worker_schema_version.sql",
    PutRegistration "queries/put_registration.sql",
    LiveRegistrations "queries/live_registrations.sql",
    RegisteredGroups "queries/registered_groups.sql",
    LiveRegistrationsOfGroup "queries/live_registrations_of_group.sql",
    SetKindRegisteredAt "queries/set_kind_registered_at.sql",
    AbandonedLeases "queries/abandoned_leases.sql",
    WorkerAliveUntil "queries/worker_alive_until.sql",
    PausedWorkflows "queries/paused_workflows.sql",
    HighestTaskId "queries/highest_task_id.sql",
    DeleteWorker "queries/delete_worker.sql",
    DeleteWorkerLanes "queries/delete_worker_lanes.sql",
    LaneServedUntil "queries/lane_served_until.sql",
    InboxHead "queries/inbox_head.sql",
    JobsInInbox "queries/jobs_in_inbox.sql",
    InboxOfJob "queries/inbox_of_job.sql",
    SlotsOfLease "queries/slots_of_lease.sql",
    AttemptsOfLease "queries/attempts_of_lease.sql",
    BeginWrite "queries/begin_write.sql",
    BeginRead "queries/begin_read.sql",
    CancelRequests "queries/cancel_requests.sql",
    Commit "queries/commit.sql",
    TaskCountsByState "queries/task_counts_by_state.sql",
    DataVersion "queries/data_version.sql",
    LimitsToRecheck "queries/limits_to_recheck.sql",
    DeleteLease "queries/delete_lease.sql",
    DeleteLimit "queries/delete_limit.sql",
    DeleteSlots "queries/delete_slots.sql",
    DueTasks "queries/due_tasks.sql",
    DeleteLeaseIfEmpty "queries/delete_lease_if_empty.sql",
    FinishTask "queries/finish_task.sql",
    ExpiredLeasesOfWorker "queries/expired_leases_of_worker.sql",
    FinishedCountsByState "queries/finished_counts_by_state.sql",
    DeleteStaleFencedAttempts "queries/delete_stale_fenced_attempts.sql",
    DeleteOldRunTimes "queries/delete_old_run_times.sql",
    DeleteLanesOfDeadWorkers "queries/delete_lanes_of_dead_workers.sql",
    DeleteDeadWorkers "queries/delete_dead_workers.sql",
    FreeSlot "queries/free_slot.sql",
    FreeSlotsOfTask "queries/free_slots_of_task.sql",
    SlotHolder "queries/slot_holder.sql",
    SlotHoldersOfLimit "queries/slot_holders_of_limit.sql",
    IdleLimits "queries/idle_limits.sql",
    ListAllTaskIds "queries/list_all_task_ids.sql",
    ListInboxTaskIds "queries/list_inbox_task_ids.sql",
    ListFinishedTaskIds "queries/list_finished_task_ids.sql",
    ListWaitingTaskIds "queries/list_waiting_task_ids.sql",
    ListReadyTaskIds "queries/list_ready_task_ids.sql",
    ListRunningTaskIds "queries/list_running_task_ids.sql",
    ListScheduledTaskIds "queries/list_scheduled_task_ids.sql",
    InsertLane "queries/insert_lane.sql",
    InsertLimit "queries/insert_limit.sql",
    InsertSlot "queries/insert_slot.sql",
    InsertTask "queries/insert_task.sql",
    IsInInbox "queries/is_in_inbox.sql",
    IsLaneOfLiveWorker "queries/is_lane_of_live_worker.sql",
    IsLaneServed "queries/is_lane_served.sql",
    TaskCountsByJob "queries/task_counts_by_job.sql",
    KindByName "queries/kind_by_name.sql",
    AllKinds "queries/all_kinds.sql",
    AllLanes "queries/all_lanes.sql",
    LeaseByToken "queries/lease_by_token.sql",
    LimitById "queries/limit_by_id.sql",
    LimitIdByName "queries/limit_id_by_name.sql",
    AllLimitsById "queries/all_limits_by_id.sql",
    AllLimitsByName "queries/all_limits_by_name.sql",
    CountWaitersBefore "queries/count_waiters_before.sql",
    FirstWaiterInWindow "queries/first_waiter_in_window.sql",
    WaiterByTask "queries/waiter_by_task.sql",
    FirstWaiter "queries/first_waiter.sql",
    WaitersWithoutWorker "queries/waiters_without_worker.sql",
    BacklogCounts "queries/backlog_counts.sql",
    LowestFreeSlots "queries/lowest_free_slots.sql",
    Counters "queries/counters.sql",
    NextRunAt "queries/next_run_at.sql",
    DeleteTaskRange "queries/delete_task_range.sql",
    DeleteAttemptsOfLease "queries/delete_attempts_of_lease.sql",
    NotificationCount "queries/notification_count.sql",
    NextNewSlot "queries/next_new_slot.sql",
    RunTimesOfGroup "queries/run_times_of_group.sql",
    PauseQueue "queries/pause_queue.sql",
    PausedQueues "queries/paused_queues.sql",
    AttemptProgress "queries/attempt_progress.sql",
    CountAvailableWorkers "queries/count_available_workers.sql",
    SetDueAt "queries/set_due_at.sql",
    PutInbox "queries/put_inbox.sql",
    PutFencedAttempt "queries/put_fenced_attempt.sql",
    PutKind "queries/put_kind.sql",
    InsertLease "queries/insert_lease.sql",
    SetAttemptCounts "queries/set_attempt_counts.sql",
    UpdateLimit "queries/update_limit.sql",
    PutWaiter "queries/put_waiter.sql",
    UpdateCounters "queries/update_counters.sql",
    PutRunTimes "queries/put_run_times.sql",
    PutProgress "queries/put_progress.sql",
    PutReady "queries/put_ready.sql",
    PutHeartbeat "queries/put_heartbeat.sql",
    PutScheduled "queries/put_scheduled.sql",
    TaskCountsByQueue "queries/task_counts_by_queue.sql",
    CountReadyBefore "queries/count_ready_before.sql",
    FirstReadyInWindow "queries/first_ready_in_window.sql",
    ReadyHolders "queries/ready_holders.sql",
    ReadyBySubmitKey "queries/ready_by_submit_key.sql",
    ReadyByTask "queries/ready_by_task.sql",
    ReadyPage "queries/ready_page.sql",
    ReadyPageAfter "queries/ready_page_after.sql",
    ReadyAdmittedBefore "queries/ready_admitted_before.sql",
    ReleaseSavepoint "queries/release_savepoint.sql",
    DeleteExpiredTasks "queries/delete_expired_tasks.sql",
    RenewLease "queries/renew_lease.sql",
    RequestCancel "queries/request_cancel.sql",
    ResumeQueue "queries/resume_queue.sql",
    ReviveTask "queries/revive_task.sql",
    Rollback "queries/rollback.sql",
    RollbackToSavepoint "queries/rollback_to_savepoint.sql",
    RunningInGroup "queries/running_in_group.sql",
    CountRunningInLane "queries/count_running_in_lane.sql",
    CountRunningOfLimit "queries/count_running_of_limit.sql",
    RunningTokens "queries/running_tokens.sql",
    RunningOfLease "queries/running_of_lease.sql",
    Savepoint "queries/savepoint.sql",
    ScheduledRunAt "queries/scheduled_run_at.sql",
    PutWorker "queries/put_worker.sql",
    PutWorkerLane "queries/put_worker_lane.sql",
    LanesOfWorkers "queries/lanes_of_workers.sql",
    SetHoldsSlots "queries/set_holds_slots.sql",
    SlotNumbersOfTask "queries/slot_numbers_of_task.sql",
    SlotCountsOfTask "queries/slot_counts_of_task.sql",
    SnapshotInbox "queries/snapshot_inbox.sql",
    SnapshotLeases "queries/snapshot_leases.sql",
    SnapshotWaiters "queries/snapshot_waiters.sql",
    SnapshotReady "queries/snapshot_ready.sql",
    SnapshotRunning "queries/snapshot_running.sql",
    SnapshotScheduled "queries/snapshot_scheduled.sql",
    SnapshotSlots "queries/snapshot_slots.sql",
    SnapshotTasks "queries/snapshot_tasks.sql",
    StartLanePrefix "queries/start_lane_prefix.sql",
    StartAttempt "queries/start_attempt.sql",
    AttemptStartedAt "queries/attempt_started_at.sql",
    StopAttempt "queries/stop_attempt.sql",
    DeleteCachedAttempt "queries/delete_cached_attempt.sql",
    TaskInfo "queries/task_info.sql",
    DeleteInboxHead "queries/delete_inbox_head.sql",
    DeleteInbox "queries/delete_inbox.sql",
    DeleteReadyPrefix "queries/delete_ready_prefix.sql",
    DeleteWaiter "queries/delete_waiter.sql",
    DeleteReady "queries/delete_ready.sql",
    DeleteScheduled "queries/delete_scheduled.sql",
    AssignSlot "queries/assign_slot.sql",
    TaskPayloadAndResult "queries/task_payload_and_result.sql",
    TaskView "queries/task_view.sql",
    TaskByUniqueKey "queries/task_by_unique_key.sql",
    UndoLanePrefix "queries/undo_lane_prefix.sql",
    ListWaiters "queries/list_waiters.sql",
    PositionHint "queries/position_hint.sql",
    LiveWorkers "queries/live_workers.sql",
    TaskCountsByWorkflow "queries/task_counts_by_workflow.sql",
}

/// The queries of one connection.
pub(super) struct Statements<'c> {
    connection: &'c Connection,
    prepared: Vec<Option<Statement<'c>>>,
    fault_injection: FaultInjection,
}

impl<'c> Statements<'c> {
    pub(super) fn new(connection: &'c Connection, fault_injection: FaultInjection) -> Self {
        Self { connection, prepared: QUERY_TEXTS.iter().map(|_| None).collect(), fault_injection }
    }

    pub(super) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// Steps of SQLite's machine since the last call: what the statements cost, on a busy
    /// computer as on a quiet one.
    pub(super) fn take_vm_steps(&self) -> u64 {
        let steps = |statement: &Statement<'_>| statement.reset_status(StatementStatus::VmStep);
        self.prepared.iter().flatten().map(|statement| steps(statement).max(0) as u64).sum()
    }

    fn prepared_statement(&mut self, query: Query) -> Result<&mut Statement<'c>> {
        match &mut self.prepared[query as usize] {
            Some(statement) => Ok(statement),
            empty => {
                let sql = self.fault_injection.rewrite_query(query, QUERY_TEXTS[query as usize]);
                Ok(empty.insert(self.connection.prepare(&sql).into_store_result()?))
            }
        }
    }

    /// Runs a statement without rows; returns how many it changed.
    pub(super) fn execute(&mut self, query: Query, params: impl Params) -> Result<usize> {
        self.prepared_statement(query)?.execute(params).into_store_result()
    }

    /// All rows of a query.
    pub(super) fn query_rows<T>(
        &mut self,
        query: Query,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let rows = self.prepared_statement(query)?.query_map(params, read).into_store_result()?;
        rows.collect::<rusqlite::Result<Vec<T>>>().into_store_result()
    }

    /// The first row of a query.
    pub(super) fn query_first<T>(
        &mut self,
        query: Query,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        let mut rows = self.prepared_statement(query)?.query(params).into_store_result()?;
        match rows.next().into_store_result()? {
            Some(row) => read(row).map(Some).into_store_result(),
            None => Ok(None),
        }
    }
}
