"""The broker's jars: only files with the lock's SHA-256 are accepted, from any source."""

from __future__ import annotations

import functools
import hashlib
import http.server
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import jars
from scripts.jars import Jar, install, read_lock
from scripts.steps import SetupError
from tests.support.network.loopback_server import LoopbackServer, RunningServer

CONTENT = b"the bytes of a jar"
JAR = Jar("org.example:thing:1.0", hashlib.sha256(CONTENT).hexdigest())


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of a user who has no jars and whose network requests fail at once."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("TIEREDSTORE_MAVEN_REPOSITORY", "http://127.0.0.1:9")
    return tmp_path / "home"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the root of a Maven repository served on this machine."""
    root = tmp_path / "repository"
    (root / JAR.path).parent.mkdir(parents=True)
    handler = functools.partial(QuietHandler, directory=str(root))
    with RunningServer(LoopbackServer(handler)) as server:
        monkeypatch.setenv("TIEREDSTORE_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.port}/")
        yield root


def installed(folder: Path) -> bytes:
    install([JAR], folder, print)
    return (folder / "thing-1.0.jar").read_bytes()


def test_a_jar_is_fetched_once_for_all_clones(repository: Path, tmp_path: Path) -> None:
    (repository / JAR.path).write_bytes(CONTENT)
    assert installed(tmp_path / "first") == CONTENT
    (repository / JAR.path).unlink()
    assert installed(tmp_path / "second") == CONTENT


def test_a_jar_with_another_hash_is_refused_and_not_kept(repository: Path, tmp_path: Path, home: Path) -> None:
    (repository / JAR.path).write_bytes(b"somebody else's bytes")
    with pytest.raises(
        SetupError, match=r"org\.example:thing:1\.0 from http://127.* is refused: its SHA-256 is"
    ) as refusal:
        installed(tmp_path / "libs")
    assert JAR.sha256 in str(refusal.value)
    assert not (tmp_path / "libs").exists()
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_a_damaged_jar_of_the_cache_is_fetched_anew(repository: Path, tmp_path: Path, home: Path) -> None:
    (repository / JAR.path).write_bytes(CONTENT)
    installed(tmp_path / "first")
    (cached,) = home.rglob("*.jar")
    cached.unlink()
    cached.write_bytes(b"damaged")
    assert installed(tmp_path / "second") == CONTENT


def test_what_maven_has_on_this_machine_is_not_fetched(home: Path, tmp_path: Path) -> None:
    local = home / ".m2" / "repository" / JAR.path
    local.parent.mkdir(parents=True)
    local.write_bytes(CONTENT)
    assert installed(tmp_path / "libs") == CONTENT


def test_a_jar_that_cannot_be_fetched_is_named_with_the_way_out(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"thing-1\.0\.jar cannot be fetched .*404.*TIEREDSTORE_MAVEN_REPOSITORY"):
        installed(tmp_path / "libs")


def test_a_classifier_is_part_of_the_files_name() -> None:
    jar = Jar("org.example:thing:1.0:linux-x86_64", "")
    assert jar.path == "org/example/thing/1.0/thing-1.0-linux-x86_64.jar"


@pytest.mark.parametrize("line", ["org.example:thing:1.0", "thing " + "a" * 64, "a/../b:c:1 " + "a" * 64])
def test_a_line_that_is_none_of_a_lock_is_refused(line: str) -> None:
    with pytest.raises(SetupError, match="no line of a lock"):
        read_lock(f"# a comment\n{line}\n")


@pytest.mark.parametrize(("server", "count"), [("kafka", 3), ("zookeeper", 4), ("kafka39", 2)])
def test_the_lock_has_what_the_pom_asks_for(server: str, count: int) -> None:
    space = {"": "http://maven.apache.org/POM/4.0.0"}
    lock = jars.LOCKS[server]
    locked = {jar.coordinates for jar in read_lock(lock.read_text())}
    dependencies = ET.parse(lock.with_name("pom.xml")).iterfind("dependencies/dependency", space)
    asked = [
        ":".join(dependency.findtext(name, "", space) for name in ("groupId", "artifactId", "version"))
        for dependency in dependencies
    ]
    assert len(asked) == count
    assert set(asked) <= locked


def test_without_a_word_of_the_users_the_packages_own_repository_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIEREDSTORE_MAVEN_REPOSITORY")
    assert jars.repository().startswith("https://")
    assert not jars.repository().endswith("/")
