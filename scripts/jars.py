"""The jars of the tests' servers, locked by coordinates and SHA-256, so that installing them needs no Maven.

    python -m scripts.jars        rewrites the locks from the poms (this needs Maven)

A jar comes from the cache, else from Maven's local repository, else from a repository on the network. The variable
TIEREDSTORE_MAVEN_REPOSITORY names this repository; by default it is that of the package maven-artifact. A jar of any
origin is accepted only if its SHA-256 matches the lock.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.caches import cache_folder, place
from scripts.environment import ROOT
from scripts.steps import SetupError, run_main

_SERVERS: Final = ROOT / "tests" / "support" / "servers"
LOCKS: Final = {name: _SERVERS / f"{name}_jars" / "jars.lock" for name in ("kafka", "zookeeper", "kafka39")}
"""The lock file of each server, next to the server's pom."""

_HEADER: Final = "# Written by `make lock` out of the pom beside it: group:artifact:version[:classifier] and SHA-256.\n"
_TIMEOUT_S: Final = 60.0
_TRIES: Final = 4
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Jar:
    """A jar, as one line of the lock names it."""

    coordinates: str
    sha256: str

    @property
    def path(self) -> str:
        """The jar's path below a Maven repository's root."""
        group, artifact, version, *_ = self.coordinates.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"

    @property
    def file_name(self) -> str:
        """``artifact-version[-classifier].jar``."""
        return "-".join(self.coordinates.split(":")[1:]) + ".jar"


def read_lock(text: str) -> list[Jar]:
    """Return the jars of a lock. For an invalid line, raise SetupError, which names the line."""
    jars: list[Jar] = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            if re.fullmatch(r"[\w.-]+(:[\w.-]+){2,3} [0-9a-f]{64}", line) is None:
                raise SetupError(f"'{line}' is no line of a lock of jars; write it anew: make lock")
            jars.append(Jar(*line.split()))
    return jars


def install(jars: Sequence[Jar], folder: Path, tell: Callable[[str], None]) -> None:
    """Check ``jars`` and put them into ``folder``."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        for number, (jar, source) in enumerate(zip(jars, pool.map(_fetched, jars), strict=True), 1):
            place(source, folder / jar.file_name)
            tell(f"{number} of {len(jars)} jars")


def check(jar: Jar, sha256: str, origin: str) -> None:
    """Raise SetupError if the bytes from ``origin`` do not match the lock."""
    if sha256 != jar.sha256:
        raise SetupError(
            f"{jar.coordinates} from {origin} is refused: its SHA-256 is {sha256} where jars.lock has {jar.sha256}; "
            "try another repository (TIEREDSTORE_MAVEN_REPOSITORY), and trust neither until you know why"
        )


def _fetched(jar: Jar) -> Path:
    """Return the jar's path in the cache or in Maven's local repository. If the jar is in neither, download it."""
    cached = cache_folder() / "jars" / f"{jar.sha256}.jar"
    if cached.exists() and _sha256(cached) == jar.sha256:
        return cached
    local = Path.home() / ".m2" / "repository" / jar.path
    if local.exists() and _sha256(local) == jar.sha256:
        return local
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Download under a unique name, then rename, so that other processes never see half a jar.
    with tempfile.NamedTemporaryFile(dir=cached.parent, suffix=".part", delete=False) as file:
        part = Path(file.name)
    try:
        base = repository()
        _download(f"{base}/{jar.path}", part)
        check(jar, _sha256(part), base)
        part.rename(cached)
    finally:
        part.unlink(missing_ok=True)
    return cached


def repository() -> str:
    """Return the address of the Maven repository, without a trailing slash."""
    own = os.environ.get("TIEREDSTORE_MAVEN_REPOSITORY")
    if own is None:
        # Import the package here, because only downloads need it, and without types, because it has none.
        downloader = importlib.import_module("maven_artifact.downloader")
        own = str(inspect.signature(downloader.Downloader).parameters["base"].default)
    return own.rstrip("/")


def _download(address: str, target: Path) -> None:
    import requests  # noqa: PLC0415 - only downloads need it
    from requests.adapters import HTTPAdapter  # noqa: PLC0415
    from urllib3.util.retry import Retry  # noqa: PLC0415

    retry = Retry(_TRIES, backoff_factor=1, status_forcelist=(429, 500, 502, 503, 504))
    try:
        with requests.Session() as session:
            session.mount("https://", HTTPAdapter(max_retries=retry))
            with session.get(address, timeout=_TIMEOUT_S, stream=True) as answer, target.open("wb") as file:
                answer.raise_for_status()
                for block in answer.iter_content(_BLOCK):
                    file.write(block)
    except requests.RequestException as error:
        raise SetupError(
            f"{address} cannot be fetched ({error}); name another Maven repository: TIEREDSTORE_MAVEN_REPOSITORY"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Write the locks from Maven's resolution of each pom."""
    for lock in LOCKS.values():
        _write(lock)


def _write(lock: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder, "jars.txt")
        subprocess.run(
            [
                *("mvn", "-B", "-q", "-f", str(lock.with_name("pom.xml")), "dependency:list", "-DincludeScope=runtime"),
                *("-DoutputAbsoluteArtifactFilename=true", f"-DoutputFile={listing}"),
            ],
            check=True,
        )
        lines = sorted(_locked(line) for line in listing.read_text().splitlines() if ":jar:" in line)
    lock.write_text(_HEADER + "".join(lines))


def _locked(line: str) -> str:
    """Convert Maven's ``group:artifact:jar:[classifier:]version:scope:/path`` to a line of the lock."""
    words, _, path = re.sub(r"\x1b\[[0-9;]*m", "", line).strip().partition(":/")
    group, artifact, _, *classifier, version, _ = words.split(":")
    return f"{':'.join((group, artifact, version, *classifier))} {_sha256(Path('/' + path.split(' -- ')[0]))}\n"


if __name__ == "__main__":
    run_main(main)
