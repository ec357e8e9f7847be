"""Consumer groups of Kafka: where a pipeline goes on that another program began, and who is told how far it is."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, model_validator

from tieredstore.config.fields import broken_rule
from tieredstore.config.values import choice, string
from tieredstore.pipelines.config.filing_settings import FilingSettings

_GROUP: Final = "group:"


def _group(text: str) -> str:
    """Kafka takes any name; one with a control character is a slip."""
    if not text or len(text) > 255 or not text.isprintable():
        raise ValueError
    return text


def _start(text: str) -> str:
    if not text.startswith(_GROUP):
        raise ValueError
    return _group(text.removeprefix(_GROUP))


def _node(text: str) -> str:
    """The path of a node of ZooKeeper, without the slash at its end."""
    if not re.fullmatch(r"/?|(/[^/\x00-\x1f]+)+/?", text):
        raise ValueError
    return text.rstrip("/")


class GroupSettings(FilingSettings):
    """Which groups are read and written."""

    starting_group: Annotated[str, string("group:NAME", _start)] = Field(
        default="",
        alias="startingOffsets",
        description="Partitions of which nothing is written begin where this consumer group stands; unset, by "
        "`kafka.new.consumer.auto.offset.reset`.",
    )
    group_storage: Annotated[str, choice("kafka", "zookeeper")] = Field(
        default="kafka",
        alias="kafka.offsets.storage",
        description="Where the offsets of that group are: in Kafka, or in ZooKeeper, as Secor may have them.",
    )
    zookeeper: Annotated[str, string("host:port, several parted by commas")] = Field(
        default="", alias="zookeeper.quorum", description="That ZooKeeper. Of no use to anything else."
    )
    zookeeper_path: Annotated[str, string("a node's path", _node)] = Field(
        default="",
        alias="kafka.zookeeper.path",
        description="The node above its `/consumers/GROUP/offsets/TOPIC/PARTITION`; unset, or `/`, none.",
    )
    commit_group: Annotated[str, string("a group's name", _group)] = Field(
        default="",
        alias="commit.to.group",
        description="A consumer group that gets the offsets of what is published, for tools that show its lag.",
    )

    @model_validator(mode="after")
    def _has_zookeeper(self) -> GroupSettings:
        if self.starting_group and self.group_storage == "zookeeper" and not self.zookeeper:
            raise broken_rule(
                "zookeeper.quorum", "is missing; startingOffsets with kafka.offsets.storage=zookeeper needs it"
            )
        return self
