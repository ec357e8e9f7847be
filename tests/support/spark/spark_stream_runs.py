"""Streaming jobs in separate processes, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.spark.spark_session import environment


def run_killed(job: Path, *, after: float) -> bool:
    """Kill the job when its query has run for this many seconds; return True if it was still running."""
    with started(job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"starting\n"
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(60) == -signal.SIGKILL


@contextmanager
def started(
    job: Path, module: str = "tests.support.spark.spark_stream_job"
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run the job in a process group that is killed after the block. Its log is next to the job file."""
    command = [sys.executable, "-m", module, str(job)]
    env = {**os.environ, **environment(job.parent)}
    with (
        job.with_suffix(".err").open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            _wait_for_group(process.pid)


def _wait_for_group(group: int) -> None:
    """Wait for the JVM, which ends a moment after its driver."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
