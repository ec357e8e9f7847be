"""Doctor's checks of an uploader's settings: each line reports that all is well, or names the fault and its remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.kafka.kafka_topics import make_topic
from tests.support.servers.kafka import CLUSTER_ID, KafkaServer
from tests.support.uploader.uploader_disk import BrokerDisk
from tieredstore.errors import BrokerUnavailableError
from tieredstore.live.broker_state import BrokerState
from tieredstore.model import Uuid
from tieredstore.ops.doctor.checkup import Verdict

OWN = ("broker", "log_dir", "hold_dir")
META = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id=1\n"


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    disk = BrokerDisk(tmp_path / "logs", segments=2)
    (disk.log_dir / "meta.properties").write_text(META)
    (tmp_path / "held").mkdir()
    return disk


def of(disk: BrokerDisk, **more: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Return the exit code, and the outcomes and sentences of the uploader's checks by name."""
    own = {
        "log.dirs": str(disk.log_dir),
        "hold.dir": str(disk.log_dir.parent / "held"),
        "leadership": "static",
        "hold.min.free.percent": "0",
        **more,
    }
    named = {name if "endpoint" in name else f"uploader.{name.replace('_', '.')}": own[name] for name in own}
    settings = {name: text for name, text in named.items() if text}
    done = tieredstore("doctor", "-c", write_settings(disk.log_dir.parent, settings), "--json")
    rows, _ = done.rows
    found: dict[str, list[tuple[str, str]]] = {
        name: [(row["outcome"], row["detail"]) for row in rows if row["check"] == name] for name in OWN
    }
    return done.code, found


def test_all_is_well_and_left_as_it_was(disk: BrokerDisk, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, rows = of(disk, broker_id="1")
    assert code == 0
    assert rows["broker"] == [(Verdict.SKIPPED, "no broker is named: uploader.kafka.bootstrap.servers is not set")]
    assert rows["log_dir"] == [(Verdict.GOOD, f"{disk.log_dir} belongs to broker 1 of cluster {CLUSTER_ID}")]
    ((outcome, sentence),) = rows["hold_dir"]
    assert outcome == Verdict.GOOD
    assert f"can be written, is on the file system of {disk.log_dir} and has " in sentence
    assert {*tmp_path.rglob("*")} - {*before} == {tmp_path / "store", tmp_path / "store.properties"}


def test_settings_without_an_uploader_have_none_of_these(tmp_path: Path) -> None:
    rows, _ = tieredstore("doctor", "-c", write_settings(tmp_path), "--json").rows
    assert not {row["check"] for row in rows} & {*OWN}


def remove_meta(disk: BrokerDisk) -> None:
    (disk.log_dir / "meta.properties").unlink()


def give_away(disk: BrokerDisk) -> None:
    (disk.log_dir / "meta.properties").write_text(META.replace("node.id=1", "node.id=2"))


def damage(disk: BrokerDisk) -> None:
    (disk.log_dir / "meta.properties").write_text(META.replace("node.id=1", "node.id=one"))


def age(disk: BrokerDisk) -> None:
    """Write ``meta.properties`` without a cluster id, as brokers before 0.10.1 do."""
    (disk.log_dir / "meta.properties").write_text("version=0\nbroker.id=1\n")


def nothing(_: BrokerDisk) -> None:
    pass


@pytest.mark.parametrize(
    ("happen", "more", "code", "name", "outcome", "words"),
    [
        (nothing, {"log.dirs": "{0}/none"}, 2, "log_dir", "bad", "{0}/none does not exist or is not a directory"),
        (nothing, {"log.dirs": "{0}/store.properties"}, 2, "log_dir", "bad", "or is not a directory"),
        (remove_meta, {}, 0, "log_dir", "warn", "has no meta.properties, so no broker uses it"),
        (give_away, {}, 2, "log_dir", "bad", "belongs to broker 2, not 1: correct uploader.log.dirs"),
        (age, {}, 0, "log_dir", "ok", "{0}/logs belongs to broker 1"),
        (damage, {}, 4, "log_dir", "bad", "'one', which is not a number"),
        (nothing, {"hold.dir": "{0}/none"}, 2, "hold_dir", "bad", "does not exist or is not a directory: create it"),
        (nothing, {"hold.dir": "{0}/logs"}, 2, "hold_dir", "bad", "inside the log directory"),
        (nothing, {"hold.dir": ""}, 0, "hold_dir", "warn", "uploader.hold.dir is not set: segments that Kafka deletes"),
        (nothing, {"hold.dir": "{0}/held", "hold.min.free.percent": "99"}, 0, "hold_dir", "warn", "drops segments"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    disk: BrokerDisk, tmp_path: Path, happen: Callable[[BrokerDisk], None],
    more: dict[str, str], code: int, name: str, outcome: str, words: str,
) -> None:  # fmt: skip
    happen(disk)
    given = {setting: text.format(tmp_path) for setting, text in more.items()}
    seen, rows = of(disk, **{"broker.id": "1", **given})
    ((first, sentence),) = rows[name]
    assert (seen, first) == (code, outcome)
    assert words.format(tmp_path) in sentence


def test_another_file_system_holds_nothing(disk: BrokerDisk, other_disk: Path) -> None:
    code, rows = of(disk, **{"broker.id": "1", "hold.dir": str(other_disk)})
    assert code == 2
    (unused, uncovered) = rows["hold_dir"]
    assert unused == (Verdict.WARN, f"{other_disk} is not used, because no log directory is on its file system")
    assert uncovered[0] == Verdict.BAD
    assert f"no folder on the file system of log directory {disk.log_dir}, and hard links cannot" in uncovered[1]


@pytest.fixture
def other_user(disk: BrokerDisk, tmp_path: Path) -> None:
    """Let the user nobody use the folders; skip the test if this process may not change its user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    write_settings(tmp_path).chmod(0o666)
    os.chown(tmp_path / "held", 65534, 65534)


def sentence_of(disk: BrokerDisk, check: str) -> str:
    """Return the sentence of a check that a process of the user nobody makes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  in another process
        try:
            os.setgid(65534)
            os.setuid(65534)
            _, rows = of(disk, **{"broker.id": "1"})
            os.write(write, rows[check][0][1].encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    try:
        return os.read(read, 10_000).decode()
    finally:
        os.close(read)


@pytest.mark.usefixtures("other_user")
def test_files_of_another_user_are_named(disk: BrokerDisk, tmp_path: Path) -> None:
    assert "only the owner of" in sentence_of(disk, "hold_dir")
    (disk.folder / f"{0:020d}.log").chmod(0o600)
    (disk.folder / f"{10:020d}.log").chmod(0o600)
    assert ".log cannot be read: run the uploader as the broker's user" in sentence_of(disk, "log_dir")
    disk.log_dir.chmod(0o700)
    assert f"{disk.log_dir} cannot be read: run the uploader as" in sentence_of(disk, "log_dir")
    os.chown(tmp_path / "held", 0, 0)
    (tmp_path / "held").chmod(0o700)
    assert "held cannot be written: run the uploader as" in sentence_of(disk, "hold_dir")


@pytest.mark.broker
def test_a_broker_is_compared_with_the_disk(
    kafka: KafkaServer, disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(kafka, {})
    own = {"leadership": "auto", "broker.id": "1", "kafka.bootstrap.servers": kafka.bootstrap_servers}
    here = f"cluster {CLUSTER_ID} at {kafka.bootstrap_servers}"
    code, rows = of(disk, **own)
    assert (code, rows["broker"]) == (0, [(Verdict.GOOD, f"broker 1 is running in {here}")])
    code, rows = of(disk, **own, **{"log.dirs": str(kafka.log_dir)})
    assert (code, rows["log_dir"][0][0]) == (0, Verdict.GOOD)

    (disk.log_dir / "meta.properties").write_text(META.replace(CLUSTER_ID, "another"))
    code, rows = of(disk, **own)
    ((_, sentence),) = rows["log_dir"]
    assert (
        code,
        f"belongs to cluster another, but the broker belongs to cluster {CLUSTER_ID}: correct" in sentence,
    ) == (2, True)

    (disk.log_dir / "meta.properties").write_text(META.replace("node.id=1", "node.id=7"))
    code, rows = of(disk, **{**own, "broker.id": "7"})
    assert (code, rows["broker"]) == (
        75,
        [(
            Verdict.BAD,
            f"broker 7 is not running in {here}, whose brokers are 1: start broker 7, or correct uploader.broker.id",
        )],
    )  # fmt: skip

    def without_ids(_: BrokerState, topics: list[str]) -> dict[str, Uuid | None]:
        return dict.fromkeys(topics, Uuid(bytes(16)))

    monkeypatch.setattr(BrokerState, "topic_ids", without_ids)
    code, rows = of(disk, **own)
    words = "has no topic ids: the uploader needs Kafka 2.8 or later, and the same inter.broker.protocol.version"
    assert (code, rows["broker"][0][1]) == (2, f"{here} {words}")
    _, rows = of(disk, **own, layout="pinterest", **{"endpoint.cluster": "one"})
    assert rows["broker"] == [(Verdict.GOOD, f"broker 1 is running in {here}")], "the raw layout needs no topic ids"


def test_a_failed_disk_is_named_and_the_others_are_checked(
    disk: BrokerDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [str(tmp_path / "failed logs"), str(tmp_path / "failed links")]
    for folder in failed:
        Path(folder).mkdir()

    def fail(of_system: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            if given and not isinstance(given[0], int) and str(given[0]) in failed:
                raise OSError(errno.EIO, "Input/output error")
            return of_system(*given, **options)

        return call

    for name in ("stat", "scandir"):
        monkeypatch.setattr(os, name, fail(getattr(os, name)))
    code, rows = of(
        disk, broker_id="1", **{"log.dirs": f"{disk.log_dir},{failed[0]}", "hold.dir": f"{tmp_path}/held,{failed[1]}"}
    )
    assert code == 2
    assert [outcome for outcome, _ in rows["log_dir"] + rows["hold_dir"]] == ["ok", "bad", "ok", "bad"]
    for name, folder in zip(("log_dir", "hold_dir"), failed, strict=True):
        assert f"{folder} cannot be read: Input/output error; repair its disk, or " in rows[name][1][1]


def test_a_broker_that_does_not_answer_is_unavailable(disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: BrokerState) -> NoReturn:
        raise BrokerUnavailableError("no broker answered within 10 s")

    monkeypatch.setattr(BrokerState, "members", silent)
    own = {"leadership": "auto", "broker.id": "1", "kafka.bootstrap.servers": "127.0.0.1:1"}
    code, rows = of(disk, **own)
    assert (code, rows["broker"]) == (75, [(Verdict.BAD, "no broker answered within 10 s")])
    # The checks of the disk do not need an answer from the broker.
    assert rows["log_dir"][0][0] == rows["hold_dir"][0][0] == Verdict.GOOD


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"server.properties": "/none"}, "/none"),
        ({"leadership": "auto"}, "there is no broker to ask: set uploader.kafka.bootstrap.servers"),
        ({"log.dirs": ""}, "no log directory is known: set uploader.log.dirs"),
        ({"kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "NONE"}, "security.protocol"),
    ],
)
def test_settings_that_cannot_work_are_one_line(disk: BrokerDisk, more: dict[str, str], words: str) -> None:
    own = {"uploader.log.dirs": str(disk.log_dir), "uploader.leadership": "static"}
    given = {name: text for name, text in {**own, **{f"uploader.{n}": t for n, t in more.items()}}.items() if text}
    done = tieredstore("doctor", "-c", write_settings(disk.log_dir.parent, given))
    assert done.code == 2
    *_, last = [line for line in done.text.splitlines() if line.startswith("bad")]
    assert words in last
