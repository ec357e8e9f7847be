"""The queries of our dashboards and alert rules."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.paths import REPOSITORY

YAML: Final[Any] = importlib.import_module("yaml")
"""PyYAML has no types."""

DASHBOARDS: Final = sorted((REPOSITORY / "examples" / "helm" / "dashboards").glob("*.json"))
RULES: Final = sorted((REPOSITORY / "examples").glob("*/alerts.yml"))
_VARIABLES: Final = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}


def document_of(file: Path) -> Any:
    """Return a file of JSON or YAML."""
    text = file.read_text()
    return json.loads(text) if file.suffix == ".json" else YAML.safe_load(text)


def queries_of(part: Any) -> Iterator[str]:
    """Yield all queries of a document, with Grafana's variables replaced."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "expr":
                yield re.sub(r"\$\w+", lambda found: _VARIABLES[found[0]], value)
            else:
                yield from queries_of(value)
    elif isinstance(part, list):
        for value in part:
            yield from queries_of(value)


def metrics_of(query: str) -> set[str]:
    """Return the names of metrics in a query."""
    return set(re.findall(r"\b(?:tieredstore_\w+|up\b)", re.sub(r"\{[^}]*\}", "", query)))
