"""Each guarantee in the tables of the docs page has tests that show it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import REPOSITORY

SHOWN_BY = {
    "## Receive": {
        "the store is slow or down": [
            "produce/test_producing::test_a_put_that_hangs_is_overtaken_and_makes_no_second_object",
            "produce/test_producing::test_a_full_buffer_waits_and_then_says_so",
        ],
        "the queue is down": [
            "produce/test_producing::test_records_that_are_not_stored_or_notified_in_time_have_failed"
        ],
        "a producer is killed": [
            "produce/test_producing::test_a_producer_killed_at_any_operation_loses_no_ack_and_halves_nothing",
            "queue/test_kafka_queue_kills::test_a_killed_producer_loses_no_ack_and_doubles_nothing",
            "produce/test_random_kills::test_ten_producers_killed_at_any_moment_lose_no_ack_and_double_nothing",
        ],
        "an answer is lost": [
            "produce/test_producing::test_whatever_fails_once_each_record_is_there_once_and_no_orphan",
            "queue/test_kafka_queue::test_before_what_may_be_there_is_sent_again_the_tail_is_searched",
        ],
        "a notification or a Message is repeated": [
            "consume/test_seen_messages::test_a_batch_that_is_notified_twice_is_read_once_wherever_one_begins"
        ],
        "a consumer is killed": ["queue/test_groups::test_who_comes_next_goes_on_at_the_commit"],
        "an orphan is left": ["upkeep/test_garbage::test_orphans_are_told_by_their_age_and_deleted_or_adopted"],
        "a loop over `records()` ends early": [
            "consume/test_record_loops::test_a_loop_that_is_left_goes_on_where_it_was_left",
            "consume/test_record_loops::test_a_member_that_is_killed_at_each_record_loses_none",
        ],
        "a consumer pauses for too long": [
            "consume/test_record_loops::test_a_partition_lost_at_any_record_returns_no_more_and_the_rest_is_committed",
            "consume/test_record_loops::test_a_rebalance_at_each_record_gives_each_record_to_its_owner_of_then",
            "consume/test_record_loops::test_a_deposed_consumer_reads_no_more_of_what_it_lost_and_commits_the_rest",
            "consume/test_group_histories::test_positions_are_committed_once_and_in_order",
            "queue/test_groups::test_a_dead_members_partitions_are_taken_and_its_late_commit_is_fenced",
            "queue/test_kafka_queue::test_members_share_and_a_deposed_one_is_fenced",
        ],
    },
    "### Guarantees": {
        "`acks=all` is answered": [
            "broker/test_broker::test_each_version_is_answered_in_itself_once_the_message_stands"
        ],
        "`acks=1` is answered": ["broker/test_broker::test_without_acknowledgement_the_answer_comes_on_receipt"],
        "`acks=0`": ["produce/test_broker_producer::test_sent_messages_arrive_with_dense_request_ids"],
        "the connection is lost before the answer": [
            "produce/test_broker_producer::test_an_unanswered_message_is_sent_again_byte_for_byte"
        ],
        "a Message comes again to the same broker": [
            "broker/test_broker::test_a_message_that_comes_again_is_acknowledged_and_stored_once"
        ],
        "a Message comes to a second broker after the first has stored it": [
            "governor/test_governed_brokers::test_brokers_and_governors_that_are_killed_under_load_lose_nothing_and_double_nothing"
        ],
        "a broker is cut off from the store and the others": [
            "governor/test_broker_processes::test_brokers_that_are_killed_and_govern_and_are_cut_off",
            "produce/test_broker_producer::test_a_broker_that_is_cut_off_and_says_that_it_has_the_topic_is_left",
        ],
        "the store is slow or down": [
            "broker/test_broker::test_a_store_that_fails_is_told_to_who_waits_and_a_repetition_is_stored"
        ],
        "the buffer is full (`pubsub.broker.buffer.bytes`)": [
            "broker/test_broker::test_a_full_buffer_stops_reading_and_drops_nothing"
        ],
        "a Message is damaged, or larger than a batch": [
            "broker/test_broker::test_a_refused_message_is_answered_once_and_not_stored"
        ],
        "a Message has no records": [
            "broker/test_broker::test_a_message_without_records_is_acknowledged_and_not_stored_and_none_hides_its_records"
        ],
        "a client asks for more than its share": [
            "broker/test_greedy_clients::test_answers_that_nobody_reads_are_not_made",
            "broker/test_greedy_clients::test_a_client_that_makes_up_topics_has_few_looked_up_at_once",
            "broker/test_greedy_clients::test_who_connects_and_says_nothing_whole_is_sent_away",
        ],
        "many clients send many small requests": [
            "broker/test_greedy_clients::test_small_requests_of_many_clients_do_not_keep_the_loop_from_others",
            "broker/test_greedy_clients::test_connections_of_one_address_take_turns_and_another_address_has_its_own",
        ],
        "Messages arrive slowly, from many clients at once": [
            "broker/test_greedy_clients::test_slow_senders_hold_the_room_for_a_minute_and_not_one_after_the_other"
        ],
        "SIGTERM": [
            "broker/test_running::test_a_broker_that_is_stopped_tells_its_clients_who_has_its_topics",
            "broker/test_broker::test_a_drain_stores_and_answers_what_is_held",
        ],
    },
}
"""Names of the tests for each row of a table of guarantees, by the heading above the table."""


@pytest.mark.parametrize("heading", SHOWN_BY)
def test_each_row_is_shown_by_tests(heading: str) -> None:
    text = (REPOSITORY / "docs" / "how-to" / "batches.md").read_text().partition(f"\n{heading}\n")[2]
    table = text.partition("when | then\n---|---\n")[2].partition("\n\n")[0]
    assert re.findall(r"^(.+?) \|", table, re.MULTILINE) == list(SHOWN_BY[heading])


@pytest.mark.parametrize(
    "named", sorted({test for rows in SHOWN_BY.values() for tests in rows.values() for test in tests})
)
def test_each_test_exists(named: str) -> None:
    module, test = named.split("::")
    tree = ast.parse((REPOSITORY / "tests" / "pubsub" / f"{module}.py").read_text())
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
