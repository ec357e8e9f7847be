"""Commands with a login that a real S3 server refuses: the cause comes first, and nothing else is alarming."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, tieredstore, write_settings
from tests.support.servers.minio import read_only_login
from tests.support.servers.s3_server import REGION, S3Server

DENIED = "writing was denied: 'single-"


def settings_for(folder: Path, server: S3Server, key_id: str, secret: str, token: str = "", **more: str) -> Path:
    texts = {
        "storage.backend.class": "s3", "storage.s3.bucket.name": server.make_bucket(), "storage.s3.region": REGION,
        "storage.s3.endpoint.url": server.endpoint_url, "storage.s3.path.style.access.enabled": "true",
        "storage.aws.credentials.file": str(folder / "login"), **more,
    }  # fmt: skip
    names = {"access.key.id": key_id, "secret.access.key": secret, "session.token": token}
    (folder / "login").write_text("".join(f"aws.{name}={text}\n" for name, text in names.items()))
    return write_settings(folder, texts)


@pytest.fixture
def reader(minio: S3Server, tmp_path: Path) -> Path:
    """Write settings with a read-only login, and with an uploader for one topic's log directory."""
    shutil.copytree(ORIGINALS, tmp_path / "data")
    own = {"uploader.log.dirs": str(tmp_path / "data"), "uploader.leadership": "static"}
    return settings_for(tmp_path, minio, *read_only_login(minio), **own)


def test_a_denied_upload_says_so_and_nothing_of_a_clean_up(reader: Path) -> None:
    done = tieredstore("upload", "-c", reader, ORIGINALS)
    (failed,) = done.stderr.strip().splitlines()
    assert failed.startswith(f"tieredstore: failed     single-0 at offset 0: {DENIED}")
    assert (done.code, failed.count("AccessDenied")) == (6, 1)


def test_a_denied_mirror_says_so_and_nothing_of_a_clean_up(reader: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    here = write_settings(tmp_path / "here")
    assert tieredstore("upload", "-c", here, ORIGINALS).code == 0
    done = tieredstore("mirror", "-c", here, reader)
    (failed,) = done.stderr.strip().splitlines()
    assert (done.code, failed.count("AccessDenied"), "clean-up" in failed) == (6, 1, False)


def test_a_denied_uploader_says_so_once(reader: Path) -> None:
    done = tieredstore("uploader", "-c", reader, "--once")
    (failed,) = done.stderr.strip().splitlines()
    assert failed.startswith("tieredstore: store: lost; retrying until it answers: single-0 (")
    assert DENIED in failed
    assert f"not shipped: single-0: {DENIED}" in done.text
    assert done.code == 6


@pytest.mark.parametrize("is_known", [True, False])
def test_the_doctor_names_the_key_that_was_refused(minio: S3Server, tmp_path: Path, is_known: bool) -> None:
    key_id, secret = minio.access_key if is_known else "AKIAANOTHER", "a-secret-of-nobody"
    done = tieredstore("doctor", "-c", settings_for(tmp_path, minio, key_id, secret))
    (bad,) = [line for line in done.text.splitlines() if line.startswith("bad")]
    answer = "SignatureDoesNotMatch" if is_known else "InvalidAccessKeyId"
    assert answer in bad
    assert bad.endswith(f"; tried as access key …{key_id[-4:]} of {tmp_path / 'login'}")
    assert done.code == 6
    assert secret not in done.text + done.stderr
