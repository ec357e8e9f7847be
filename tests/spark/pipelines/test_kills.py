"""kill -9 of executors, workers and drivers under pipelines on a cluster of this machine, while a producer writes.

All the time, by plain listing: no offset twice, none missing of what is published, none above what is committed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.connections import processes_of
from tests.support.pipeline_kills import COMMITTED_S, Killed, Writer
from tests.support.servers.kafka import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON = "pyspark.daemon"


@pytest.fixture
def killed(kafka: KafkaServer, tmp_path: Path) -> Iterator[Killed]:
    with closing(Killed(kafka, tmp_path)) as killed:
        yield killed


def test_both_groups_keep_each_record_once_whatever_is_killed(killed: Killed) -> None:
    check_kills(killed, ["executor", "worker", "driver"], moments=random.Random(18))


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_both_groups_keep_each_record_once_after_many_kills(killed: Killed) -> None:
    moments = random.Random()
    kinds = ["executor", "executor", "worker", "driver"]
    check_kills(killed, [moments.choice(kinds) for _ in range(200)], moments=moments)
    # One that was stopped in its midst, and wakes when another has taken over, writes nothing more.
    with killed.service() as process:
        killed.wait_for_commits(process)
        os.killpg(process.pid, signal.SIGSTOP)
        killed.finish()
        os.killpg(process.pid, signal.SIGCONT)
        assert process.wait(COMMITTED_S) == 5, killed.said()
    killed.check()
    with killed.service() as process:
        with Writer(killed.topic):
            killed.wait_for_commits(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(COMMITTED_S) == 0, killed.said()
    killed.check_end()


def check_kills(killed: Killed, kinds: list[str], *, moments: random.Random) -> None:
    rest = list(kinds)
    with Writer(killed.topic) as writer:
        while rest:
            with killed.service() as process:
                while rest:
                    killed.wait_for_commits(process)
                    time.sleep(moments.uniform(0, 1))
                    kind = rest.pop(0)
                    kill(process, kind)
                    killed.check()
                    writer.tier()
                    if kind == "driver":
                        break
    killed.finish()
    killed.check_end(writer.committed)


def kill(process: subprocess.Popen[bytes], kind: str) -> None:
    if kind == "driver":
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        return
    deadline = time.monotonic() + COMMITTED_S
    while not (chosen := _processes(process.pid, kind)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(chosen[-1], signal.SIGKILL)


def _processes(session: int, kind: str) -> list[int]:
    """The executors, or what their Python workers are children of; the driver has such of its own, for its planner."""
    executors = processes_of(session, named=EXECUTOR)
    if kind == "executor":
        return executors
    return [daemon for daemon in processes_of(session, named=DAEMON) if _parent_of(daemon) in executors]


def _parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return -1
