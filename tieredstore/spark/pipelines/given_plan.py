"""All windows of a run that ends, as an option of their source: planned by the driver, unpacked by tasks alone.

The processes that Spark starts for the source hand it on as it is, and need nothing of pipelines for that.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

_MOST_CHARACTERS: Final = 340 << 10
"""Of a plan, which goes as an option through the JVM."""


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """Where the one batch ends, as an offset of the stream, and its packed tasks; no tasks where nothing is due."""

    end: Json
    tasks: tuple[bytes, ...]

    def as_option(self) -> str | None:
        """The value of the option; None for a plan that is too large to go that way."""
        text = json.dumps({"end": self.end, "tasks": [base64.b64encode(task).decode() for task in self.tasks]})
        return text if len(text) <= _MOST_CHARACTERS else None

    @staticmethod
    def of_option(text: str) -> GivenPlan:
        """What :meth:`as_option` wrote."""
        plan = json.loads(text)
        return GivenPlan(plan["end"], tuple(base64.b64decode(task) for task in plan["tasks"]))
