"""Options of the cloud stores from settings and URLs, valid and rejected."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.network.socks_proxy import proxy_at
from tests.support.stores.url_settings import settings_at
from tieredstore.backends.azure.options import AzureDefault, AzureOptions
from tieredstore.backends.cloud.options import CloudOptions
from tieredstore.backends.gcs.options import ApplicationDefault, GcsOptions
from tieredstore.backends.registry import store_from_settings
from tieredstore.backends.s3.options import S3Options
from tieredstore.config import Settings, settings_from
from tieredstore.errors import ConfigError

OPTIONS: dict[str, type[S3Options | GcsOptions | AzureOptions]] = {
    "s3": S3Options,
    "gcs": GcsOptions,
    "azure": AzureOptions,
}
SMALLEST = {
    "s3": {"bucket.name": "place", "region": "r"},
    "gcs": {"bucket.name": "place", "credentials.default": "false"},
    "azure": {"container.name": "place", "account.name": "a"},
}
SECRET = "a-secret-that-must-not-be-told"


def settings_of(cloud: str, others: dict[str, str] | None = None, **own: str) -> Settings:
    """Return the minimal settings of a cloud, with more properties: ``own`` get the prefix of the cloud, ``others``
    have complete names.
    """
    named = SMALLEST[cloud] | {name.replace("_", "."): text for name, text in own.items()}
    properties = {"storage.backend.class": cloud, "chunk.size": "4194304"}
    return settings_from(
        properties | {f"storage.{cloud}.{name}": text for name, text in named.items()} | (others or {})
    )


@pytest.mark.parametrize("cloud", OPTIONS)
def test_the_settings_set_the_limits(cloud: str) -> None:
    options: CloudOptions = OPTIONS[cloud].from_settings(settings_of(cloud))
    assert (options.call_timeout_s, options.attempt_timeout_s) == (300, None)
    settings = settings_of(cloud, api_call_timeout="1500", api_call_attempt_timeout="250")
    options = OPTIONS[cloud].from_settings(settings)
    assert (options.call_timeout_s, options.attempt_timeout_s) == (1.5, 0.25)


def test_the_settings_of_azure_s_uploads() -> None:
    azure = AzureOptions.from_settings(settings_of("azure"))
    assert (azure.upload_parallelism, azure.send_md5) == (4, True)
    azure = AzureOptions.from_settings(settings_of("azure", upload_parallelism="7", upload_md5_enabled="false"))
    assert (azure.upload_parallelism, azure.send_md5) == (7, False)


@pytest.mark.parametrize("cloud", OPTIONS)
def test_there_are_connections_for_all_requests_that_a_reader_makes_at_once(cloud: str) -> None:
    more = {"fetch.parallelism": "40", "fetch.manifest.cache.thread.pool.size": "9"}
    for expected, given in ((16, {"fetch.manifest.cache.thread.pool.size": "2"}), (49, more)):
        assert OPTIONS[cloud].from_settings(settings_of(cloud, given)).concurrency == expected


@pytest.mark.parametrize("cloud", OPTIONS)
def test_the_settings_name_the_proxy(cloud: str) -> None:
    proxy = {"host": "proxy", "port": "1080", "username": "u", "password": "p"}
    settings = settings_of(cloud, {f"storage.proxy.{name}": text for name, text in proxy.items()})
    assert OPTIONS[cloud].from_settings(settings).proxy == proxy_at("proxy", 1080, "u", "p")


@pytest.mark.parametrize("url", [f"https://user:{SECRET}@host/place", f"https://host/place?sig={SECRET}"])
@pytest.mark.parametrize("name", ["s3.bucket.name", "gcs.bucket.name", "azure.container.name", "azure.account.name"])
def test_a_url_in_place_of_a_name_is_refused_without_its_secret(name: str, url: str) -> None:
    cloud, _, _ = name.partition(".")
    with pytest.raises(ConfigError, match="not a URL") as caught:
        OPTIONS[cloud].from_settings(settings_of(cloud, {f"storage.{name}": url}))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "identity", "credentials"),
    [
        ("s3://place/prefix", "s3://place", None),
        ("gs://place/prefix", "gs://place", ApplicationDefault()),
        ("az://place/prefix", "https://account.blob.core.windows.net/place", AzureDefault()),
    ],
)
def test_a_url_names_the_place(url: str, identity: str, credentials: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "r")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    store: Any = store_from_settings(settings_at(url))
    assert store.identity == identity
    assert store.options.credentials == credentials
    store.close()
