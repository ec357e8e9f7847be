"""Group members that join, leave and are killed while they read bucket and broker: nothing is lost."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli.cli_process import environment
from tests.support.kafka.kafka_topics import Produced, delete_records
from tests.support.kafka.live_topics import TieredTopic
from tests.support.paths import REPOSITORY
from tests.support.records.topic_buckets import value_of
from tests.support.servers.kafka import KafkaServer, start_kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker]

DEADLINE_S: Final = 120.0
PARTITIONS: Final = 3
PROTOCOLS: Final[dict[str, dict[str, Any]]] = {
    "eager": {"partition.assignment.strategy": "range", "session.timeout.ms": 2000, "heartbeat.interval.ms": 300},
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 2000, "heartbeat.interval.ms": 300,
    },
    "kip848": {"group.protocol": "consumer"},
}  # fmt: skip


@dataclass(frozen=True)
class Noted:
    """One line of a member's output."""

    kind: str
    partition: int
    offset: int
    at: int


class Members:
    """Members of one group, and their output."""

    def __init__(self, tiered: TieredTopic, folder: Path, own: dict[str, Any]) -> None:
        self._tiered = tiered
        self._folder = folder
        self._config = folder / "member.json"
        self._config.write_text(
            json.dumps(
                {
                    "topic": tiered.topic, "bootstrap.servers": tiered.server.bootstrap_servers, "log_level": 2,
                    "group.id": f"readers-of-{tiered.topic}", "auto.offset.reset": "earliest",
                    "auto.commit.interval.ms": 50, "tiered.storage.mode": "remote_preferred",
                    "tiered.storage.refresh.ms": 200, "tiered.storage.settings": tiered.store | {"chunk.size": "8192"},
                    **own,
                }
            )
        )  # fmt: skip
        self._names = itertools.count()
        self._outputs: dict[int, Path] = {}
        self.running: list[subprocess.Popen[bytes]] = []
        self.written = 0

    def join(self) -> None:
        output = self._folder / f"member-{next(self._names)}.txt"
        line = [sys.executable, "-m", "tests.support.kafka.group_member", str(self._config), str(output)]
        self.running.append(subprocess.Popen(line, cwd=REPOSITORY, env=environment()))
        self._outputs[self.running[-1].pid] = output

    def kill(self, source: random.Random) -> None:
        """Kill one member at a random moment."""
        process = self.running.pop(source.randrange(len(self.running)))
        process.kill()
        process.wait()

    def leave(self) -> None:
        process = self.running.pop(0)
        wait_until(self._outputs[process.pid].exists)  # earlier, the signal would kill the member
        process.terminate()
        assert process.wait(DEADLINE_S) == 0

    def write(self, count: int) -> None:
        """Write to each partition. Copy closed segments, and delete most of them on the broker."""
        start, self.written = self.written, self.written + count
        for partition in range(PARTITIONS):
            values = [value_of(self._tiered.topic, partition, at) for at in range(start, self.written)]
            self._tiered.produce([Produced(b"k" * 100, value) for value in values], partition=partition)
        self._tiered.tier()
        for partition in range(PARTITIONS):
            ends = [one.end_offset + 1 for (number, _), one in self._tiered.copied.items() if number == partition]
            if ends:
                delete_records(self._tiered.server, self._tiered.topic, max(0, max(ends) - 50), partition=partition)

    def noted(self) -> dict[str, list[Noted]]:
        """Return the lines by member, in order."""
        lines: dict[str, list[Noted]] = {}
        for path in sorted(self._folder.glob("member-*.txt")):
            whole = path.read_text().rpartition("\n")[0]
            rows = [line.split() for line in whole.splitlines()]
            lines[path.name] = [Noted(kind, int(number), int(offset), int(at)) for kind, number, offset, at in rows]
        return lines

    def given(self) -> dict[int, set[int]]:
        offsets: defaultdict[int, set[int]] = defaultdict(set)
        for one in itertools.chain.from_iterable(self.noted().values()):
            if one.kind == "given":
                offsets[one.partition].add(one.offset)
        return offsets

    def wait_for(self, share: float) -> None:
        """Wait until this share of all records was returned."""

        def check() -> None:
            assert all(process.poll() is None for process in self.running)

        wait_until(
            lambda: sum(map(len, self.given().values())) >= share * self.written * PARTITIONS,
            DEADLINE_S, what=lambda: {number: len(offsets) for number, offsets in self.given().items()},
            every_s=0.1, meanwhile=check,
        )  # fmt: skip

    def check(self) -> None:
        """Assert that nothing is lost. Within an assignment, each offset comes once, in order, and after the
        committed ones.
        """
        assert self.given() == {partition: set(range(self.written)) for partition in range(PARTITIONS)}
        noted = self.noted()
        commits = [one for lines in noted.values() for one in lines if one.kind == "committed"]
        assert commits
        for lines in noted.values():
            assigned_at: dict[int, int] = {}
            following: dict[int, int | None] = {}
            for one in lines:
                if one.kind == "assigned":
                    assigned_at[one.partition], following[one.partition] = one.at, None
                elif one.kind == "given":
                    expected = following[one.partition]
                    before = [
                        commit.offset for commit in commits
                        if commit.partition == one.partition and commit.at < assigned_at[one.partition]
                    ]  # fmt: skip
                    assert one.offset >= max(before, default=0), one
                    assert expected in {None, one.offset}, (expected, one)
                    following[one.partition] = one.offset + 1


@contextmanager
def members_of(server: KafkaServer, folder: Path, protocol: str) -> Generator[Members]:
    tiered = TieredTopic(server, folder, partitions=PARTITIONS)
    members = Members(tiered, folder, PROTOCOLS[protocol])
    try:
        yield members
    finally:
        for process in members.running:
            process.kill()
            process.wait()
        tiered.close()


def run(members: Members, kills: int, source: random.Random) -> None:
    """Run three members. Kill members; after each kill, one joins, and sometimes one leaves."""
    members.write(300)
    for _ in range(3):
        members.join()
    for number in range(kills):
        members.wait_for(1 - 150 / members.written)
        members.kill(source)
        members.join()
        if number % 5 == 4:
            members.leave()
            members.join()
        members.write(200)
    members.wait_for(1)
    while members.running:
        members.leave()
    members.check()


def test_a_member_is_killed_and_another_one_takes_over(kafka: KafkaServer, tmp_path: Path) -> None:
    with members_of(kafka, tmp_path, "cooperative") as members:
        run(members, 1, random.Random(1))


@pytest.fixture(scope="module")
def quick_broker() -> Iterator[KafkaServer]:
    """Yield a broker that expires a member of the new protocol after two seconds."""
    with start_kafka(
        **{"group.consumer.session.timeout.ms": "2000", "group.consumer.min.session.timeout.ms": "1000",
           "group.consumer.heartbeat.interval.ms": "300", "group.consumer.min.heartbeat.interval.ms": "100"}
    ) as server:  # fmt: skip
        yield server


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [10, 100])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_are_killed_again_and_again(
    quick_broker: KafkaServer, tmp_path: Path, protocol: str, kills: int
) -> None:
    source = random.Random(f"{protocol} {kills} {os.environ.get('SEED', '')}")
    with members_of(quick_broker, tmp_path, protocol) as members:
        run(members, kills, source)
