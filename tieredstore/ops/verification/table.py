"""The table of the kinds of findings, for ``docs/how-to/verify.md``.

python -m tieredstore.ops.verification.table docs/how-to/verify.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tieredstore.ops.verification.findings import COPY_AGAIN, FindingKind

BEGIN: Final = "<!-- kinds -->\n"
END: Final = "<!-- end of kinds -->\n"


def table_of_kinds() -> str:
    """Return the legend of the advice that most kinds share, and a row for each kind."""
    rows = [
        f"| `{kind.value}` | {kind.facts.severity.value} | {kind.facts.meaning} |"
        f" {kind.facts.advice.replace(COPY_AGAIN, '*copy again*')} |"
        for kind in FindingKind
    ]
    head = ["| kind | severity | meaning for readers | advice |", "|---|---|---|---|"]
    return "\n".join([f"*Copy again* means: {COPY_AGAIN}.", "", *head, *rows, ""])


def main() -> None:
    """Write the table between its marks."""
    path = Path(sys.argv[1])
    head, _, rest = path.read_text().partition(BEGIN)
    path.write_text(head + BEGIN + table_of_kinds() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
