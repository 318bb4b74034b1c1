"""Which tests stand for which item of failures.md, the project's list of what goes wrong.

A test is named `file::function`, the file relative to `tests/`. The seeded schedules
(`faults/test_schedules.py::test_schedule`) cover items 1, 4, 6, 9, 10, 12, 13, 16, 17, 22, 25 in
combination as well.
"""

CANCEL, HANGS = "integration/test_cancel.py", "integration/test_hangs.py"
OUTPUT, CHOICES = "integration/test_output.py", "integration/test_choices.py"
ACCOUNTING, HOSTS = "integration/test_accounting.py", "integration/test_hosts.py"
BAD = "integration/test_bad_input.py"
WORKERS, REDIS = "faults/test_workers.py", "faults/test_redis.py"
ROLLING, ROUTERS = "faults/test_rolling.py", "faults/test_routers.py"
FLEET, CONTRACT = "unit/services/router/test_fleet.py", "contract/test_blobs.py"

ITEMS: dict[int, tuple[str, ...]] = {
    1: (
        f"{CANCEL}::test_cancels_at_every_moment_of_a_request",
        f"{CANCEL}::test_cancelled_while_waiting_for_a_turn",
        f"{CANCEL}::test_cancelled_while_prefilling",
        f"{CANCEL}::test_abandoned_between_prefill_and_decode",
        f"{CANCEL}::test_cancelled_while_fetching",
        f"{CANCEL}::test_cancelled_while_decoding",
        f"{CANCEL}::test_a_client_that_is_killed_frees_all",
    ),
    2: (f"{CANCEL}::test_a_burst_of_cancels_leaves_an_idle_server",),
    3: (f"{CANCEL}::test_a_cancelled_long_prefill_stops_at_its_next_chunk",),
    4: (
        f"{CONTRACT}::test_readers_of_blobs_that_are_being_evicted_get_right_bytes_or_none",
        f"{CONTRACT}::test_a_cancelled_fetch_writes_no_more",
        f"{CONTRACT}::test_a_cancelled_publication_leaves_nothing_behind",
    ),
    5: (f"{HANGS}::test_what_a_worker_refuses_reaches_the_client_at_once",),
    6: (
        f"{WORKERS}::test_killed_at_each_phase_every_client_gets_the_whole_text",
        f"{WORKERS}::test_the_transfer_service_killed_at_each_phase",
        f"{WORKERS}::test_a_hung_worker_is_given_up_within_seconds",
        "faults/test_resume.py::test_resumed_from_the_blobs_that_survive",
        "faults/test_resume.py::test_computed_again_when_the_blobs_are_gone_too",
    ),
    7: (f"{FLEET}::test_the_models_limits_are_what_both_roles_can_hold",),
    8: (
        "faults/test_idle.py::test_a_connection_that_broke_while_idle_costs_nothing",
        "faults/test_idle.py::test_a_connection_that_swallows_everything_is_given_up",
        "faults/test_idle.py::test_keepalives_are_sent_often_enough_and_without_calls",
    ),
    9: (
        f"{HOSTS}::test_requests_outlive_a_restart_of_either_host",
        f"{HOSTS}::test_a_host_that_hangs_in_mid_handoff_costs_a_recomputation",
        f"{HANGS}::test_a_handoff_whose_kv_is_gone_is_recomputed",
        f"{WORKERS}::test_the_transfer_service_killed_at_each_phase",
    ),
    10: (
        f"{HANGS}::test_a_clients_deadline_is_honoured_whoever_hangs",
        f"{HANGS}::test_the_deadline_is_honoured_in_the_queue",
        f"{HANGS}::test_the_deadline_is_honoured_while_decoding",
        f"{WORKERS}::test_the_clients_own_deadline_ends_a_wait_for_workers_that_hang",
    ),
    11: (
        f"{OUTPUT}::test_a_first_token_that_ends_the_output_needs_no_decode",
        f"{OUTPUT}::test_max_tokens_is_exact",
    ),
    12: (
        f"{OUTPUT}::test_logprobs_are_whole_on_both_sides_of_the_handoff",
        f"{OUTPUT}::test_seeded_sampling_is_the_uninterrupted_engines",
        f"{CHOICES}::test_logprobs_and_penalties_of_each_choice",
        f"{CHOICES}::test_stop_strings_cut_each_choices_own_text",
    ),
    13: (f"{OUTPUT}::test_stop_strings_everywhere_in_the_text",),
    14: (
        f"{OUTPUT}::test_text_is_the_tokenizers_own",
        f"{OUTPUT}::test_deltas_never_hold_a_part_of_a_code_point",
    ),
    15: (
        f"{OUTPUT}::test_prompts_of_every_length_around_a_block_and_the_window",
        f"{OUTPUT}::test_the_context_is_usable_to_its_last_token",
    ),
    16: (
        f"{OUTPUT}::test_a_corrupted_blob_is_never_attended_to",
        f"{HOSTS}::test_a_blob_broken_at_its_host_is_recomputed_and_forgotten_there",
        f"{HANGS}::test_another_layout_is_refused_before_any_byte_moves",
        f"{CONTRACT}::test_a_stale_place_is_never_served",
    ),
    17: (
        f"{CHOICES}::test_four_choices_of_one_seed_differ_and_each_is_the_engines",
        f"{CHOICES}::test_each_choice_ends_by_itself",
    ),
    18: (
        f"{CHOICES}::test_both_ways_of_serving_give_the_same",
        "integration/test_demo_model.py",
    ),
    19: (
        f"{ROLLING}::test_a_draining_decode_worker_hands_its_streams_over_with_their_kv",
        "faults/test_resume.py::test_two_deaths_of_one_stream",
    ),
    20: (
        f"{ACCOUNTING}::test_usage_counts_each_token_once",
        f"{ACCOUNTING}::test_cached_tokens_are_what_prefill_did_not_compute",
    ),
    21: (f"{ACCOUNTING}::test_ttft_is_what_the_client_sees",),
    22: (f"{ACCOUNTING}::test_gauges_return_to_zero", "faults/test_schedules.py::test_schedule"),
    23: (
        f"{WORKERS}::test_restarted_on_the_same_address_it_is_a_new_worker",
        f"{HANGS}::test_a_grant_to_an_earlier_incarnation_fails_at_once",
    ),
    24: (
        f"{WORKERS}::test_one_that_vanished_is_out_of_rotation_in_seconds_and_comes_back",
        f"{FLEET}::test_a_failing_worker_is_avoided_for_longer_and_longer_but_never_for_ever",
    ),
    25: (
        f"{REDIS}::test_restarts_empty_again_and_again",
        f"{REDIS}::test_ten_seconds_frozen",
        f"{REDIS}::test_ten_seconds_of_refused_connections",
        f"{REDIS}::test_connections_that_break_and_that_hang",
    ),
    26: (
        f"{ROLLING}::test_every_component_in_turn",
        f"{ROLLING}::test_a_draining_prefill_worker_fails_nothing",
        f"{ROLLING}::test_a_draining_router_finishes_its_streams",
        f"{ROUTERS}::test_clients_of_a_killed_router_go_on_at_the_other",
        f"{ROUTERS}::test_a_stream_that_was_cut_off_needs_only_what_it_was_told",
    ),
    27: ("faults/test_memory.py::test_memory_is_flat_over_many_requests",),
    28: ("faults/test_capacity.py::test_twice_the_load_keeps_goodput_and_refuses_the_rest_early",),
    29: (
        "faults/test_capacity.py"
        "::test_a_burst_of_long_prompts_does_not_move_the_itl_of_running_streams",
    ),
    32: (
        f"{BAD}::test_each_bad_value_is_refused_by_name",
        f"{BAD}::test_garbage_is_refused",
        f"{BAD}::test_a_message_beyond_the_limit_is_refused",
    ),
    33: ("faults/test_tenants.py::test_a_tenants_prompts_are_cached_for_it_alone",),
}
ELSEWHERE: dict[int, str] = {
    30: "there is no autoscaler",
    31: "there is no authentication; nothing unpickles",
}
"""Items that no test can stand for, since what they are about does not exist here."""
