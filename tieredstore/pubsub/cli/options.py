"""Groups of options that the ``pubsub`` commands share.

This module is separate from ``pubsub``: that module only declares commands, while these groups of options open topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

import typer

from tieredstore.cli.app.groups import Group
from tieredstore.cli.app.options import Store

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.pubsub.queue.topics import Topics

TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@dataclass(frozen=True, slots=True)
class TopicNames(Group):
    """The selected topics of batches; all by default."""

    PANEL: ClassVar[str] = "Topics"
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics, by name or glob.")] = (
        None
    )

    @property
    def names(self) -> Sequence[str]:
        """The given names and globs."""
        return self.topics or ()


@dataclass(frozen=True, slots=True)
class BatchStore(Store):
    """The bucket, and optionally a topic of MemQ in it."""

    topic_config: Annotated[
        Path | None,
        typer.Option(
            "--topic-config", metavar="FILE", help="MemQ's JSON of the topic; without -c, it also names the bucket."
        ),
    ] = None

    def read_settings(self) -> Settings:
        """Return the store's settings with the topic's configuration. If no store is given, use the topic's bucket."""
        if self.topic_config is None:
            return Store.read_settings(self)
        from tieredstore.pubsub.queue.memq_topics import load_topic_config
        from tieredstore.pubsub.settings import BatchSettings

        bucket = load_topic_config(self.topic_config).bucket
        settings = Store.read_settings(self if self.is_given else replace(self, url=f"s3://{bucket}"))
        batches = settings.section(BatchSettings)
        return settings.with_section(batches.model_copy(update={"topic_config": self.topic_config}))

    @contextlib.contextmanager
    def open_topics(self) -> Generator[Topics]:
        """Open the topics of the bucket for the block."""
        from tieredstore.pubsub.queue.memq_topics import open_topics

        with open_topics(self.read_settings()) as topics:
            yield topics
