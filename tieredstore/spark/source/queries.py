"""The query of logs that a data source's options make: what partitions are asked for, in the words of the options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError
from tieredstore.partitions.log_query import LogQuery, QueryWords

if TYPE_CHECKING:
    from tieredstore.spark.source.options import SourceOptions

_TIMEOUT: Final = "default.api.timeout.ms"
_MINUTE_MS: Final = "60000"
_LONGEST: Final = 999_999

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
        timeout_s=_patience_s(dict(options.kafka or ())),
        words=_OPTIONS,
    )


def _patience_s(client: dict[str, str]) -> float:
    """For how many seconds the broker may be silent: ``kafka.default.api.timeout.ms``, as Kafka's clients a minute."""
    text = client.get(_TIMEOUT, _MINUTE_MS)
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LONGEST)) and int(text)):
        raise ConfigError(f"the option kafka.{_TIMEOUT} is {text[:20]!r}: it must be milliseconds, 1 to {_LONGEST}")
    return int(text) / 1000
