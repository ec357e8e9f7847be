"""The query of a reader, whether a data source, a command or a consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, get_args

from tieredstore.errors import ConfigError
from tieredstore.model import DEFAULT_ISOLATION, Isolation, Uuid
from tieredstore.partitions.selections import Assign, Selection, Subscribe, named_topics
from tieredstore.records.settings import OnDataLoss

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster

DEFAULT_TIMEOUT_S: Final = 60.0
"""As Kafka's clients wait for a broker."""


_TIMEOUT: Final = "default.api.timeout.ms"
_LONGEST_MS: Final = 999_999


@dataclass(frozen=True, slots=True)
class QueryWords:
    """A front end's names of its options, so that an error can name the way out.

    ``accept_loss`` and ``start_late`` are imperatives, ``starts`` a clause, the others nouns.
    """

    accept_loss: str = "have losses reported (on_data_loss)"
    topic_ids: str = "topic_ids"
    choose_topic_id: str = "topic_ids"
    starts: str = "the query starts"
    starting: str = "the map of starting offsets"
    starting_times: str = "the map of starting times"
    ending: str = "the map of ending offsets"
    ending_times: str = "the map of ending times"
    start_late: str = "start at the end where there is no such record"


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The partitions to read, and how; frozen, hashable and picklable, and its repr shows no secret.

    ``topic_ids`` choose the incarnation of a topic. ``client`` are the properties of the Kafka client that reads the
    broker (``docs/how-to/read.md``), None for the bucket alone; the broker must answer within ``timeout_s``.
    ``on_data_loss`` decides about offsets that do not exist: an error, or a warning and the read continues.
    """

    selection: Selection
    isolation: Isolation = DEFAULT_ISOLATION
    on_data_loss: OnDataLoss = "fail"
    # Not part of the hash, because mappings have none; equality compares them.
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict[str, Uuid], hash=False)
    client: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    words: QueryWords = field(default=QueryWords(), repr=False)

    def __post_init__(self) -> None:
        for name, choices in (("isolation", get_args(Isolation)), ("on_data_loss", get_args(OnDataLoss))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(choices)}")

    @classmethod
    def of_topic(
        cls,
        topic: str,
        partitions: Sequence[int] | None = None,
        *,
        isolation: Isolation = DEFAULT_ISOLATION,
        on_data_loss: OnDataLoss = "fail",
        client: Mapping[str, str] | None = None,
        topic_id: Uuid | None = None,
        words: QueryWords | None = None,
    ) -> LogQuery:
        """Make a query of one topic, or of some of its partitions; keywords as in the options of front ends."""
        return cls(
            Subscribe((topic,)) if partitions is None else Assign(tuple((topic, number) for number in partitions)),
            isolation=isolation,
            on_data_loss=on_data_loss,
            topic_ids={} if topic_id is None else {topic: topic_id},
            client=client,
            timeout_s=timeout_of(client or {}),
            words=words or QueryWords(),
        )

    @property
    def topic(self) -> str:
        """The one topic; ConfigError for a query of several."""
        named = named_topics(self.selection)
        if named is None or len(named) != 1:
            raise ConfigError(f"{self.selection} is not one topic")
        return named[0]

    @property
    def fails_on_loss(self) -> bool:
        """True if lost offsets are an error."""
        return self.on_data_loss == "fail"

    def open_cluster(self) -> LiveCluster | None:
        """Return the cluster of the client properties, which connects on first use; None for the bucket alone.

        The caller closes it. Raise ConfigError if ``tieredstore[kafka]`` is not installed.
        """
        if self.client is None:
            return None
        # It needs the extra `kafka`; a bucket alone does not.
        from tieredstore.live import LiveCluster  # noqa: PLC0415

        return LiveCluster(self.client, isolation=self.isolation, timeout_s=self.timeout_s)


def timeout_of(client: Mapping[str, str], *, named: str = "the client property ") -> float:
    """Return the broker's timeout in seconds: ``default.api.timeout.ms``, by default 60 s as in Kafka's clients.

    ``named`` precedes the property's name in the ConfigError for an invalid one.
    """
    text = client.get(_TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT_S
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LONGEST_MS)) and int(text)):
        raise ConfigError(f"{named}{_TIMEOUT} is {text[:20]!r}: it must be milliseconds, 1 to {_LONGEST_MS}")
    return int(text) / 1000
