"""The bad nights of docs/how-to/emergency.md: each disaster happens, then the commands of its section run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts import sample
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.paths import REPOSITORY
from tests.support.servers.s3_server import REGION, S3Server

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

FULL_DISK = "A disk is full of held segments"
PAGE = REPOSITORY / "docs" / "how-to" / "emergency.md"


def commands_of(section: str) -> list[str]:
    """Return the commands of a section of the page, in order."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)


def obey(commands: list[str]) -> list[Result]:
    """Run the page's commands in the working directory; return the results of the tieredstore commands."""
    done: list[Result] = []
    for command in commands:
        words = shlex.split(command.partition(">")[0])
        if words[0] == "tieredstore":
            done.append(tieredstore(*words[1:]))
        else:
            subprocess.run(["sh", "-c", command], check=True)
    return done


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the sample, and copy its bucket by the page's first commands, before any disaster."""
    shutil.copytree(sample.SAMPLE, tmp_path / "sample")
    monkeypatch.chdir(tmp_path / "sample")
    copying = commands_of("A wrong `rm`")[:3]
    assert [result.code for result in obey(copying)] == [0]
    return tmp_path / "sample" / "bucket"


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def remove_all(_: Path) -> None:
    assert tieredstore("rm", "-c", "store.properties", "orders", "--yes").code == 0


def remove_some(_: Path) -> None:
    assert tieredstore("rm", "-c", "store.properties", "orders", "-p", "0", "--to", "240", "--yes").code == 0


@pytest.mark.parametrize("remove", [remove_all, remove_some])
def test_a_wrong_rm(remove: Callable[[Path], None], stage: Path) -> None:
    before = content(stage)
    remove(stage)
    assert len(content(stage)) < len(before)
    planned, copied, verified = obey(commands_of("A wrong `rm`")[3:])
    assert "would be copied" in planned.text
    assert (copied.code, verified.code) == (0, 0)
    assert content(stage) == before


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_corrupt_segment(suffix: str, stage: Path) -> None:
    before = content(stage)
    damaged = min(stage.rglob(f"*.{suffix}"))
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    found, _, planned, repaired = obey(commands_of("A segment is corrupt"))
    assert found.code == 4
    assert f"would be repaired  {damaged.relative_to(stage).with_suffix('')}: .{suffix}" in planned.text
    assert repaired.code == 0
    assert content(stage) == before
    assert obey(commands_of("A segment is corrupt"))[0].code == 0


@pytest.mark.slow
def test_a_leaked_key(stage: Path) -> None:
    encrypt, *_ = (shlex.split(command.partition(">")[0]) for command in commands_of("A private key leaked"))
    printed = tieredstore(*encrypt[1:])
    with Path("store.properties").open("a") as settings:
        settings.write(printed.stdout.decode())
    shutil.rmtree(stage)
    stage.mkdir()
    commands = commands_of("A private key leaked")
    uploaded, created = obey(commands[1:3])
    assert (uploaded.code, created.code) == (0, 0)
    settings_file = Path("store.properties")
    settings_file.write_text(settings_file.read_text().replace("key.pair.id=key1", "key.pair.id=key2"))
    assert "sed" in commands[3]
    planned, rotated, listed = obey(commands[4:7])
    assert "6 data keys would be rotated" in planned.text
    assert rotated.code == 0
    assert "key1" not in listed.text
    needed = tieredstore("keys", "list", "key1", "-c", "store.properties")
    assert (needed.code, needed.text.split()[0]) == (5, "cached")
    until = needed.text.split()[-1]
    assert f"readers need 'key1' until {until}" in rotated.text
    renewed = obey(commands[7:])
    assert [result.code for result in renewed] == [0, 0]
    assert "6 segments copied" in renewed[1].text
    fresh = tieredstore("verify", "-c", "store.properties", "--store", "fresh", "--level", "data")
    assert fresh.code == 0


def test_a_deleted_topic(stage: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers delete all of a topic's segments from a bucket that keeps versions."""
    name, client = minio.make_bucket(), minio.plain
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    texts = {
        "storage.backend.class": "s3", "storage.s3.bucket.name": name, "storage.s3.region": REGION,
        "storage.s3.endpoint.url": minio.endpoint_url, "storage.s3.path.style.access.enabled": "true",
        "storage.aws.access.key.id": minio.access_key, "storage.aws.secret.access.key": minio.secret_key,
    }  # fmt: skip
    Path("store.properties").write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    assert tieredstore("mirror", "--store", stage, "store.properties").code == 0
    before = objects(client, name)
    for key in before:
        client.delete_object(Bucket=name, Key=key)
    assert tieredstore("verify", "-c", "store.properties", "orders").code != 0
    # Skip the sleep in which the command waits until other processes see its hold.
    monkeypatch.setattr(time, "sleep", lambda _: None)
    own = [command for command in commands_of("A topic was deleted") if command.startswith("tieredstore ")]
    planned, applied, verified, released = obey(own)
    assert "6 segments would be undeleted" in planned.text
    assert [done.code for done in (applied, verified, released)] == [0, 0, 0]
    assert objects(client, name) == before
    assert tieredstore("holds", "list", "-c", "store.properties", "--json").rows[0] == []


def objects(client: S3Client, bucket: str) -> dict[str, str]:
    """Return the etags of a bucket's segments by key."""
    listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"]: one["ETag"] for one in listed if "!tieredstore" not in one["Key"]}  # pyright: ignore[reportTypedDictNotRequiredAccess]


@pytest.fixture
def small_disk(stage: Path, tmp_path: Path) -> Iterator[Path]:
    """Move the sample's log directory to a disk of 2 MiB, which has room for held segments too."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        shutil.move("kafka-logs", disk / "kafka-logs")
        Path("kafka-logs").symlink_to(disk / "kafka-logs")
        yield disk
    finally:
        subprocess.run(["umount", str(stage)], check=False, capture_output=True)
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk(stage: Path, small_disk: Path) -> None:
    make_folder, *settings, look, make_spare, use_spare, ship, look_again = commands_of(FULL_DISK)[:8]
    assert obey([make_folder, *settings]) == []
    shutil.move("held", small_disk / "held")
    Path("held").symlink_to(small_disk / "held")
    # The store refuses writes; the uploader holds segments that retention then deletes, and the broker fills the disk.
    for options in (["--bind", str(stage), str(stage)], ["-o", "remount,ro,bind", str(stage)]):
        subprocess.run(["mount", *options], check=True)
    assert tieredstore("uploader", "-c", "uploader.properties", "--once").code == 6
    deleted = [log for log in Path("kafka-logs").glob("orders-*/*.log") if not log.stem.endswith("600")]
    for log in deleted:
        for file in log.parent.glob(f"{log.stem}.*"):
            file.unlink()
    (small_disk / "kafka-logs" / "more").write_bytes(bytes(int(free_bytes(small_disk) - 0.15 * (2 << 20))))
    held = free_bytes(small_disk)

    before, shipped, after = obey([look, make_spare, use_spare, ship, look_again])
    assert before.code != 0
    assert re.search(r"^warn +hold_dir .* 1\d % free", before.text, re.MULTILINE)
    assert "4 segments shipped" in shipped.text
    assert (shipped.code, list(Path("held").iterdir())) == (0, [])
    assert free_bytes(small_disk) > held
    assert after.code == 0
    subprocess.run(["umount", str(stage)], check=True)
    done = obey(commands_of(FULL_DISK)[8:])
    assert [each.code for each in done] == [0, 0, 0]
    assert "nothing to ship" in done[1].text


def free_bytes(disk: Path) -> int:
    return shutil.disk_usage(disk).free
