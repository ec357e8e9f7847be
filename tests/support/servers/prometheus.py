"""A Prometheus server of Debian's package."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers.debian_package import debian_package
from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, free_port, running


def promtool() -> Path:
    """Return Prometheus's own checker of configuration files."""
    return debian_package("prometheus") / "usr" / "bin" / "promtool"


@dataclass(frozen=True)
class Prometheus:
    """Running server."""

    url: str

    def query(self, expression: str) -> list[Any]:
        """Return the series that a query finds now; raise HTTPError if the server refuses it."""
        series: list[Any] = self._get("query", query=expression)["result"]
        return series

    def targets(self) -> dict[str, str]:
        """Return the health of each scrape target, by its job."""
        return {each["labels"]["job"]: each["health"] for each in self._get("targets")["activeTargets"]}

    def rules(self) -> int:
        """Return the number of alert rules that the server has loaded."""
        return sum(len(group["rules"]) for group in self._get("rules")["groups"])

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]


@contextmanager
def start_prometheus(configuration: Mapping[str, object]) -> Generator[Prometheus]:
    """Run a fresh server with this configuration (JSON is YAML as well); kill it at the end of the block."""
    ports: list[int] = []

    def prepare(folder: Path) -> Launch:
        ports.append(free_port())
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        command: list[str | Path] = [
            debian_package("prometheus") / "usr" / "bin" / "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{ports[-1]}",
        ]
        return Launch(command, lambda: answers(ports[-1], "/-/ready"), {})

    with running("prometheus", prepare):
        yield Prometheus(f"http://127.0.0.1:{ports[-1]}")
