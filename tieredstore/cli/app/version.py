"""``tieredstore version``. Every command has a module, which the table imports when it is named."""

from __future__ import annotations

import sys
from typing import Final

from tieredstore import __version__
from tieredstore.cli.app.arguments import Json
from tieredstore.cli.app.entry import version_text
from tieredstore.cli.terminal.output import print_json

JSON_VERSION: Final = 1
"""The version of docs/json.md: of the names in the JSON that commands print, and of their meanings."""


def version(as_json: Json = False) -> None:
    """Show the version; with --json also that of the JSON which commands print.

    Example: tieredstore version
    """
    if as_json:
        print_json({"version": __version__, "json_version": JSON_VERSION})
    else:
        sys.stdout.write(version_text() + "\n")
