"""Options, settings and credentials of the S3 store: chosen and rejected ones, with secrets never shown."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.s3_stores import impatient_store, options_for
from tieredstore.backends.s3.client import client_config, describe_credentials, parse_credentials
from tieredstore.backends.s3.options import AccessKeys, Compatibility, ListingOrder, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import AccessDeniedError, ConfigError

SECRET = "a-secret-that-must-not-be-told"
MINIMAL = {
    "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
    "chunk.size": "4194304",
    "storage.s3.bucket.name": "logs",
    "storage.s3.region": "eu-north-1",
}


def options_of(**more: str) -> S3Options:
    return S3Options.from_settings(
        settings_from({**MINIMAL, **{name.replace("_", "."): v for name, v in more.items()}})
    )


@pytest.fixture
def no_aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide all credentials from the SDK's chain: no variables, no files, no instance."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


# Settings


def test_the_smallest_settings_have_the_plugin_s_defaults() -> None:
    options = options_of()
    assert (options.bucket, options.region, options.url) == ("logs", "eu-north-1", "s3://logs")
    assert (options.part_size, options.storage_class) == (26214400, "STANDARD")
    assert (options.certificate_check, options.checksum_check, options.legacy_md5) == (True, False, False)
    assert (options.compatibility, options.listing_order) == (Compatibility.AWS, ListingOrder.AUTO)
    assert options.upload_parallelism == 4
    assert (options.credentials, options.proxy, options.endpoint_url, options.path_style) == (None, None, None, None)


def test_every_setting_reaches_the_options() -> None:
    settings = {
        "storage.s3.endpoint.url": "http://127.0.0.1:9/",
        "storage.s3.path.style.access.enabled": "true",
        "storage.s3.multipart.upload.part.size": "5242880",
        "storage.s3.multipart.upload.parallelism": "7",
        "storage.s3.compatibility": "s3-compatible",
        "storage.s3.listing.order": "by-folder",
        "storage.s3.storage.class": "STANDARD_IA",
        "storage.s3.api.call.timeout": "1500",
        "storage.s3.api.call.attempt.timeout": "250",
        "storage.s3.legacy.md5.plugin.enabled": "true",
        "storage.aws.access.key.id": "key",
        "storage.aws.secret.access.key": SECRET,
        "storage.aws.session.token": "token",
        "storage.aws.certificate.check.enabled": "false",
        "storage.aws.checksum.check.enabled": "true",
        "storage.proxy.host": "proxy",
        "storage.proxy.port": "1080",
    }
    options = S3Options.from_settings(settings_from({**MINIMAL, **settings}))
    assert options.url == "http://127.0.0.1:9/logs"
    assert (options.path_style, options.part_size, options.storage_class) == (True, 5242880, "STANDARD_IA")
    assert (options.compatibility, options.listing_order) == (Compatibility.S3_COMPATIBLE, ListingOrder.BY_FOLDER)
    assert options.upload_parallelism == 7
    assert (options.call_timeout_s, options.attempt_timeout_s) == (1.5, 0.25)
    assert (options.certificate_check, options.checksum_check, options.legacy_md5) == (False, True, True)
    assert options.credentials == AccessKeys("key", SECRET, "token")
    assert options.proxy is not None
    assert (options.proxy.host, options.proxy.port) == ("proxy", 1080)
    assert SECRET not in repr(options)


def test_a_credentials_file_is_taken_from_the_settings(tmp_path: Path) -> None:
    settings = settings_from({**MINIMAL, "storage.aws.credentials.file": "keys.properties"}, base_dir=tmp_path)
    assert S3Options.from_settings(settings).credentials == tmp_path / "keys.properties"


def test_settings_of_another_store_are_refused(tmp_path: Path) -> None:
    other = settings_from({"storage.backend.class": "filesystem", "chunk.size": "1", "storage.root": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"storage\.s3\.bucket\.name"):
        S3ObjectStore.from_settings(other)


@pytest.mark.parametrize("compatibility", list(Compatibility))
@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:1", "https://127.0.0.1:1"])
@pytest.mark.parametrize("check", [True, False])
def test_the_sdk_s_own_defaults_decide_nothing(compatibility: Compatibility, endpoint: str | None, check: bool) -> None:
    config: Any = client_config(
        S3Options("logs", endpoint_url=endpoint, compatibility=compatibility, checksum_check=check, concurrency=30)
    )
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == ("when_supported" if check else "when_required")
    assert config.max_pool_connections >= 30
    assert (config.connect_timeout, config.read_timeout) == (10, 30)
    # The signature covers the body if TLS or our checksum is missing.
    covered = compatibility is Compatibility.S3_COMPATIBLE or (endpoint or "").startswith("http:")
    assert config.s3["payload_signing_enabled"] == covered
    path_style = compatibility is Compatibility.S3_COMPATIBLE
    assert config.s3["addressing_style"] == ("path" if path_style else "auto")


# Credentials


def test_a_fixed_key_does_not_fall_back_to_the_environment(
    minio: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
    options = replace(options_for(minio, minio.make_bucket()), credentials=AccessKeys("nobody", SECRET))
    with (
        closing(impatient_store(options)) as store,
        caplog.at_level(logging.DEBUG, logger="tieredstore"),
        pytest.raises(AccessDeniedError),
    ):
        store.put("object", b"x")
    assert "the access key of the settings" in caplog.text
    assert SECRET not in caplog.text + repr(store)


def test_the_sdk_s_chain_is_used_and_named_when_nothing_is_set(
    minio: S3Server, no_aws_environment: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
    options = replace(options_for(minio, minio.make_bucket()), credentials=None)
    with closing(impatient_store(options)) as store, caplog.at_level(logging.INFO, logger="tieredstore"):
        store.put("object", b"x")
    assert "chain: env" in caplog.text
    assert minio.secret_key not in caplog.text


@pytest.mark.parametrize(
    ("variables", "file", "source"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIA1234", "AWS_SECRET_ACCESS_KEY": SECRET}, "", "the environment (AWS_ACCESS_KEY_ID)"),
        ({}, "AWS_SHARED_CREDENTIALS_FILE", "the profile default in {file}"),
        ({"AWS_PROFILE": "backups"}, "AWS_SHARED_CREDENTIALS_FILE", "the profile backups in {file}"),
        ({"AWS_PROFILE": "backups"}, "AWS_CONFIG_FILE", "the profile backups in {file}"),
    ],
)
def test_the_source_of_the_key_is_named(
    variables: dict[str, str], file: str, source: str,
    no_aws_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    profile = variables.get("AWS_PROFILE", "default")
    named = f"profile {profile}" if file == "AWS_CONFIG_FILE" else profile
    (tmp_path / "aws").write_text(f"[{named}]\naws_access_key_id=AKIA1234\naws_secret_access_key={SECRET}\n")
    for name, text in {**variables, **({file: str(tmp_path / "aws")} if file else {})}.items():
        monkeypatch.setenv(name, text)
    told = describe_credentials(S3Options("logs", region=REGION))
    assert told == f"access key …1234 of {source.format(file=tmp_path / 'aws')}"


def test_no_credentials_at_all_is_denied_here_and_nothing_is_sent_unsigned(no_aws_environment: None) -> None:
    options = S3Options("logs", region=REGION, endpoint_url="http://127.0.0.1:1")
    with closing(impatient_store(options)) as store, pytest.raises(AccessDeniedError, match="credentials"):
        store.get("object")


def write_keys(path: Path, key: str, secret: str) -> None:
    path.write_text(f"aws.access.key.id={key}\naws.secret.access.key={secret}\n")


def test_a_rotated_credentials_file_is_used_without_a_restart(minio: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "keys.properties"
    write_keys(path, "nobody", "nothing")
    options = replace(options_for(minio, minio.make_bucket()), credentials=path, credentials_reread_s=0)
    with closing(impatient_store(options)) as store:
        with pytest.raises(AccessDeniedError):
            store.put("object", b"x")
        write_keys(path, minio.access_key, minio.secret_key)
        store.put("object", b"x")
        path.unlink()
        with pytest.raises(ConfigError, match=r"keys\.properties"):
            store.get("object")
        write_keys(path, minio.access_key, minio.secret_key)
        assert store.get("object") == b"x"


def test_an_absent_credentials_file_is_a_config_error(minio: S3Server, tmp_path: Path) -> None:
    options = replace(options_for(minio, "any"), credentials=tmp_path / "absent")
    with closing(impatient_store(options)) as store, pytest.raises(ConfigError, match="absent"):
        store.get("object")


@pytest.mark.parametrize("prefix", ["", "rsm.config.storage.", "storage."])
def test_the_names_in_a_credentials_file_may_have_the_plugin_s_prefix(prefix: str) -> None:
    text = f"{prefix}aws.access.key.id = key\n{prefix}aws.secret.access.key: s=e:c\n{prefix}aws.session.token=\n"
    assert parse_credentials(text.encode()) == AccessKeys("key", "s=e:c")


@given(st.binary(max_size=200))
def test_any_other_file_is_refused_without_quoting_it(noise: bytes) -> None:
    for raw in (
        noise,
        b"aws.secret.access.key=" + SECRET.encode() + b"\n#" + noise.replace(b"\n", b"").replace(b"\r", b""),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_credentials(raw)
        assert SECRET not in str(caught.value)
