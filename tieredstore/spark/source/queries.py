"""The query of logs that a data source's options make: what partitions are asked for, in the words of the options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tieredstore.reading.query import LogQuery, QueryWords, timeout_of

if TYPE_CHECKING:
    from tieredstore.spark.source.options import SourceOptions

_OPTIONS: Final = QueryWords(
    accept_loss="set failOnDataLoss to false",
    topic_ids="topicIds",
    choose_topic_id="the option topicIds",
    starts="the options start",
    starting="the option startingOffsets",
    starting_times="the option startingOffsetsByTimestamp",
    ending="the option endingOffsets",
    ending_times="the option endingOffsetsByTimestamp",
    start_late="set startingOffsetsByTimestampStrategy to latest",
)


def query_of(options: SourceOptions) -> LogQuery:
    """What the options ask of bucket and broker; ConfigError for a time-out that is none."""
    return LogQuery(
        options.selection,
        isolation=options.isolation,
        on_data_loss="fail" if options.fail_on_data_loss else "report",
        topic_ids=options.topic_ids,
        client=None if options.kafka is None else dict(options.kafka),
        timeout_s=timeout_of(dict(options.kafka or ()), named="the option kafka."),
        words=_OPTIONS,
    )
