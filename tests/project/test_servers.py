"""The servers of the tests themselves: none survives its test run, and one that fails says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.servers import process
from tests.support.servers.minio import start_minio
from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, ServerFailedError, installed_server, running
from tests.support.servers.zookeeper import ZooKeeperServer, zookeeper_client

pytestmark = pytest.mark.server

HOLDER = """
import time
from tests.support.servers.minio import start_minio
with start_minio() as server:
    print(server.endpoint_url, flush=True)
    time.sleep(60)
"""


def test_a_server_dies_with_the_test_run_that_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        # What a killed run cannot remove lies where pytest removes it.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    with holder.stdout:
        port = int(holder.stdout.readline().rpartition(":")[2])
    assert answers(port, "/minio/health/live")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    end = time.monotonic() + 60
    while answers(port, "/minio/health/live"):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_killed_server_answers_no_more() -> None:
    with start_minio() as server:
        port = int(server.endpoint_url.rpartition(":")[2])
        assert answers(port, "/minio/health/live")
        server.kill()
        server.kill()
        assert not answers(port, "/minio/health/live")


def test_a_server_that_ends_at_once_is_tried_again_and_then_shown() -> None:
    starts: list[Path] = []

    def prepare(folder: Path) -> Launch:
        starts.append(folder)
        return Launch(["/bin/sh", "-c", "echo this is why; exit 3"], lambda: False, {})

    with pytest.raises(ServerFailedError, match=r"(?s)code 3.*this is why"), running("broken", prepare):
        pytest.fail("it is not running")
    assert len(starts) == process.STARTS
    assert not starts[0].exists()


def test_a_server_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "READY_TIMEOUT_S", 0.2)

    def prepare(folder: Path) -> Launch:
        return Launch(["/bin/sleep", "60"], lambda: False, {})

    with pytest.raises(ServerFailedError, match="not ready"), running("slow", prepare):
        pytest.fail("it is not running")


def test_a_part_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIEREDSTORE_SERVERS", str(tmp_path))
    with pytest.raises(ServerFailedError, match="make servers"):
        installed_server("minio")


@pytest.mark.broker
def test_each_who_asks_zookeeper_has_a_tree_of_its_own(zookeeper: ZooKeeperServer) -> None:
    with zookeeper_client(zookeeper.chroot()) as one, zookeeper_client(zookeeper.chroot()) as other:
        one.create("/told", b"to one")
        assert one.get("/told")[0] == b"to one"
        assert other.exists("/told") is None
