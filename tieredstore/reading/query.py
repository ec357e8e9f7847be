"""What a reader asks of the logs, whoever it is: a data source, a command, a consumer."""

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
    """What the front end that a person uses calls the things that can be set, so that an error names the way out.

    ``accept_loss`` and ``start_late`` say what to do, ``starts`` who starts where, and the others are nouns.
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
    """Which partitions are read, and how; frozen, hashable and picklable, and its repr shows no secret.

    ``topic_ids`` tell which incarnation of a topic is meant. ``client`` are the properties of the Kafka client that
    reads the broker (``docs/live.md``), None for the bucket alone; the broker may be silent for ``timeout_s``.
    ``on_data_loss`` says what becomes of offsets that neither has: an error, or a warning and the read goes on.
    """

    selection: Selection
    isolation: Isolation = DEFAULT_ISOLATION
    on_data_loss: OnDataLoss = "fail"
    # Left out of the hash, as mappings have none; equality looks at them.
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
        """A query of one topic, or of some of its partitions; by keywords, as front ends have its options."""
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
        """The one that is named; ConfigError for a query of several."""
        named = named_topics(self.selection)
        if named is None or len(named) != 1:
            raise ConfigError(f"{self.selection} is not one topic")
        return named[0]

    @property
    def fails_on_loss(self) -> bool:
        """Whether lost offsets are an error."""
        return self.on_data_loss == "fail"

    def open_cluster(self) -> LiveCluster | None:
        """The cluster of the client properties, which connects when it is first asked; None for the bucket alone.

        Whoever asks for it closes it. ConfigError if ``tieredstore[kafka]`` is not installed.
        """
        if self.client is None:
            return None
        # Needs the extra `kafka`, which a bucket alone does not.
        from tieredstore.live import LiveCluster  # noqa: PLC0415

        return LiveCluster(self.client, isolation=self.isolation, timeout_s=self.timeout_s)


def timeout_of(client: Mapping[str, str], *, named: str = "the client property ") -> float:
    """For how many seconds the broker may be silent: ``default.api.timeout.ms``, as Kafka's clients a minute.

    ``named`` stands before the name in the ConfigError for what is no such time.
    """
    text = client.get(_TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT_S
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LONGEST_MS)) and int(text)):
        raise ConfigError(f"{named}{_TIMEOUT} is {text[:20]!r}: it must be milliseconds, 1 to {_LONGEST_MS}")
    return int(text) / 1000
