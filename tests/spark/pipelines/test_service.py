"""The service's own process: what it answers, and the codes that it ends with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.spark_pipelines import Kept
from tests.support.spark_session import CONF, JVM, environment
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.inspection import commit_log_of

pytestmark = [pytest.mark.slow, pytest.mark.soak]

WITHIN_S = 300.0


class Running:
    """A service over a bucket in a folder."""

    def __init__(self, kept: Kept, process: subprocess.Popen[bytes], log: Path) -> None:
        self.kept, self.process, self._log = kept, process, log

    def asked(self, page: str) -> str | None:
        """What it answers, once it listens; None as long as it says no."""
        listens = re.search(r"(http://127\.0\.0\.1:\d+)/readyz", self.said())
        if listens is None:
            return None
        try:
            with urllib.request.urlopen(f"{listens[1]}/{page}", timeout=30) as answer:
                text: str = answer.read().decode()
                return text
        except (urllib.error.URLError, OSError):
            return None

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        by = time.monotonic() + WITHIN_S
        while self.asked("readyz") is None:
            assert self.process.poll() is None, self.said()[-3000:]
            assert time.monotonic() < by, self.said()[-3000:]
            time.sleep(0.3)


@contextmanager
def running(folder: Path, **changes: str) -> Generator[Running]:
    kept = Kept(folder)
    kept.write(50)
    file = kept.file(**changes)
    lines = "".join(f"{name} {value}\n" for name, value in {**CONF, **JVM, "spark.master": "local[1]"}.items())
    (folder / "spark-defaults.conf").write_text(lines)
    env = {**os.environ, **environment(folder), "SPARK_CONF_DIR": str(folder)}
    command = [sys.executable, "-m", "tieredstore.cli", "pipeline", "run", str(file)]
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--drain", "120"], stdout=log, stderr=log, env=env,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield Running(kept, process, folder / "log")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kept.close()


def test_it_answers_and_a_signal_lets_its_batch_end(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        service.wait_until_ready()
        by = time.monotonic() + WITHIN_S
        while 'tieredstore_pipeline_records_total{generation="1",pipeline="kept"} 100.0' not in (
            service.asked("metrics") or ""
        ):
            assert time.monotonic() < by, service.asked("metrics")
            time.sleep(0.3)
        metrics = service.asked("metrics") or ""
        assert 'tieredstore_pipeline_up{generation="1",pipeline="kept"} 1.0' in metrics
        assert service.asked("healthz") is not None
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(WITHIN_S) == 0, service.said()[-3000:]
        assert sum(map(len, service.kept.offsets().values())) == 100


def test_a_broker_that_stays_away_ends_it_with_75(tmp_path: Path) -> None:
    client = {"kafka__bootstrap__servers": "127.0.0.1:9", "kafka__socket__connection__setup__timeout__ms": "2000"}
    with running(tmp_path, outage__seconds="1", **client) as service:
        assert service.process.wait(WITHIN_S) == 75, service.said()[-3000:]
        assert service.asked("readyz") is None


def test_another_driver_ends_it_with_5(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        service.wait_until_ready()
        log = commit_log_of(load_pipeline(tmp_path / "kept.properties"), service.kept.store)
        log.read()
        log.append("begin", "another")
        service.kept.write(50)
        assert service.process.wait(WITHIN_S) == 5, service.said()[-3000:]
