"""How this package was installed: its plug-ins, and the command that installs an extra."""

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
    """Return the command that adds ``extra`` to this kind of installation.

    ``pip install '.[s3]'`` in the clone that it came from, ``pip install 'tieredstore[s3]'`` from an index.
    """
    return f"pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    from importlib import metadata  # noqa: PLC0415  fifty modules that few processes need

    try:
        # pip's record of a package that came from no index (PEP 610).
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
    # As typed inside the clone.
    place = "." if folder == Path.cwd() else str(folder)
    return shlex.quote(f"{place}[{extra}]")


def _shown(url: str) -> str:
    """Return the URL without a password or a signature; a user like ``git`` belongs to the address."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{'…' if ':' in user else user}{at}{host}"
    return parts._replace(netloc=netloc, query="…" if parts.query else "").geturl()


def load_attached(points: Iterable[EntryPoint]) -> list[Any]:
    """Load the objects of entry points, in the order of their names.

    A wing whose folder is absent is skipped; any other import error is raised unchanged.
    """
    parts: list[Any] = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            parts.append(point.load())
        except ModuleNotFoundError as error:
            if not error.name or not f"{point.module}.".startswith(f"{error.name}."):
                raise
    return parts
