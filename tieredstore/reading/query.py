"""The query of a reader: which partitions to read and how. Data sources, commands and consumers create a query."""

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
"""The default timeout of Kafka's clients."""


_TIMEOUT: Final = "default.api.timeout.ms"
_LONGEST_MS: Final = 999_999


@dataclass(frozen=True, slots=True)
class QueryWords:
    """A front end's names for its options, so that errors can name the option to change.

    The texts become parts of error messages: ``accept_loss`` and ``start_late`` must be imperatives, ``starts`` a
    clause, and the other fields nouns.
    """

    accept_loss: str = 'set on_data_loss="report"'
    topic_ids: str = "topic_ids"
    choose_topic_id: str = "topic_ids"
    starts: str = "the query starts"
    starting: str = "the map of starting offsets"
    starting_times: str = "the map of starting times"
    ending: str = "the map of ending offsets"
    ending_times: str = "the map of ending times"
    start_late: str = "start at the end where there is no such record"
    schema: str = "value=Json(schema)"


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The partitions to read, and how. Immutable, hashable and picklable. Its repr shows no secret.

    ``topic_ids`` choose between incarnations of a re-created topic. ``client`` has the properties of the Kafka client
    that reads the broker (``docs/how-to/read.md``). If it is None, only the bucket is read. The broker must answer
    within ``timeout_s``. For offsets that do not exist, ``on_data_loss`` chooses an error, or a warning after which the
    read continues. With ``by_partition``, undetermined open transactions of one partition do not stop reads of the
    others: the partition ends where its log does, and only reads of its last records raise the error.
    """

    selection: Selection
    isolation: Isolation = DEFAULT_ISOLATION
    on_data_loss: OnDataLoss = "fail"
    # Mappings are not hashable, so the hash ignores these fields. Equality compares them.
    topic_ids: Mapping[str, Uuid] = field(default_factory=dict[str, Uuid], hash=False)
    client: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    by_partition: bool = False
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
        """Create a query of one topic, or of some of its partitions. The keywords are the options of front ends."""
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
        """The query's only topic. Raise ConfigError if the query selects several topics."""
        named = named_topics(self.selection)
        if named is None or len(named) != 1:
            raise ConfigError(f"{self.selection} is not one topic")
        return named[0]

    @property
    def fails_on_loss(self) -> bool:
        """True if lost offsets are an error."""
        return self.on_data_loss == "fail"

    def open_cluster(self) -> LiveCluster | None:
        """Return the cluster to read, which connects at the first use; None for the bucket alone.

        The caller closes the cluster. Raise ConfigError if ``tieredstore[kafka]`` is not installed.
        """
        if self.client is None:
            return None
        # Import the module only now, because it needs the extra `kafka`, and a query without a broker does not.
        from tieredstore.live import LiveCluster  # noqa: PLC0415

        return LiveCluster(self.client, isolation=self.isolation, timeout_s=self.timeout_s)


def timeout_of(client: Mapping[str, str], *, named: str = "the client property ") -> float:
    """Return the timeout of requests to the broker in seconds, from ``default.api.timeout.ms`` (default 60 s).

    ``named`` precedes the property's name in the ConfigError for an invalid value.
    """
    text = client.get(_TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT_S
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LONGEST_MS)) and int(text)):
        raise ConfigError(f"{named}{_TIMEOUT} is {text[:20]!r}: it must be milliseconds, 1 to {_LONGEST_MS}")
    return int(text) / 1000
