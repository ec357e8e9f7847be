"""Standalone Spark cluster on this machine, with workers added one by one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pyspark

from tests.support.servers.process import free_port

_DEPLOY: Final = "org.apache.spark.deploy"
_ENDED_S: Final = 60


class SparkCluster:
    """Master and its workers, with one core each; ``url`` is for ``spark.master``."""

    def __init__(self, folder: Path, environment: Mapping[str, str], log: IO[bytes]) -> None:
        self._folder, self._log = folder, log
        self._environment = {**os.environ, **environment, "SPARK_DAEMON_MEMORY": "256m"}
        self._environment.pop("SPARK_LOCAL_IP", None)
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(port))

    def add_worker(self, host: str) -> None:
        """Add a worker at a loopback address. Spark takes it for a host, so applications get an executor there."""
        work = str(self._folder / host)
        self._start("worker.Worker", "--host", host, "--cores", "1", "--memory", "600m", "--work-dir", work, self.url)

    def _start(self, daemon: str, *arguments: str) -> None:
        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        command = [program, f"{_DEPLOY}.{daemon}", "--webui-port", "0", *arguments]
        self._processes.append(subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log))

    def close(self) -> None:
        """End master and workers, with all their child processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(_ENDED_S)


@contextmanager
def spark_cluster(folder: Path, environment: Mapping[str, str] | None = None) -> Generator[SparkCluster]:
    """Yield a cluster without workers, whose processes have this environment."""
    with (folder / "cluster.log").open("wb") as log:
        cluster = SparkCluster(folder, environment or {}, log)
        try:
            yield cluster
        finally:
            cluster.close()
