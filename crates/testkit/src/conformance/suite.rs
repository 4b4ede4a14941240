//! The list of the cases.

/// Makes one test of every case for a [`Backend`](crate::conformance::Backend), which is named
/// by an identifier in scope.
#[macro_export]
macro_rules! conformance_suite {
    ($($for:tt)*) => {
        $crate::conformance_cases! { $($for)*;
            migrate {
                a_migration_can_be_repeated
            }
            register {
                every_field_of_a_kind_comes_back
                a_registration_can_be_repeated
                a_known_kind_is_overwritten
                a_default_leaves_a_known_kind_as_it_is
                a_submit_does_not_overwrite_a_kind
                a_kind_has_a_queue_of_its_own
                a_kind_moves_to_another_queue
                attempts_and_timeout_come_from_the_kind_unless_the_task_says
                a_registration_brings_limits
                the_last_of_equal_registrations_counts
                an_overruled_limit_is_reported
                a_configuration_wins_over_a_registration
                a_bad_registration_changes_nothing
            }
            registered {
                the_latest_word_of_live_workers_counts
                what_workers_registered_is_shown
                a_worker_takes_its_word_along
                a_worker_that_died_has_no_say
                who_does_not_know_a_limit_cannot_bypass_it
                a_limit_that_no_live_worker_brings_is_unset
                a_fleet_that_is_down_keeps_its_limits
                a_default_says_nothing_about_a_limit
                workers_do_not_overrule_anybody
                what_was_unset_does_not_come_back_by_itself
                workers_do_not_unset_what_a_submit_brought
                a_kind_that_nobody_registers_is_forgotten
                a_kind_in_use_is_not_forgotten
                a_kind_that_others_made_known_is_not_forgotten
            }
            submit {
                an_unlimited_task_is_ready_at_once
                a_limited_task_arrives_at_the_gate
                nothing_is_a_submission_too
                ids_ascend_in_the_order_of_submission
                the_first_submit_makes_a_kind_known
                what_was_submitted_is_shown
                a_task_is_not_claimed_before_its_time
                a_time_that_has_passed_means_now
                what_is_due_passes_the_gate
                a_refused_submission_leaves_no_trace
                a_weight_above_the_capacity_is_refused
                a_paused_limit_refuses_no_weight
                a_bad_job_is_refused
                too_many_tasks_at_once_are_refused
                too_much_in_one_call_is_refused
                a_submitted_limit_counts_only_where_nothing_is_set
                a_submission_brings_its_limits
                a_refused_submission_sets_no_limit
                another_handle_sees_what_was_acknowledged
                a_submit_wakes_who_waits
                an_attempt_submits_while_it_runs
                an_attempt_that_lost_its_lease_submits_nothing
                an_attempt_that_has_ended_submits_nothing
                an_attempt_submits_under_its_own_token_only
            }
            claim {
                only_served_kinds_and_queues_are_claimed
                an_unserved_task_takes_no_slot
                no_more_than_asked_for
                a_batch_shares_one_token_and_tokens_ascend
                a_claimed_task_is_not_claimed_again
                a_kind_named_twice_is_claimed_once
                an_attempt_says_everything_a_handler_needs
                an_attempt_without_a_group_has_its_kinds
                a_lease_out_of_bounds_is_refused
                too_many_at_once_are_refused
                a_claim_that_finds_nothing_leaves_no_lease
                claim_notes_the_worker_again_below_three_quarters_of_the_lease
                a_claim_that_finds_nothing_keeps_a_worker_alive
                a_blocked_backlog_is_not_in_the_way
                lanes_are_merged_in_order
                a_worker_of_many_kinds_finds_the_tasks_of_each
            }
            finish {
                a_result_is_kept_byte_by_byte
                a_fatal_error_is_final_at_once
                failures_spend_attempts_until_none_is_left
                tasks_that_fail_together_come_back_apart
                a_retry_backs_off_with_jitter_up_to_the_cap
                a_retry_without_delay_runs_at_once
                a_snooze_costs_no_attempt
                a_release_gives_the_attempt_back
                a_handler_may_report_a_cancel
                a_stale_token_changes_nothing
                a_completion_is_accepted_once
                the_same_exit_twice_in_one_batch_counts_once
                a_token_is_good_for_its_own_tasks_only
                an_unknown_task_is_lost
                one_stale_exit_does_not_hold_up_the_batch
                the_next_in_line_is_handed_over
                a_finish_may_only_claim
                a_result_that_is_too_large_fails_the_task
                a_long_error_is_cut_between_characters
                no_error_text_holds_up_an_exit
                too_many_exits_at_once_are_refused
                a_refused_claim_takes_no_exit
                a_lease_ends_with_its_last_attempt
                one_batch_ends_several_leases
                a_finish_after_the_end_of_its_lease_is_lost
            }
            extend {
                a_heartbeat_keeps_the_lease
                a_lease_that_ran_out_is_not_renewed
                only_its_own_worker_renews_a_lease
                an_unknown_lease_is_lost
                one_lost_lease_does_not_hold_up_the_others
                a_cancel_is_told_until_the_attempt_ends
                progress_is_shown_while_the_attempt_runs
                progress_of_a_stale_attempt_changes_nothing
                bad_progress_is_refused
                a_lease_out_of_bounds_is_refused
                a_heartbeat_asks_for_nothing
                a_worker_says_how_much_room_it_has
                a_heartbeat_tells_how_many_others_have_room
                a_worker_that_is_full_is_shown_with_what_it_serves
                a_bad_report_is_refused
                a_lease_whose_attempts_have_ended_is_gone
            }
            unlisted {
                expired_lease_that_is_not_listed_is_released_unspent
                unexpired_lease_that_is_not_listed_stays
                expired_lease_that_is_listed_is_left_to_its_worker
                expired_lease_of_another_worker_is_left_to_the_reaper
                released_lease_hands_its_slots_on
                released_task_comes_back_before_its_rank
                released_lease_rejects_a_late_completion
                cancel_request_ends_a_released_task
                release_counts_no_crash_however_often
                goodbye_releases_expired_leases
                heartbeat_releases_leases_in_steps
                many_attempts_of_a_lease_are_released_in_steps
                reaper_leaves_expired_lease_to_worker_that_sends_heartbeats
                reaper_takes_leases_of_worker_without_recent_heartbeat
                reaper_takes_listed_lease_one_lease_length_after_expiry
                reaper_takes_expired_lease_of_deregistered_worker_at_once
                reaper_takes_leases_behind_those_it_leaves_to_their_worker
            }
            cancel {
                a_scheduled_task_ends_at_once
                an_arrived_task_ends_at_once
                a_ready_task_ends_at_once
                an_admitted_task_gives_its_slot_to_the_next
                a_blocked_task_leaves_its_line
                a_cancelled_head_makes_room_for_lighter_ones
                a_running_task_is_asked_to_stop
                a_completion_outruns_a_cancel
                what_would_run_again_ends_instead
                a_finished_task_stays_as_it_is
                a_batch_is_answered_in_order
                a_waiting_step_gives_its_workflow_on
                a_task_in_every_kind_of_line_can_be_cancelled
            }
            reap {
                a_lease_that_ran_out_gives_its_tasks_back
                a_death_frees_the_slots_for_the_next
                deaths_lead_to_quarantine
                a_kind_says_how_many_deaths_are_too_many
                the_last_attempt_dies_for_good
                a_reaped_attempt_changes_nothing_any_more
                an_exit_before_the_reaper_counts
                each_lease_has_its_own_end
                many_leases_are_reaped_in_steps
                many_attempts_of_a_lease_are_reaped_in_steps
                a_death_keeps_the_workflow
            }
            prune {
                finished_tasks_are_kept_by_default
                completed_and_failed_are_kept_for_their_days
                zero_days_removes_a_task_as_it_ends
                unfinished_tasks_are_never_removed
                unset_limits_go_when_nobody_uses_them
                a_limit_is_set_anew_after_it_was_removed
                a_workflow_leaves_nothing_behind
                much_is_removed_in_steps
            }
            set_limit {
                zero_pauses_and_raising_resumes
                a_pause_does_not_touch_what_runs
                unset_means_unlimited
                lowering_drains
                lowering_does_not_forget_holders
                raising_admits_the_parked
                a_new_limit_applies_to_the_backlog
                a_new_limit_on_a_backlog_does_not_hold_up_others
                a_new_limit_on_a_backlog_lets_through_what_it_can
                a_new_limit_counts_what_runs
                a_new_limit_counts_the_weight_of_what_runs
                a_new_limit_applies_to_what_is_scheduled
                sources_have_an_order
                an_operators_unset_brings_back_what_was_before
                what_was_overruled_is_remembered
                an_operators_unset_removes_what_nobody_overruled
                a_weaker_source_cannot_unset
                every_change_raises_the_version
                an_unknown_limit_can_be_unset
                bad_names_and_capacities_are_refused
                the_largest_capacity_works
                a_limit_is_exact_whatever_its_size
                a_jobs_quota_is_changed_live
                a_group_is_shared_between_kinds
            }
            recall {
                a_lowered_job_begins_no_more_than_it_may
                a_lowered_group_begins_no_more_than_it_may
                who_fits_a_lowered_limit_stays
                a_registration_takes_back_as_well
                a_paused_job_begins_nothing
                a_group_of_zero_begins_nothing
                what_goes_back_makes_way_elsewhere
                what_goes_back_may_be_too_heavy
                a_step_that_goes_back_keeps_its_turn
                a_retry_of_a_paused_job_waits
                many_go_back_in_steps
                a_job_that_gets_a_delay_keeps_it
                a_delay_lets_one_of_those_that_are_next_begin
                a_longer_delay_counts_for_who_is_next
                a_delay_counts_for_who_waits_elsewhere
                a_delay_counts_for_a_reserve
            }
            change {
                a_limit_is_lowered_by_an_operator
                a_limit_is_lowered_by_a_registration
                a_limit_is_raised_by_an_operator
                a_limit_is_raised_by_a_registration
                a_limit_is_removed_by_an_operator
                a_limit_is_removed_by_a_registration
                a_kind_is_removed_while_its_limit_is_held
            }
            gate {
                a_line_goes_by_arrival
                a_freed_slot_is_handed_on_without_being_asked
                every_way_out_frees_the_slot
                slots_are_numbered_and_the_lowest_free_one_is_taken
                weights_count
                lighter_tasks_do_not_pass_a_heavier_head
                what_is_too_heavy_after_lowering_is_passed_over
                what_became_too_heavy_on_its_way_is_set_aside
                all_or_none
                a_slot_passes_who_cannot_use_it
                a_retry_passes_the_gate_again
                a_snoozed_task_holds_no_slot
                an_unclaimed_task_without_a_worker_is_parked
                an_unclaimed_task_with_a_worker_stays_admitted
                a_full_worker_keeps_no_slot_for_later
                two_saturated_limits_admit_within_a_bound
                who_collects_slots_does_not_wait_for_a_window
                a_large_backlog_passes_in_bounded_steps
            }
            workflow {
                steps_run_one_after_another
                workflows_do_not_wait_for_each_other
                two_workers_do_not_share_a_workflow
                the_next_step_waits_through_retries
                a_delayed_step_is_not_overtaken
                the_next_step_waits_through_a_snooze_and_a_release
                priority_does_not_reorder_steps
                steps_submitted_later_come_later
                a_step_keeps_its_workflow_while_its_group_is_full
                order_holds_under_other_limits
            }
            halt {
                a_step_that_fails_for_good_halts_its_workflow
                a_step_whose_workers_die_halts_its_workflow
                a_workflow_goes_on_where_a_step_says_so
                a_cancelled_step_does_not_halt
                a_failed_step_that_comes_back_goes_first
                a_failed_step_that_comes_back_may_fail_again
                a_halted_workflow_goes_on_without_the_step
                a_paused_workflow_begins_no_step
                an_unknown_workflow_can_be_paused
                a_halt_outlives_its_tasks
                a_paused_job_passes_nobody
                an_unknown_job_cannot_be_paused
            }
            set_job {
                the_concurrency_changes_at_once
                an_unset_concurrency_is_what_was_submitted
                weights_change_live
                a_priority_counts_among_jobs
                a_delay_keeps_starts_apart
                a_delay_counts_from_the_claim
                a_delay_can_be_taken_away
                a_reserve_goes_first
                a_reserve_that_comes_later_goes_first
                a_reserve_is_no_more_than_it_says
                a_reserve_goes_first_in_a_line
                a_reserve_is_given_back_with_its_slots
                an_unknown_job_is_refused
                nonsense_is_refused
                attempts_tell_what_they_waited_for
            }
            job {
                a_quota_bounds_what_runs
                quotas_of_jobs_are_their_own
                a_paused_job_waits
                a_retry_passes_the_quota_again
                a_known_job_is_left_as_it_is
                a_task_makes_its_job_known
                a_bounded_number_is_past_the_jobs_line
                a_backlog_beyond_the_window_is_worked_off
                shares_follow_the_weights
                a_late_job_shares_from_then_on
                a_cancelled_backlog_does_not_distort
                a_job_shows_its_progress
            }
            fairness {
                small_jobs_are_not_held_up_by_a_large_one
                small_jobs_are_not_held_up_behind_a_limit
                permits_are_shared_as_weights_say
                a_limit_is_shared_as_weights_say
                a_window_full_of_waiters_opens_as_their_limit_gives_slots
            }
            quota {
                every_way_out_gives_the_slot_back
            }
            order {
                a_higher_priority_goes_first
                a_priority_counts_across_kinds_and_queues
                equals_go_by_age
                waiting_raises_the_priority
                lines_go_by_priority_too
                waiting_counts_in_lines_too
                an_arrival_joins_the_line_at_its_place
                waiting_counts_from_when_a_task_is_due
                what_comes_back_goes_first_among_the_ready
                what_comes_back_goes_first_in_its_line
                what_comes_back_goes_first_in_its_jobs_line
                what_comes_back_to_its_job_goes_first_in_its_group
                what_comes_back_goes_first_whatever_jobs_did_meanwhile
                what_comes_back_has_no_more_than_its_rank
                what_came_back_without_a_worker_goes_first
                a_failure_and_a_snooze_go_to_the_end
            }
            window {
                a_kind_is_claimed_inside_its_hours_only
                hours_may_reach_over_midnight
                other_kinds_are_not_held_up
                what_runs_may_outlast_the_hours
                a_kind_without_hours_is_always_open
                a_kind_outside_its_hours_keeps_no_slot
            }
            unique {
                the_unfinished_task_is_found_again
                a_repeated_submission_doubles_nothing
                a_key_counts_within_one_submission
                a_key_is_held_until_the_end
                a_key_is_free_after_every_end
                a_stale_exit_does_not_free_a_key
                a_refused_submission_takes_no_key
            }
            retry {
                a_failed_task_starts_anew
                a_cancelled_task_starts_anew
                a_completed_task_stays
                a_task_that_is_not_due_is_hastened
                what_waits_or_runs_is_left_alone
                a_task_named_twice_is_retried_once
                a_retried_task_has_its_key_again
                a_key_that_another_task_has_is_not_taken
                two_ended_tasks_of_one_key_come_back_as_one
                a_retried_task_passes_its_limits_again
                too_many_retries_at_once_are_refused
            }
            relay {
                the_next_in_line_gets_the_same_slot
                slots_without_a_next_are_free
                who_goes_on_also_takes_what_is_ready
                what_is_ready_and_comes_first_goes_first
                slots_are_handed_on_by_priority
                a_heavier_head_is_not_passed
                who_collects_slots_is_not_passed
                a_lowered_limit_is_drained
                a_slot_that_was_handed_on_can_be_taken_away
                what_was_handed_a_slot_ends_as_any_other
            }
            release {
                the_slot_goes_to_the_next_and_the_holder_is_fenced
                a_heartbeat_tells_the_fenced_attempt
                an_attempt_gives_all_its_slots
                the_last_attempt_fails_the_task
                a_task_that_was_to_be_cancelled_ends
                what_cannot_be_released_is_told
                a_step_keeps_its_workflow
            }
            pause {
                nothing_of_a_paused_queue_is_claimed
                other_queues_go_on
                another_handle_sees_a_pause
                what_a_paused_queue_holds_goes_to_others
                a_pause_is_shown
                a_bad_name_is_refused
            }
            inspect {
                the_time_is_the_stores
                tasks_are_listed_by_id_and_paged
                tasks_are_filtered
                lists_leave_payloads_out
                states_are_counted
                what_is_unknown_is_none
                explain_says_when_a_task_is_due
                explain_says_what_is_at_the_gate
                explain_says_who_is_in_the_way
                explain_says_whether_anybody_serves_a_ready_task
                explain_says_where_a_task_runs
                explain_says_that_a_task_ended
                holders_are_listed_by_slot
                limits_and_jobs_are_listed_by_name
                a_look_changes_nothing
            }
            lists {
                queues_show_their_tasks_and_workers
                workers_show_what_they_serve_and_run
                a_worker_that_leaves_is_forgotten
                workflows_show_their_steps
                a_line_is_listed_in_its_order
                the_load_says_what_waits
                the_load_says_of_jobs_what_is_ready_and_what_runs
                refusals_are_counted
                tasks_are_filtered_by_group
                the_wait_is_estimated_from_run_times_and_place
                run_times_are_forgotten_in_time
                a_repair_leaves_what_is_sound
            }
            input {
                allowed_names_come_back
                bad_names_are_refused_everywhere
                asking_for_bad_names_is_harmless
                payloads_come_back_byte_by_byte
                bad_payloads_are_refused
                far_times_are_taken_as_they_are
            }
            races {
                limits_hold_under_many_workers
                crossing_limits_do_not_lock_up
                workflows_keep_their_order
                a_limit_changed_while_busy_leaves_nothing_behind
                cancels_race_with_workers
                a_unique_key_is_stored_once
                a_limit_set_during_a_submit_holds
                late_workers_change_nothing
                many_processes_share_one_store
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
    fn every_case_is_listed() {
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
