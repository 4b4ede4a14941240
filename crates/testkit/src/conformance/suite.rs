//! The list of the cases.

/// Makes one test of every case for a [`Backend`](crate::conformance::Backend), which is named
/// by an identifier in scope.
#[macro_export]
macro_rules! conformance_suite {
    ($($for:tt)*) => {
        $crate::conformance_cases! { $($for)*;
            migrate {
                migrate_on_current_schema_changes_nothing
            }
            register {
                registered_kind_is_stored_with_every_field
                repeated_registration_changes_nothing
                registration_overwrites_known_kind
                default_settings_do_not_overwrite_known_kind
                submit_does_not_overwrite_registered_kind
                task_without_queue_uses_queue_of_its_kind
                kind_moved_to_another_queue_applies_to_new_tasks_only
                attempts_and_timeout_of_task_override_those_of_kind
                registration_sets_group_limits
                later_registration_replaces_limit_of_earlier_one
                registration_reports_limits_overridden_by_operator
                configuration_takes_precedence_over_registration
                invalid_registration_is_rejected_as_a_whole
            }
            registered_limits {
                limit_follows_latest_registration_of_live_workers
                worker_list_shows_registered_capacities_of_live_workers
                deregistered_worker_no_longer_determines_limit
                crashed_worker_no_longer_determines_limit
                worker_without_registered_limit_is_still_bound_by_it
                limit_that_no_live_worker_registers_is_unset
                limit_without_live_workers_of_its_kind_is_kept
                default_settings_do_not_change_registered_limit
                registrations_do_not_override_stronger_sources
                unset_limit_stays_unset_until_a_worker_registers_it
                registration_without_limit_does_not_unset_submitted_limit
                unregistered_kind_is_removed_with_its_limit_after_retention
                kind_in_use_is_not_removed
                kind_first_known_from_submit_is_not_removed
            }
            submit {
                task_without_limit_is_ready_after_submit
                task_with_limit_is_admitted_by_next_claim
                empty_submit_is_accepted
                task_ids_ascend_in_submit_order
                first_submit_creates_kind
                task_view_shows_submitted_fields
                scheduled_task_is_not_claimed_before_it_is_due
                task_with_run_at_in_the_past_is_ready_at_once
                due_tasks_are_admitted_in_order_of_due_time
                rejected_submit_stores_nothing
                weight_above_capacity_is_rejected
                weight_is_accepted_while_limit_is_paused
                submit_of_invalid_job_is_rejected
                submit_of_too_many_tasks_is_rejected
                calls_above_batch_bounds_are_rejected
                submitted_limit_applies_only_where_none_is_set
                submit_sets_its_limits
                rejected_submit_sets_no_limit
                acknowledged_submit_is_visible_to_another_handle
                submit_notifies_waiting_handle
                running_attempt_may_submit
                attempt_with_lost_lease_may_not_submit
                completed_attempt_may_not_submit
                attempt_may_not_submit_under_foreign_token
            }
            claim {
                claim_returns_only_served_kinds_and_queues
                task_of_unserved_kind_takes_no_slot
                claim_returns_at_most_the_requested_number
                claimed_batch_shares_one_token_and_tokens_ascend
                claimed_task_is_not_claimed_again
                claim_with_repeated_kind_returns_task_once
                claimed_attempt_has_every_field_of_its_task
                attempt_without_group_uses_group_of_its_kind
                claim_with_lease_out_of_bounds_is_rejected
                claim_above_batch_bound_is_rejected
                empty_claim_creates_no_lease
                claim_renews_worker_row_below_three_quarters_of_lease
                empty_claim_keeps_worker_alive
                blocked_backlog_does_not_delay_claim_of_other_kind
                claim_merges_kinds_in_task_order
                claim_for_many_kinds_returns_tasks_of_each
            }
            finish {
                result_is_stored_unchanged
                fatal_error_fails_task_without_retry
                task_fails_after_its_last_attempt
                tasks_of_one_claim_are_retried_with_different_delays
                retry_delay_grows_with_jitter_up_to_the_cap
                retry_without_delay_is_ready_at_once
                snooze_uses_no_attempt
                released_attempt_is_not_counted
                cancelled_outcome_cancels_task
                completion_with_stale_token_changes_nothing
                second_completion_of_an_attempt_is_rejected
                duplicate_completion_in_one_batch_is_rejected
                completion_with_token_of_another_lease_is_rejected
                completion_of_unknown_task_is_rejected
                stale_completion_does_not_block_rest_of_batch
                finish_hands_slot_to_next_waiter_and_claims_it
                finish_without_completions_only_claims
                result_above_size_limit_fails_task
                long_error_is_truncated_at_character_boundary
                completion_with_any_error_text_is_accepted
                finish_of_too_many_completions_is_rejected
                finish_with_invalid_claim_completes_nothing
                lease_is_removed_with_its_last_attempt
                finish_of_one_batch_removes_several_leases
                completion_after_release_is_rejected
            }
            heartbeat {
                heartbeat_renews_lease
                heartbeat_does_not_renew_expired_lease
                heartbeat_of_another_worker_does_not_renew_lease
                heartbeat_reports_unknown_lease_as_lost
                heartbeat_with_lost_lease_renews_the_others
                heartbeat_reports_cancel_until_attempt_completes
                progress_of_running_attempt_is_shown
                progress_of_stale_attempt_is_ignored
                heartbeat_with_invalid_progress_is_rejected
                heartbeat_with_lease_out_of_bounds_is_rejected
                heartbeat_of_full_worker_requests_no_tasks
                heartbeat_report_is_kept_until_the_next_report
                heartbeat_returns_number_of_peers_with_free_concurrency
                worker_list_shows_served_kinds_of_full_worker
                heartbeat_with_invalid_report_is_rejected
                heartbeat_reports_lease_without_attempts_as_lost
            }
            unlisted_leases {
                unlisted_expired_lease_is_released_without_using_attempts
                unlisted_unexpired_lease_is_kept
                listed_expired_lease_is_not_released
                expired_lease_of_another_worker_is_not_released
                release_of_unlisted_lease_hands_off_its_slots
                released_task_is_ordered_before_its_rank
                released_lease_rejects_late_completion
                released_task_with_cancel_request_is_cancelled
                repeated_release_counts_no_crash
                deregistration_releases_expired_leases
                heartbeat_releases_many_leases_in_steps
                many_attempts_of_a_lease_are_released_in_steps
                reaper_skips_expired_lease_of_worker_with_recent_heartbeat
                reaper_takes_expired_lease_of_worker_without_recent_heartbeat
                reaper_takes_listed_lease_one_lease_length_after_expiry
                reaper_takes_expired_lease_of_deregistered_worker_at_once
                reaper_takes_leases_behind_a_page_of_skipped_leases
            }
            cancel {
                cancel_of_scheduled_task_is_final_at_once
                cancel_of_inbox_task_is_final_at_once
                cancel_of_ready_task_is_final_at_once
                cancel_of_admitted_task_hands_off_its_slot
                cancel_of_blocked_task_removes_it_from_wait_queue
                cancel_of_heavy_head_admits_lighter_waiters
                cancel_of_running_task_is_requested
                completion_after_cancel_request_is_accepted
                cancel_request_turns_retry_into_cancelled
                cancel_of_finished_task_changes_nothing
                cancel_of_batch_returns_outcomes_in_order
                cancel_of_retrying_step_starts_next_step
                cancel_of_parked_task_works_for_every_wait_reason
            }
            reap {
                expired_lease_returns_its_tasks
                crash_hands_off_slots_to_next_waiter
                task_fails_after_default_number_of_crashes
                task_fails_after_max_crashes_of_its_kind
                crash_of_last_attempt_fails_task
                reaped_attempt_cannot_complete_or_renew
                completion_under_expired_lease_before_reap_is_accepted
                reap_takes_only_leases_that_expired
                reap_of_many_leases_runs_in_steps
                many_attempts_of_a_lease_are_reaped_in_steps
                crashed_step_is_not_overtaken_by_next_step
            }
            prune {
                finished_task_is_kept_by_default
                finished_tasks_are_removed_after_retention_days
                retention_of_zero_days_removes_task_when_it_finishes
                unfinished_task_is_never_removed
                unset_limit_is_removed_once_unused
                removed_limit_can_be_set_again
                limit_of_finished_workflow_is_removed
                prune_of_many_tasks_runs_in_steps
            }
            set_limit {
                limit_of_zero_pauses_and_raising_resumes
                limit_of_zero_does_not_stop_running_tasks
                unset_limit_is_unlimited
                lowered_limit_drains_before_it_admits
                lowered_limit_still_counts_holders_of_high_slots
                raised_limit_admits_parked_tasks
                new_limit_applies_to_ready_backlog
                new_limit_on_large_backlog_does_not_delay_other_kinds
                new_limit_on_large_backlog_admits_up_to_capacity
                new_limit_counts_running_tasks
                new_limit_counts_weight_of_running_tasks
                new_limit_applies_to_scheduled_tasks
                stronger_source_overrides_weaker_ones
                operator_unset_restores_earlier_registration
                operator_unset_applies_registration_made_under_override
                operator_unset_without_override_removes_setting
                weaker_source_cannot_unset_limit
                limit_change_increments_version
                unset_of_unknown_limit_creates_nothing
                invalid_limit_name_or_capacity_is_rejected
                limit_of_largest_capacity_admits_tasks
                limit_is_exact_for_capacities_that_do_not_divide_evenly
                limit_of_job_is_changed_live
                group_limit_is_shared_between_kinds
            }
            return_to_queue {
                lowered_job_limit_starts_no_admitted_task_above_it
                lowered_group_limit_starts_no_admitted_task_above_it
                lowered_limit_keeps_admitted_tasks_that_fit
                limit_lowered_by_registration_returns_admitted_tasks
                paused_job_starts_no_admitted_task
                group_limit_of_zero_starts_no_admitted_task
                returned_task_frees_slots_of_its_other_limits
                returned_task_above_new_capacity_is_parked_as_too_heavy
                returned_step_keeps_its_position_in_workflow
                retry_of_paused_job_waits_until_resume
                return_of_many_admitted_tasks_runs_in_steps
                new_job_delay_applies_to_admitted_tasks
                new_job_delay_keeps_first_admitted_task_ready
                longer_job_delay_returns_admitted_task
                new_job_delay_applies_to_tasks_parked_at_group
                new_job_delay_applies_to_reserved_slots
            }
            limit_change {
                limit_lowered_by_operator_drains_and_admits_in_order
                limit_lowered_by_registration_drains_and_admits_in_order
                limit_raised_by_operator_admits_waiters
                limit_raised_by_registration_admits_waiters
                limit_removed_by_operator_admits_all_waiters
                limit_removed_by_registration_admits_all_waiters
                kind_removed_from_code_keeps_its_limit_until_tasks_finish
            }
            admission {
                wait_queue_is_fifo
                freed_slot_is_handed_off_without_a_claim
                every_outcome_frees_the_slot
                admission_takes_lowest_free_slot_numbers
                weighted_task_takes_as_many_slots_as_its_weight
                lighter_waiters_do_not_overtake_heavier_head
                waiter_too_heavy_for_lowered_limit_does_not_block_others
                inbox_task_too_heavy_for_lowered_limit_is_parked
                admission_takes_all_slots_or_none
                freed_slot_skips_waiter_blocked_by_another_limit
                retry_is_admitted_again
                snoozed_task_holds_no_slot
                unclaimed_task_without_live_worker_is_parked
                unclaimed_task_with_live_worker_stays_admitted
                full_worker_does_not_keep_slot_of_unclaimed_task
                task_of_two_saturated_limits_is_admitted_within_bound
                task_that_reserves_slots_does_not_wait_for_job_window
                admission_of_large_backlog_runs_in_bounded_steps
            }
            workflow {
                workflow_steps_run_one_at_a_time_in_order
                workflows_run_independently_of_each_other
                workflow_runs_on_one_worker_at_a_time
                next_step_waits_for_retries_of_previous_step
                scheduled_step_is_not_overtaken
                next_step_waits_for_snoozed_or_released_step
                priority_does_not_reorder_steps_of_a_workflow
                later_submitted_steps_run_after_earlier_ones
                step_blocked_by_its_group_keeps_its_workflow
                workflow_order_holds_under_group_and_job_limits
            }
            workflow_pause {
                failed_step_pauses_its_workflow
                step_failed_by_crashes_pauses_its_workflow
                failed_step_with_on_failure_continue_does_not_pause_workflow
                cancelled_step_does_not_pause_workflow
                retried_step_resumes_workflow_and_runs_first
                retried_step_that_fails_again_pauses_workflow_again
                resumed_workflow_continues_without_failed_step
                paused_workflow_starts_no_step
                unknown_workflow_can_be_paused
                workflow_pause_remains_after_its_tasks_are_removed
                paused_job_admits_no_task
                pause_of_unknown_job_returns_not_found
            }
            set_job {
                job_concurrency_change_applies_at_once
                unset_job_concurrency_restores_submitted_value
                job_weight_change_applies_to_waiting_tasks
                job_priority_is_added_to_task_priority
                job_delay_separates_starts
                job_delay_is_measured_from_the_claim
                job_delay_can_be_shortened_and_removed
                min_concurrency_of_job_is_served_first
                min_concurrency_set_later_applies_to_ready_tasks
                min_concurrency_does_not_raise_share_beyond_reserve
                min_concurrency_is_served_first_in_wait_queue
                min_concurrency_set_to_zero_restores_fair_share
                change_of_unknown_job_returns_not_found
                invalid_job_change_is_rejected
                claimed_attempt_has_due_time_ready_time_and_trace
            }
            job {
                job_concurrency_bounds_running_tasks
                job_concurrency_is_separate_for_each_job
                job_concurrency_of_zero_runs_nothing
                retry_is_admitted_by_job_limit_again
                submit_does_not_overwrite_known_job
                task_creates_its_job
                job_window_bounds_admitted_tasks
                job_backlog_beyond_window_runs_in_order
                job_shares_follow_weights
                late_job_gets_its_share_from_its_submit_on
                cancelled_job_backlog_does_not_distort_shares
                job_view_counts_tasks_by_state
            }
            fairness {
                small_jobs_are_not_delayed_by_large_job_at_worker_concurrency
                small_jobs_are_not_delayed_by_large_job_at_group_limit
                worker_concurrency_is_shared_by_job_weight
                group_limit_is_shared_by_job_weight
                job_window_full_of_waiters_advances_with_slots_of_their_limit
            }
            slot_return {
                job_slot_is_freed_by_every_outcome
            }
            order {
                higher_priority_is_claimed_first
                priority_applies_across_kinds
                same_priority_is_fifo
                waiting_time_raises_priority
                wait_queue_is_ordered_by_priority
                waiting_time_raises_priority_in_wait_queue
                parked_task_joins_wait_queue_at_its_rank
                waiting_time_counts_from_due_time
                returned_task_is_first_among_ready_tasks
                returned_task_is_first_in_wait_queue
                returned_task_is_first_in_wait_queue_of_its_job
                returned_task_of_job_is_first_in_wait_queue_of_its_group
                returned_task_is_first_after_fair_tags_advanced
                returned_task_does_not_overtake_higher_priority
                task_returned_without_live_worker_is_first
                failed_or_snoozed_task_is_last_when_due_again
            }
            day_window {
                kind_is_claimed_inside_its_window_only
                window_may_span_midnight
                closed_window_does_not_delay_other_kinds
                running_task_may_continue_after_window_closes
                kind_without_window_is_always_claimed
                kind_outside_its_window_keeps_no_slot
            }
            unique {
                unique_key_returns_unfinished_task
                unique_keys_of_repeated_submit_store_no_duplicates
                unique_key_applies_within_one_submit
                unique_key_is_held_until_task_finishes
                unique_key_is_free_after_every_final_state
                unique_key_is_kept_after_stale_completion
                unique_key_of_rejected_submit_stays_free
            }
            retry {
                retry_of_failed_task_resets_its_attempts
                retry_of_cancelled_task_runs_it
                retry_of_completed_task_changes_nothing
                retry_of_scheduled_task_makes_it_due_now
                retry_of_unfinished_task_changes_nothing
                retry_with_repeated_id_retries_once
                retry_restores_unique_key
                retry_with_taken_unique_key_is_rejected
                retry_of_two_tasks_with_same_key_retries_one
                retry_is_bound_by_limits
                retry_of_too_many_tasks_is_rejected
            }
            hand_off {
                hand_off_gives_same_slot_number_to_next_waiter
                hand_off_without_waiter_frees_slot
                hand_off_with_spare_capacity_also_claims_ready_tasks
                hand_off_claims_ready_task_of_higher_rank_first
                hand_off_follows_priority
                hand_off_does_not_overtake_heavier_head
                hand_off_does_not_overtake_task_that_reserves_slots
                hand_off_stops_until_lowered_limit_is_drained
                handed_off_slot_can_be_released_by_operator
                handed_off_task_can_fail_crash_and_be_cancelled
            }
            release {
                released_slot_goes_to_next_waiter_and_holder_is_fenced
                heartbeat_reports_fenced_attempt
                release_frees_all_slots_of_the_attempt
                release_of_last_attempt_fails_task
                release_of_task_with_cancel_request_cancels_it
                release_of_slot_without_running_task_is_rejected
                release_of_workflow_slot_is_rejected
            }
            pause {
                paused_queue_is_not_claimed
                paused_queue_does_not_affect_other_queues
                pause_is_visible_to_another_handle
                paused_queue_gives_up_slots_of_unclaimed_tasks
                pause_is_shown_in_queue_view_and_explain
                pause_of_invalid_name_is_rejected
            }
            reader {
                reader_returns_time_of_the_store
                task_list_is_ordered_by_id_and_paged
                task_list_applies_filters
                task_list_omits_payloads_and_results
                task_counts_are_by_state
                reader_returns_nothing_for_unknown_ids
                explain_shows_due_time_of_scheduled_task
                explain_shows_task_waiting_for_admission
                explain_shows_limit_holders_and_position_of_parked_task
                explain_shows_whether_ready_task_is_served
                explain_shows_worker_and_slots_of_running_task
                explain_shows_finished_task
                holders_are_ordered_by_slot
                limits_and_jobs_are_ordered_by_name
                reads_change_nothing
            }
            lists {
                queue_list_shows_tasks_and_workers
                worker_list_shows_served_kinds_and_running_tasks
                deregistered_worker_is_not_listed
                workflow_list_counts_steps_by_state
                waiter_list_is_in_wait_queue_order
                load_shows_ready_waiting_and_abandoned_tasks
                load_shows_ready_and_running_tasks_of_jobs
                rejected_admissions_are_counted_once_per_task
                task_list_is_filtered_by_group
                wait_estimate_uses_run_times_and_position
                run_times_expire
                repair_of_consistent_store_changes_nothing
            }
            input {
                allowed_names_are_stored_unchanged
                invalid_names_are_rejected_in_every_field
                query_for_invalid_name_finds_nothing_or_fails
                payload_is_stored_unchanged
                invalid_payload_is_rejected
                extreme_due_times_are_accepted
            }
            races {
                limits_are_exact_with_many_workers
                crossing_limits_do_not_deadlock
                workflow_order_holds_with_many_workers
                limit_changed_under_load_leaks_no_slots
                cancel_racing_with_workers_finishes_each_task_once
                concurrent_submits_of_one_key_store_one_task
                limit_set_during_submit_is_exact
                late_completion_of_crashed_worker_changes_nothing
                limits_are_exact_across_processes
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The topics' names and sources: every file beside this one that is no part of the frame.
    fn topics() -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
        let files =
            fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file").path());
        let is_topic = |path: &PathBuf| {
            !["mod.rs", "suite.rs", "fixture.rs"].iter().any(|frame| path.ends_with(frame))
        };
        let topic = |path: PathBuf| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let source = if path.is_dir() { path.join("mod.rs") } else { path };
            (name, fs::read_to_string(source).expect("a source"))
        };
        files.filter(is_topic).map(topic).collect()
    }

    /// A case that is written and not listed would never run.
    #[test]
    fn suite_lists_every_conformance_case() {
        let list = include_str!("suite.rs");
        for (topic, source) in topics() {
            let (_, listed) = list.split_once(&format!(" {topic} {{")).expect(&topic);
            let listed: Vec<&str> =
                listed.split('}').next().unwrap_or_default().split_whitespace().collect();
            let is_case = |line: &&str| line.ends_with("(fx: &Fixture) {");
            let written = source.lines().filter(is_case);
            let written: Vec<&str> = written
                .filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next())
                .collect();
            assert_eq!(listed, written, "{topic}");
        }
    }
}
