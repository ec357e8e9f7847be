"""The table of the ways as a document has it: ``python -m tests.support.faulty_server.table FILE`` writes it.

FILE is a document with a line ``<!-- ways -->`` and a line ``<!-- end of ways -->``; what stands between is replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.support.faulty_server.connection_ways import EVERY_STEP
from tests.support.faulty_server.service import Cloud
from tests.support.faulty_server.way import Way
from tests.support.faulty_server.ways import WAYS

BEGIN: Final = "<!-- ways -->"
END: Final = "<!-- end of ways -->"


def rows() -> str:
    """The table, in Markdown."""
    head = ["| way | of | in answer to | a call that needs the answer |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, WAYS)])


def with_table(text: str) -> str:
    """``text`` of a document, its table as the code has it."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{rows()}\n{END}{after}"


def _row(way: Way) -> str:
    clouds = "all" if set(way.clouds) == set(Cloud) else ", ".join(cloud.value for cloud in way.clouds)
    steps = "anything" if set(way.steps) == set(EVERY_STEP) else ", ".join(step.value for step in way.steps)
    return f"| {way.name} | {clouds} | {steps} | {way.must.value} |"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_table(document.read_text(encoding="utf-8")), encoding="utf-8")
