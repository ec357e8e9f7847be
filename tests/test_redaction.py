"""Credentials in URLs: no message repeats them, wherever the URL was given."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.stores.url_settings import settings_at
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError, TieredStoreError, redact

SECRET = "s3cr3t"
URLS = (
    f"http://user:{SECRET}@host/x",
    f"ftp://user:{SECRET}@host/x?sig={SECRET}",
    f"file://user:{SECRET}@host/x",
    f"file:///x?sig={SECRET}",
    f"file:user:{SECRET}@host/x",
    f"file:////user:{SECRET}@b/\x01",
    f"file:%00//u:{SECRET}@h",
    f"s3://user:{SECRET}@b/x",
    f"s3://b/x?sig={SECRET}",
    f"s3://b:{SECRET}@/x",
    f"s3://user:{SECRET}\n@b",
    f"s3:////user:{SECRET}@b/x",
    f"s3://b/ u:{SECRET}@x ",
    f"s3:user:{SECRET}@host",
    f"s3:/u:{SECRET}/{SECRET}@h",
    f"S3://u:{SECRET}@h",
    f"gs://user:{SECRET}@[/x",
    f"az://u:{SECRET}@\u2100b/x",
    f"az:?sig={SECRET}",
    f"memory://u:{SECRET}@b",
    f"user:{SECRET}@h",
    f"//user:{SECRET}@h",
)
S3 = {"storage.backend.class": "s3", "storage.s3.bucket.name": "b", "storage.s3.region": "r"}
GCS = {"storage.backend.class": "gcs", "storage.gcs.bucket.name": "b"}
AZURE = {"storage.backend.class": "azure", "storage.azure.container.name": "c", "storage.azure.account.name": "a"}
FOLDER = {"storage.backend.class": "filesystem", "storage.root": "/nowhere"}
SETTINGS = (
    (FOLDER, "storage.root"),
    (FOLDER, "storage.backend.class"),
    (FOLDER, "chunk.size"),
    (FOLDER, "encryption.key.pair.id"),
    (S3, "storage.s3.bucket.name"),
    (S3, "storage.s3.endpoint.url"),
    (S3, "storage.s3.storage.class"),
    (S3, "storage.proxy.host"),
    (S3, "storage.proxy.port"),
    (S3, "storage.aws.credentials.file"),
    (GCS, "storage.gcs.bucket.name"),
    (GCS, "storage.gcs.endpoint.url"),
    (GCS, "storage.gcs.credentials.json"),
    (AZURE, "storage.azure.container.name"),
    (AZURE, "storage.azure.account.name"),
    (AZURE, "storage.azure.endpoint.url"),
    (AZURE, "storage.azure.connection.string"),
)


@pytest.mark.parametrize("url", URLS)
def test_a_url_of_a_store_is_told_without_its_credentials(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_at(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    done = tieredstore("ls", "--store", url)
    assert done.code == 2
    assert SECRET not in done.stderr + done.text


@pytest.mark.parametrize(("base", "name"), SETTINGS)
def test_a_setting_that_holds_a_url_is_told_without_its_credentials(base: dict[str, str], name: str) -> None:
    for value in (f"http://user:{SECRET}@host:1/x?sig={SECRET}", f"user:{SECRET}@host", f"ht!tp://u:{SECRET}@h"):
        try:
            shown = repr(store_from_settings(settings_from({**base, "chunk.size": "65536", name: value})))
        except TieredStoreError as error:
            shown = str(error)
        assert SECRET not in shown, value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass/word@host/x?a=b&c", "http:…@host/x?…"),
        ("to 'http://u:p@h:1/', then (https://h/?sig=1)", "to 'http:…@h:1/', then (https://h/?…)"),
        ("user:password@host", "user:…@host"),
        ("an address like me@example.org", "an address like me@example.org"),
        ("/data/@home/x", "/data/@home/x"),
    ],
)
def test_what_is_left_out(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_the_environment_is_told_without_its_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@host/?sig={SECRET}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://user:{SECRET}@host/?sig={SECRET}")
    for url in ("s3://bucket", "gs://bucket"):
        with pytest.raises(ConfigError) as caught:
            store_from_settings(settings_at(url, _region(tmp_path)))
        assert SECRET not in str(caught.value)


def _region(folder: Path) -> Path:
    path = folder / "store.properties"
    path.write_text("chunk.size=65536\nstorage.s3.region=r\n")
    return path
