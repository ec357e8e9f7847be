"""Finds this installation's plug-ins, and the command that installs an extra."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_NAME: Final = "tieredstore"

PACKAGES: Final = {
    "azure": "azure", "boto3": "s3", "botocore": "s3", "confluent_kafka": "kafka", "cramjam": "arrow",
    "diskcache": "cache", "duckdb": "query", "fastavro": "avro", "google": "gcs", "hvac": "vault", "isal": "arrow",
    "kazoo": "uploader", "lz4": "arrow", "matplotlib": "plot", "pandas": "pandas", "polars": "polars",
    "pyarrow": "arrow", "pyiceberg": "iceberg", "pyspark": "spark", "requests": "avro", "socks": "s3",
    "thriftpy2": "thrift", "watchdog": "uploader",
}  # fmt: skip
"""The extra that installs each optional package, by the package's import name."""


@dataclass(frozen=True, slots=True)
class Extra:
    """A context manager for imports that need the packages of an extra (optional dependencies).

    If the block imports a missing package of the extra, raise ConfigError. The message names the package and the
    command that adds the extra. If another module is missing, the installation is faulty, so its ModuleNotFoundError
    stays unchanged. Without ``name``, use the extra of the missing package.
    """

    purpose: str
    name: str = ""

    def missing_error(self, error: ModuleNotFoundError) -> ConfigError | None:
        """Return the ConfigError for a missing module; None if the module is not from an optional package."""
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            return None
        return ConfigError(f"{self.purpose} needs {error.name}: {install_command(self.name or PACKAGES[package])}")

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ModuleNotFoundError) and (told := self.missing_error(error)) is not None:
            raise told from error


def install_command(extra: str) -> str:
    """Return the command that adds ``extra`` to this installation, for the tool that installed it (uv, pipx or pip).

    pipx and ``uv tool`` recreate the environment, so their commands repeat the present extras: ``uv tool install
    'tieredstore[query,s3]'``.
    """
    import sys  # noqa: PLC0415  needed only for an error message

    prefix, (origin, installer) = Path(sys.prefix), _origin()
    if (record := prefix / "pipx_metadata.json").exists():
        present = json.loads(record.read_text())["main_package"]["package_or_url"] or ""
        return f"pipx install --force {_requirement(origin, {*_extras_in(present), extra})}"
    if (record := prefix / "uv-receipt.toml").exists():
        extras, others = _receipt(record)
        return " ".join([f"uv tool install {_requirement(origin, {*extras, extra})}", *others])
    if installer != "uv":
        return f"{_pip(Path(sys.executable))} install {_requirement(origin, {extra})}"
    if prefix.parent.name.startswith(_ONE_RUN):
        return f"uvx --with {_requirement(origin, {extra})} {_NAME}"
    if not (prefix.parent / "uv.lock").exists():
        return f"uv pip install {_requirement(origin, {extra})}"
    if _folder_of(origin) == prefix.parent:
        return f"uv sync --inexact --extra {extra}"
    return f"uv add {_requirement(origin, {extra})}"


_ONE_RUN: Final = ("archive-v", "builds-v", "environments-v")
"""Prefixes of the folders in uv's cache that hold the environment of a single ``uvx`` run."""


def _pip(python: Path) -> str:
    """Return pip's command. Include its path if the environment is not active."""
    found = shutil.which("pip")
    return "pip" if found and Path(found).parent == python.parent else f"{shlex.quote(str(python))} -m pip"


def _origin() -> tuple[Mapping[str, Any], str]:
    """Return the PEP 610 record of the package, and the name of the installer. The record is empty unless the package
    was installed from a URL or folder.
    """
    from importlib import metadata  # noqa: PLC0415  loads fifty modules, rarely needed

    try:
        installed = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        return {"url": Path(__file__).resolve().parent.parent.as_uri(), "dir_info": {}}, ""
    return json.loads(installed.read_text("direct_url.json") or "{}"), (installed.read_text("INSTALLER") or "").strip()


def _extras_in(requirement: str) -> list[str]:
    listed = re.search(r"\[([\w,\s-]*)\]", requirement)
    return [extra.strip() for extra in listed[1].split(",")] if listed else []


def _receipt(path: Path) -> tuple[list[str], list[str]]:
    """Return the extras in uv's record of an installed tool, and a ``--with`` option for each additional package."""
    import tomllib  # noqa: PLC0415  needed only here

    required = tomllib.loads(path.read_text())["tool"]["requirements"]
    extras = [extra for one in required if one["name"] == _NAME for extra in one.get("extras", ())]
    return extras, [f"--with {one['name']}" for one in required if one["name"] != _NAME]


def _folder_of(origin: Mapping[str, Any]) -> Path | None:
    url: str = origin.get("url", "")
    return Path(unquote(urlsplit(url).path)) if "dir_info" in origin else None


def _requirement(origin: Mapping[str, Any], extras: set[str]) -> str:
    listed = f"[{','.join(sorted(extras))}]"
    folder = _folder_of(origin)
    if folder is not None:
        # In the repository's clone, show the folder as a user types it: ``.``.
        place = "." if folder == Path.cwd() else str(folder)
        return ("-e " if origin["dir_info"].get("editable") else "") + shlex.quote(place + listed)
    if not origin:
        return shlex.quote(_NAME + listed)
    url = _hide_secrets(origin["url"])
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return shlex.quote(f"{_NAME}{listed} @ {url}")


def _hide_secrets(url: str) -> str:
    """Return the URL without a password or a signature. Keep a user name like ``git``, which belongs to the address."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{'…' if ':' in user else user}{at}{host}"
    return parts._replace(netloc=netloc, query="…" if parts.query else "").geturl()


def attached_parts(group: str) -> list[Any]:
    """Return the objects that optional parts register in a group of entry points; see :func:`load_attached`."""
    from importlib.metadata import entry_points  # noqa: PLC0415  takes a tenth of a second

    return load_attached(entry_points(group=group))


def load_attached(points: Iterable[EntryPoint]) -> list[Any]:
    """Load the objects of entry points, in the order of their names.

    An optional package whose folder is absent is skipped; any other import error is raised unchanged.
    """
    parts: list[Any] = []
    for point in sorted(points, key=lambda point: point.name):
        try:
            parts.append(point.load())
        except ModuleNotFoundError as error:
            if not error.name or not f"{point.module}.".startswith(f"{error.name}."):
                raise
    return parts
