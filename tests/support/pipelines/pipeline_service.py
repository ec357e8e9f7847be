"""``tieredstore pipeline run`` as a process, with its own Spark session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

from tests.support.spark.spark_session import CONF, JVM, environment
from tests.support.waiting import wait_until

WITHIN_S = 300.0
EXECUTORS: Mapping[str, str] = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JVM["spark.driver.extraJavaOptions"],
}
"""Spark settings for two executors as processes of this machine."""


class PipelineService:
    """Running service; ``process`` leads the session of all its child processes."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def asked(self, page: str) -> str | None:
        """Return the service's HTTP answer for a page; None if it does not listen, or if the status is an error."""
        status, text = self._answer(page)
        return text if status == HTTPStatus.OK else None

    @property
    def address(self) -> str | None:
        """Host and port of the service. If a folder had several services, those of the last one."""
        listens = re.findall(r"http://(127\.0\.0\.1:\d+)/readyz", self.said())
        return listens[-1] if listens else None

    def reasons(self) -> str:
        """Return why the service is not ready; empty if it is ready, or does not listen yet."""
        status, text = self._answer("readyz")
        return text if status == HTTPStatus.SERVICE_UNAVAILABLE else ""

    def _answer(self, page: str) -> tuple[int | None, str]:
        address = self.address
        if address is None:
            return None, ""
        try:
            with urllib.request.urlopen(f"http://{address}/{page}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return None, ""

    def said(self) -> str:
        """Return the service's whole log."""
        return self._log.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; assert that the service does not end before."""

        def check() -> None:
            assert self.process.poll() is None, self.said()[-3000:]

        wait_until(condition, WITHIN_S, what=lambda: self.said()[-3000:], every_s=0.2, meanwhile=check)

    def wait_until_ready(self) -> None:
        """Wait until it reports ready."""
        self.wait_until(lambda: self.asked("readyz") is not None)

    def ended(self) -> int:
        """Wait for the service's end; return its exit code."""
        return self.process.wait(WITHIN_S)

    def stop(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """Stop the service as a service manager does. Assert that it ends well, after its current batch."""
        self.process.send_signal(signum)
        assert self.ended() == 0, self.said()[-3000:]


@contextmanager
def pipeline_service(
    folder: Path, *files: Path, conf: Mapping[str, str] | None = None, drain_s: int = 120
) -> Generator[PipelineService]:
    """Run the service on one thread, or as ``conf`` says; kill all its processes at the end of the block."""
    settings = {**CONF, **JVM, "spark.master": "local[1]", **(conf or {})}
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    env = {**os.environ, **environment(folder), "SPARK_CONF_DIR": str(folder)}
    command = [sys.executable, "-m", "tieredstore.cli", "pipeline", "run", *map(str, files)]
    with (
        (folder / "service.log").open("ab") as log,
        subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--drain", f"{drain_s}s"], stdout=log, stderr=log, env=env,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield PipelineService(process, folder / "service.log")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
