"""The report of ``restore produce --dry-run``.

Separate from ``produce``, which is about runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tieredstore.cli.terminal.output import counted, human_count, print_json_line, print_lines
from tieredstore.cli.terminal.rows import Row, attributes
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.model import human_bytes
from tieredstore.ops.doctor.checkup import Check, Verdict

if TYPE_CHECKING:
    from tieredstore.remote.manager import RemoteStorageManager
    from tieredstore.restore.produce.source import SourceTopics
    from tieredstore.restore.produce.target import NewTopic, NewTopics

_SNAPSHOT: Final = "snapshot"
_CHECK: Final[Row[Check]] = Row(attributes("check", "outcome", "detail"))


def show_dry_run(topics: SourceTopics, client: Mapping[str, str], new: NewTopics | None, *, as_json: bool) -> None:
    """Read all records, compare them with the target, and print a line for each check. Exit with 2 if one is bad."""
    from tieredstore.restore.produce.dry_run import BYTES_PER_S, RECORDS_PER_S, examine

    found = examine(topics, client, new=new, scan=True)
    for check in found.checks:
        if as_json:
            print_json_line(_CHECK.json(check))
        else:
            print_lines([f"{check.outcome:<7} {check.check:<12} {check.detail}"])
    if as_json:
        figures = {"records": found.records, "size": found.size, "expected_s": round(found.expected_s, 1)}
        print_json_line({"summary": figures})
    else:
        restored = f"{counted(found.records, 'record')} ({human_bytes(found.size)}) would be restored"
        speed = f"{human_count(RECORDS_PER_S)} records or {human_bytes(BYTES_PER_S)} a second"
        print_lines([f"{restored}, in about {_duration(found.expected_s)} at {speed}"])
    if any(check.outcome is Verdict.BAD for check in found.checks):
        raise typer.Exit(ConfigError.exit_code)


def new_topics(manager: RemoteStorageManager, create_with: str | None) -> NewTopics | None:
    """Return how ``--create-with`` has missing topics created: as a file says, or as the bucket's snapshots show them.

    Raise ConfigError for another file.
    """
    from tieredstore.ops.snapshots.storing import Snapshots
    from tieredstore.restore.produce.target import NewTopic

    if create_with is None:
        return None
    if create_with != _SNAPSHOT:
        given = NewTopic.read(Path(create_with))
        return lambda _topic, _topic_id: given
    snapshots = Snapshots.of(manager)

    def of_snapshot(topic: str, topic_id: str) -> NewTopic:
        held = snapshots.find_topic(topic, topic_id)
        if held is None:
            raise ResourceNotFoundError(f"no snapshot in the bucket has the topic {topic}: give --create-with FILE")
        return NewTopic(held.settings, held.partition_count, held.replication_factor)

    return of_snapshot


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
