"""The table of the kinds of findings, for ``docs/verify.md``.

python -m tieredstore.ops.verification.table docs/verify.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tieredstore.ops.verification.findings import FindingKind

BEGIN: Final = "<!-- kinds -->\n"
END: Final = "<!-- end of kinds -->\n"


def table_of_kinds() -> str:
    """A row for each kind."""
    rows = [
        f"| `{kind.value}` | {kind.facts.severity.value} | {kind.facts.meaning} | {kind.facts.advice} |"
        for kind in FindingKind
    ]
    return "\n".join(["| kind | how bad | what it means for readers | what to do |", "|---|---|---|---|", *rows, ""])


def main() -> None:
    """Write the table between its marks."""
    path = Path(sys.argv[1])
    head, _, rest = path.read_text().partition(BEGIN)
    path.write_text(head + BEGIN + table_of_kinds() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
