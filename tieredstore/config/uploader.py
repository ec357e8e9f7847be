"""Settings of the uploader: ``uploader.*``, in the same source as those of the destination store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import Field, SecretStr

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.values import BOOLEAN, NAME, PATH, choice, integer, long, string, words
from tieredstore.model import can_be_topic

KAFKA: Final = "uploader.kafka."
"""Prefix of the Kafka client's properties."""


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) >= 1 << 16:
        raise ValueError
    return host.strip("[]"), int(port)


def _pattern(text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r:.80} is not a regular expression: {error}") from None


def parse_topic_ms(text: str) -> tuple[str, int]:
    """Return topic and milliseconds of ``orders=86400000``; raise ValueError for any other form."""
    topic, _, milliseconds = text.rpartition("=")
    if not can_be_topic(topic) or not re.fullmatch(r"-1|[0-9]{1,18}", milliseconds, re.ASCII):
        raise ValueError
    return topic, int(milliseconds)


def _not_empty(text: str) -> None:
    if not text:
        raise ValueError


class UploaderSettings(SettingsGroup):
    """Settings of the uploader: where it reads, what it uploads, and how.

    ``kafka`` holds properties of the Kafka client, as pairs of name and text.
    """

    client_properties: ClassVar[str] = KAFKA

    server_properties: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="uploader.server.properties",
        description="The broker's settings file, for log directories, id and listener that are not set here.",
    )
    log_dirs: Annotated[tuple[str, ...], words("folders, separated by commas", _not_empty)] = Field(
        default=(), alias="uploader.log.dirs", description="The broker's log directories."
    )
    broker_id: Annotated[int | None, integer(0)] = Field(
        default=None, alias="uploader.broker.id", description="The broker's id (`node.id`)."
    )
    leadership: Annotated[str, NAME] = Field(
        default="auto",
        alias="uploader.leadership",
        description="How to find the partitions that this broker leads: `auto` asks the cluster, `zookeeper` watches "
        "its ZooKeeper, `static` takes all on disk; or a Python class `module.Class`, a subclass of "
        "`tieredstore.uploader.Leadership`.",
    )
    zookeeper_connect: Annotated[str | None, NAME] = Field(
        default=None,
        alias="uploader.zookeeper.connect",
        description="ZooKeeper's servers, `host:port,…/chroot`; unset: those of the broker's settings.",
    )
    include: Annotated[tuple[str, ...], words("regular expressions, separated by commas", _pattern)] = Field(
        default=(".*",),
        alias="uploader.topics.include",
        description="Topics to upload: a pattern matches the whole name.",
    )
    exclude: Annotated[tuple[str, ...], words("regular expressions, separated by commas", _pattern)] = Field(
        default=(), alias="uploader.topics.exclude", description="Topics not to upload, even if they are included."
    )
    internal_topics: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="uploader.internal.topics", description="Also upload topics whose names begin with `__`."
    )
    force_topics: Annotated[tuple[str, ...], words("topics, separated by commas", _not_empty)] = Field(
        default=(),
        alias="uploader.force.topics",
        description="Topics to upload even if they are compacted, or tiered by the broker.",
    )
    start: Annotated[str, choice("earliest", "latest")] = Field(
        default="earliest",
        alias="uploader.start",
        description="The first segments of a new partition to upload: all on disk, or those closed from now on.",
    )
    concurrent_uploads: Annotated[int, integer(1, 256)] = Field(
        default=10, alias="uploader.concurrent.uploads", description="Partitions to upload in parallel."
    )
    scan_interval_ms: Annotated[int, long(100)] = Field(
        default=5000,
        alias="uploader.scan.interval.ms",
        description="Time between scans of the folders, which complement file system notifications.",
    )
    hold_dir: Annotated[tuple[str, ...], words("folders, separated by commas", _not_empty)] = Field(
        default=(),
        alias="uploader.hold.dir",
        description=(
            "Folders for hard links to segments that are not uploaded yet, so that they survive the broker's "
            "retention while no uploader runs. Each file system with log directories needs one, outside of them."
        ),
    )
    hold_max_files: Annotated[int, integer(10)] = Field(
        default=10000, alias="uploader.hold.max.files", description="Maximum of files held open."
    )
    hold_min_free_percent: Annotated[int, integer(0, 99)] = Field(
        default=10,
        alias="uploader.hold.min.free.percent",
        description="With less free disk space, release files that the broker has deleted.",
    )
    upload_timeout_ms: Annotated[int, long(1000)] = Field(
        default=300000,
        alias="uploader.upload.timeout.ms",
        description="Time limit of one attempt to upload a segment; waits for the rate limit do not count.",
    )
    check_crcs: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="uploader.check.crcs",
        description="Check the checksums of all batches before an upload.",
    )
    retention_ms: Annotated[int, long(-1)] = Field(
        default=-1,
        alias="uploader.retention.ms",
        description="Delete stored segments of led partitions if all records are older; -1: never.",
    )
    retention_topics: Annotated[
        tuple[str, ...], words("topics, each with `=` and its milliseconds, separated by commas", parse_topic_ms)
    ] = Field(
        default=(),
        alias="uploader.retention.topics",
        description="Topics with another time than `uploader.retention.ms`: `orders=86400000,clicks=-1`.",
    )
    retention_bytes: Annotated[int, long(-1)] = Field(
        default=-1,
        alias="uploader.retention.bytes",
        description=(
            "Keep at least this many stored log bytes of a led partition, and delete older segments; -1: keep all."
        ),
    )
    retention_dry_run: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="uploader.retention.dry.run",
        description="Log what retention would delete, and delete nothing.",
    )
    retention_interval_ms: Annotated[int, long(1000)] = Field(
        default=3600000, alias="uploader.retention.interval.ms", description="Time between passes of retention."
    )
    snapshots_enabled: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="uploader.snapshots.enabled",
        description=(
            "Write an hourly snapshot of the cluster, if a broker can be asked: topic settings, ACLs, group "
            "offsets. All uploaders of a cluster together write one."
        ),
    )
    snapshots_retention_ms: Annotated[int, long(-1)] = Field(
        default=2592000000,
        alias="uploader.snapshots.retention.ms",
        description="Delete older snapshots, but never the newest; -1: never.",
    )
    snapshots_registry_config: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="uploader.snapshots.registry.config",
        description=(
            "Properties file of a schema registry (`schema.registry.url`, logins), to include its schemas in snapshots."
        ),
    )
    nice: Annotated[int, integer(0, 19)] = Field(
        default=0, alias="uploader.nice", description="Niceness of the process, so that the broker has priority."
    )
    drain_ms: Annotated[int, long(0)] = Field(
        default=60000, alias="uploader.drain.ms", description="Time for work in progress to end after SIGTERM."
    )
    listen: Annotated[tuple[str, int] | None, string("host:port", _listen)] = Field(
        default=None,
        alias="uploader.listen",
        description="Address of `/metrics`, `/healthz`, `/lag` and `/readyz`.",
    )
    metrics_topics: Annotated[tuple[str, ...], words("regular expressions, separated by commas", _pattern)] = Field(
        default=(),
        alias="uploader.metrics.topics",
        description=(
            "Topics with a lag metric of their own (label `topic`): the first 100 by name; all others are summed as "
            "`(other)`. A pattern matches the whole name."
        ),
    )
    kafka: tuple[tuple[str, SecretStr], ...] = ()
