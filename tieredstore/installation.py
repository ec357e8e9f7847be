"""How this package was installed: what attaches to it, and the command that installs more of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_NAME: Final = "tieredstore"


def install_command(extra: str) -> str:
    """The command that adds ``extra`` to an installation which was made like this one.

    ``pip install '.[s3]'`` in the clone that it came from, ``pip install 'tieredstore[s3]'`` where an index had it.
    """
    return f"pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    from importlib import metadata  # noqa: PLC0415  fifty modules that few processes need

    try:
        # What pip writes down beside a package that came from no index (PEP 610).
        recorded = metadata.distribution(_NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return _of_folder(Path(__file__).resolve().parent.parent, extra)
    if recorded is None:
        return shlex.quote(f"{_NAME}[{extra}]")
    origin: Mapping[str, Any] = json.loads(recorded)
    url: str = origin["url"]
    if "dir_info" in origin:
        folder = Path(unquote(urlsplit(url).path))
        option = "-e " if origin["dir_info"].get("editable") else ""
        return option + _of_folder(folder, extra)
    url = _shown(url)
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return shlex.quote(f"{_NAME}[{extra}] @ {url}")


def _of_folder(folder: Path, extra: str) -> str:
    # As one types it where one stands in the clone.
    place = "." if folder == Path.cwd() else str(folder)
    return shlex.quote(f"{place}[{extra}]")


def _shown(url: str) -> str:
    """The URL without a password or a signature; a user like ``git`` belongs to the address."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{'…' if ':' in user else user}{at}{host}"
    return parts._replace(netloc=netloc, query="…" if parts.query else "").geturl()


def load_attached(points: Iterable[EntryPoint]) -> list[Any]:
    """Load what entry points name, in the order of their names.

    A wing whose folder is absent is skipped; any other failure to import is raised as it is.
    """
    parts: list[Any] = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            parts.append(point.load())
        except ModuleNotFoundError as error:
            if not error.name or not f"{point.module}.".startswith(f"{error.name}."):
                raise
    return parts
