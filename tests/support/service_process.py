"""Service in a separate process, with line-by-line output, or within the test's process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

from tests.support.paths import COVERAGE_VARIABLE, REPOSITORY
from tests.support.waiting import END_S, join
from tieredstore.process.service import Service

_BEGIN = """
    import logging, os, signal, sys, threading, time
    from tieredstore.errors import AccessDeniedError, ConfigError
    from tieredstore.process.health import Health
    from tieredstore.process.service import Service

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    def say(text):
        os.write(1, (text + chr(10)).encode())
    def loop(stop):
        say("working")
        while not stop.wait(60):
            pass
        say("drained")
"""


class Running:
    """Process whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.came = threading.Condition()
        self.reader = threading.Thread(target=self._read, name="the reader of a process's output", daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.came:
                self.lines.append(line.rstrip())
                self.came.notify_all()

    def line(self, expression: str, times: int = 1) -> str:
        """Wait until ``times`` lines match, then return the first of them."""

        def matching() -> list[str]:
            return [line for line in self.lines if re.search(expression, line)]

        with self.came:
            assert self.came.wait_for(lambda: len(matching()) >= times, 120), self.lines
        return matching()[0]

    def port(self) -> int:
        return int(self.line(r"http://[^ ]*/readyz").split(":")[3].split("/")[0])

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def tell(self) -> None:
        """Send the process an empty line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def code(self) -> int:
        ended = self.process.wait(120)
        join(self.reader)
        return ended


@contextmanager
def running(code: str) -> Generator[Running, None, None]:
    measured = "import tests.support.measured_process" if COVERAGE_VARIABLE in os.environ else ""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", measured + textwrap.dedent(_BEGIN) + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True,
    )
    run = Running(process)
    try:
        yield run
    finally:
        process.kill()
        process.wait(END_S)
        join(run.reader)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def within(service: Service) -> Generator[Service]:
    """Run the service's threads during the block, then stop them. If a thread has failed, raise its error."""
    try:
        service.start()
        yield service
    finally:
        service.stop()
        service.join(service.stopping.drain_s)
        service._bell.close()  # pyright: ignore[reportPrivateUsage]
    if service.failure is not None:
        raise service.failure


def fetched(port: int, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
