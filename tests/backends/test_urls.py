"""URLs of stores: their parts, values from a file or from an SDK's environment, and rejected URLs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.url_settings import settings_at
from tieredstore.config import Settings
from tieredstore.errors import ConfigError

SECRET = "a-secret-that-must-not-be-told"
VARIABLES = (
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    *("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_CONNECTION_STRING"),
    *("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"),
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    nowhere = tmp_path_factory.getbasetemp() / "no-such-file"
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(nowhere))


def write(folder: Path, texts: Mapping[str, str]) -> Path:
    path = folder / "store.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    return path


def refusal(url: str, file: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        settings_at(url, file)
    assert SECRET not in str(caught.value)
    return str(caught.value)


# A URL alone


def test_a_folder_is_the_root(tmp_path: Path) -> None:
    folder = tmp_path / "with space, % and ünïcödé #?"
    settings = settings_at(folder.as_uri())
    assert (settings.storage_backend, settings.storage_root) == ("filesystem", folder)
    assert (settings.key_prefix, settings.chunk_size) == ("", 4194304)
    assert settings_at(folder.as_uri().replace("file://", "file://localhost")).storage_root == folder


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://logs", ""),
        ("s3://logs/", ""),
        ("s3://logs/a", "a/"),
        ("s3://logs/a/", "a/"),
        ("s3://logs/a/b c/ü%20", "a/b c/ü%20/"),
        ("s3://logs//a", "/a/"),
        ("s3://logs/a@b:c", "a@b:c/"),
    ],
)
def test_the_path_is_the_prefix_as_it_is_written(url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    settings = settings_at(url)
    assert settings.s3 is not None
    assert (settings.storage_backend, settings.s3.bucket_name, settings.key_prefix) == ("s3", "logs", prefix)
    assert settings.chunk_size == 4194304


def test_the_region_is_that_of_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert region("s3://logs") == "aws-global"  # the server then tells the SDK the bucket's region
    profile = tmp_path / "config"
    profile.write_text("[default]\nregion = of-profile\n[profile other]\nregion = of-other\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))
    assert region("s3://logs") == "of-profile"
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert region("s3://logs") == "of-other"
    monkeypatch.setenv("AWS_PROFILE", "absent")
    assert "absent" in refusal("s3://logs")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "of-default")
    monkeypatch.delenv("AWS_PROFILE")
    assert region("s3://logs") == "of-default"
    monkeypatch.setenv("AWS_REGION", "of-region")
    assert region("s3://logs") == "of-region"
    assert region("s3://logs", write(tmp_path, {"chunk.size": "1", "storage.s3.region": "of-file"})) == "of-file"


def region(url: str, file: Path | None = None) -> str:
    s3 = settings_at(url, file).s3
    assert s3 is not None
    return s3.region


def test_the_endpoint_is_that_of_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_REGION", "r")
    assert endpoint(settings_at("s3://logs")) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert endpoint(settings_at("s3://logs")) == "http://127.0.0.1:1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    assert endpoint(settings_at("s3://logs")) == "http://127.0.0.1:2"
    file = write(tmp_path, {"chunk.size": "1", "storage.s3.endpoint.url": "http://127.0.0.1:3"})
    assert endpoint(settings_at("s3://logs", file)) == "http://127.0.0.1:3"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert endpoint(settings_at("s3://logs")) is None


def endpoint(settings: Settings) -> str | None:
    assert settings.s3 is not None
    return settings.s3.endpoint_url


def test_google_s_bucket_is_opened_with_the_default_credentials() -> None:
    settings = settings_at("gs://logs/kafka")
    assert settings.gcs is not None
    assert (settings.gcs.bucket_name, settings.key_prefix) == ("logs", "kafka/")
    assert (settings.gcs.credentials_default, settings.gcs.endpoint_url) == (True, None)


@pytest.mark.parametrize("host", ["127.0.0.1:4443", "http://127.0.0.1:4443"])
def test_google_s_emulator_is_asked_without_credentials(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    gcs = settings_at("gs://logs").gcs
    assert gcs is not None
    assert (gcs.credentials_default, gcs.endpoint_url) == (False, "http://127.0.0.1:4443")


def test_an_endpoint_of_the_file_is_not_taken_for_the_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443")
    file = write(tmp_path, {"chunk.size": "1", "storage.gcs.endpoint.url": "https://storage.example"})
    gcs = settings_at("gs://logs", file).gcs
    assert gcs is not None
    assert (gcs.credentials_default, gcs.endpoint_url) == (True, "https://storage.example")


def test_credentials_of_the_file_are_kept_for_google(tmp_path: Path) -> None:
    gcs = settings_at("gs://logs", write(tmp_path, {"chunk.size": "1", "storage.gcs.credentials.path": "key.json"})).gcs
    assert gcs is not None
    assert (gcs.credentials_default, gcs.credentials_path) == (None, tmp_path / "key.json")


def test_azure_s_account_is_that_of_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "AZURE_STORAGE_ACCOUNT" in refusal("az://logs")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    assert azure() == ("account", None, None, None)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "token")
    assert azure() == ("account", None, "token", None)
    monkeypatch.setenv("AZURE_STORAGE_KEY", SECRET)
    assert azure() == ("account", SECRET, "token", None)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=x")
    assert azure() == (None, None, None, "AccountName=x")


def azure(file: Path | None = None) -> tuple[str | None, ...]:
    """Return account, key, token and connection string."""
    options = settings_at("az://logs/kafka", file).azure
    assert options is not None
    assert options.container_name == "logs"
    assert SECRET not in repr(options)
    secrets = (options.account_key, options.sas_token, options.connection_string)
    key, token, connection = (None if secret is None else secret.get_secret_value() for secret in secrets)
    return options.account_name, key, token, connection


def test_an_account_of_the_file_is_never_joined_by_a_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", SECRET)
    assert azure(write(tmp_path, {"chunk.size": "1", "storage.azure.account.name": "mine"})) == ("mine", *[None] * 3)


# A URL overrides the settings file


def test_the_url_goes_over_the_file_and_all_else_stays(tmp_path: Path) -> None:
    texts = {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
        "storage.s3.bucket.name": "old",
        "storage.s3.region": "r",
        "storage.s3.endpoint.url": "http://127.0.0.1:1",
        "chunk.size": "7",
        "key.prefix": "old/",
        "compression.enabled": "true",
        "storage.aws.credentials.file": "keys",
    }
    broker = {f"rsm.config.{name}": text for name, text in texts.items()} | {"broker.id": "1"}
    for written in (texts, broker):
        settings = settings_at("s3://new/kafka", write(tmp_path, written))
        assert settings.s3 is not None
        assert (settings.s3.bucket_name, settings.s3.region, settings.key_prefix) == ("new", "r", "kafka/")
        assert (settings.chunk_size, settings.compression_enabled) == (7, True)
        assert settings.s3.credentials.credentials_file == tmp_path / "keys"
        assert settings_at("s3://new", write(tmp_path, written)).key_prefix == "old/"


def test_a_file_of_another_store_gives_the_rest(tmp_path: Path) -> None:
    file = write(tmp_path, {"storage.backend.class": "filesystem", "storage.root": "x", "chunk.size": "7"})
    settings = settings_at("gs://logs", file)
    assert (settings.storage_backend, settings.chunk_size) == ("gcs", 7)


# Rejected URLs


@pytest.mark.parametrize(
    "url",
    [
        "", "logs", "//logs", "S4://logs", "http://logs", "s3:logs", "s3://", "s3:///prefix", "gs://", "az:///x", "gs://a:80",
        "s3://a b\n/x", "s3://logs/a\tb", " s3://logs", "s3://logs/a ", "s3://logs/ a", 's3://"logs"', "s3://logs/a?b",
        "s3://logs/a#b", "s3://[bad", "file://host/x", "file:x", "file:///a%00b", "file:///a?b", "memory://x",
        f"s3://key:{SECRET}@logs", f"az://account/x?sig={SECRET}", f"{SECRET}://x", f"s3://[{SECRET}",
    ],
)  # fmt: skip
def test_what_names_no_store_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "r")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    refusal(url)


@pytest.mark.parametrize("url", ["s3://", "s3:logs", "s3:/logs", "gs:///logs", "az://a:80"])
def test_a_url_without_a_bucket_is_shown_as_it_was_given(url: str) -> None:
    assert f"'{url}' names no bucket: write {url[:2]}://name" in refusal(url)


def test_a_store_in_memory_is_refused_with_the_reason() -> None:
    assert "ends with its process" in refusal("memory://x")


@given(
    bucket=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    path=st.text(st.characters(codec="utf-8"), max_size=40),
)
def test_a_url_means_exactly_what_it_says_or_is_refused(bucket: str, path: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_REGION", "r")
        try:
            settings = settings_at(f"s3://{bucket}/{path}")
        except ConfigError:
            return
    assert settings.s3 is not None
    assert settings.s3.bucket_name == bucket.partition("/")[0]
    given_path = f"{bucket}/{path}".partition("/")[2]
    assert settings.key_prefix == (given_path if given_path.endswith("/") or not given_path else f"{given_path}/")
