"""Credentials of the cloud stores: chosen once, named in the log, never switched, and secrets never shown."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.credentials import Credentials

from tests.support.network.fault_proxy import Answer, FaultProxy, Seen
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.process import unanswered_port
from tests.support.stores.clouds import quick
from tests.support.stores.url_settings import settings_at
from tests.support.waiting import wait_until
from tieredstore.backends.azure.options import AccountKey, AzureDefault, AzureOptions, ConnectionString, SasToken
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.gcs.client import parse_credentials
from tieredstore.backends.gcs.options import (
    Anonymous,
    ApplicationDefault,
    CredentialsFile,
    CredentialsJson,
    GcsOptions,
)
from tieredstore.backends.gcs.options import (
    Credentials as GcsCredentials,
)
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import AccessDeniedError, ConfigError, StoreUnavailableError

SECRET = "c2VjcmV0LXNlY3JldA=="


@pytest.fixture
def proxy(fake_gcs: GcsServer) -> Iterator[FaultProxy]:
    with FaultProxy(fake_gcs.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def bucket(fake_gcs: GcsServer) -> str:
    return fake_gcs.make_bucket()


def gcs(proxy: FaultProxy, bucket: str, credentials: GcsCredentials, **options: Any) -> GcsObjectStore:
    return GcsObjectStore(GcsOptions(bucket, credentials, proxy.url, **options), retries=quick())


def authorizations(proxy: FaultProxy, count: int = 1) -> list[str | None]:
    wait_until(lambda: len(proxy.seen) >= count)
    seen: list[Seen] = list(proxy.seen)
    return [{name.lower(): value for name, value in one.headers.items()}.get("authorization") for one in seen]


def service_account(token_uri: str = "https://oauth2.example/token") -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "type": "service_account",
        "client_email": "robot@project.example",
        "private_key": pem,
        "private_key_id": "1",
        "token_uri": token_uri,
    }


def test_anonymous_requests_bear_no_identity(proxy: FaultProxy, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), closing(gcs(proxy, bucket, Anonymous())) as store:
        store.put("object", b"x")
    assert authorizations(proxy) == [None]
    assert "without an identity" in caplog.text


def test_a_token_alone_is_taken_and_never_told(
    proxy: FaultProxy, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    identity = CredentialsJson(json.dumps({"access_token": SECRET}))
    with caplog.at_level(logging.DEBUG), closing(gcs(proxy, bucket, identity)) as store:
        store.put("object", b"x")
        assert SECRET not in repr(store) + repr(store.options) + caplog.text
    assert authorizations(proxy) == [f"Bearer {SECRET}"]
    assert "the credentials of the settings" in caplog.text


def test_a_refused_token_is_denied_and_nothing_else_is_tried(proxy: FaultProxy, bucket: str) -> None:
    identity = CredentialsJson(json.dumps({"access_token": SECRET}))
    proxy.plan(Answer(401), times=None)
    with closing(gcs(proxy, bucket, identity)) as store, pytest.raises(AccessDeniedError) as caught:
        store.get("object")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert set(authorizations(proxy)) == {f"Bearer {SECRET}"}


def test_a_service_account_fetches_its_token(proxy: FaultProxy, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    proxy.plan(Answer(200, b'{"access_token": "fetched", "expires_in": 3600}'), path="/token")
    info = service_account(f"{proxy.url}/token")
    with caplog.at_level(logging.INFO), closing(gcs(proxy, bucket, CredentialsJson(json.dumps(info)))) as store:
        store.put("object", b"x")
        store.get("object")
    assert authorizations(proxy, 3)[1:] == ["Bearer fetched", "Bearer fetched"]
    assert "robot@project.example" in caplog.text
    assert "PRIVATE KEY" not in caplog.text


def test_a_token_that_cannot_be_fetched_is_denied_or_unavailable(proxy: FaultProxy, bucket: str) -> None:
    info = service_account(f"{proxy.url}/token")
    with closing(gcs(proxy, bucket, CredentialsJson(json.dumps(info)))) as store:
        proxy.plan(Answer(400, b'{"error": "invalid_grant"}'), path="/token", times=None)
        with pytest.raises(AccessDeniedError, match="no usable credentials"):
            store.get("object")
    with unanswered_port() as port:
        unreachable = service_account(f"http://127.0.0.1:{port}/token")
        with (
            closing(gcs(proxy, bucket, CredentialsJson(json.dumps(unreachable)))) as store,
            pytest.raises(StoreUnavailableError),
        ):
            store.get("object")


def test_a_file_that_changes_is_read_again(proxy: FaultProxy, bucket: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"access_token": "first"}')
    with closing(gcs(proxy, bucket, CredentialsFile(file, reread_s=0))) as store:
        store.put("object", b"x")
        file.write_text('{"access_token": "the second"}')
        store.get("object")
        file.write_text("{")
        # The store uses the credentials in the file or raises an error, but never the old credentials or none.
        with pytest.raises(ConfigError, match=str(file)):
            store.get("object")
        file.unlink()
        with pytest.raises(ConfigError, match="cannot be read"):
            store.get("object")
        file.write_text('{"access_token": "third"}')
        store.get("object")
    assert authorizations(proxy, 3) == ["Bearer first", "Bearer the second", "Bearer third"]


def test_an_absent_file_is_an_error_at_the_first_request(proxy: FaultProxy, bucket: str, tmp_path: Path) -> None:
    store = gcs(proxy, bucket, CredentialsFile(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="absent"):
        store.get("object")


def test_default_credentials_are_found_and_told(
    proxy: FaultProxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(service_account(f"{proxy.url}/token")))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    proxy.plan(Answer(200, b'{"access_token": "fetched", "expires_in": 3600}'), path="/token")
    with caplog.at_level(logging.INFO), closing(gcs(proxy, bucket, ApplicationDefault())) as store:
        store.put("object", b"x")
    assert "application default credentials: service_account.Credentials of robot@project.example" in caplog.text


def test_without_default_credentials_nothing_is_asked_anonymously(
    proxy: FaultProxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    with closing(gcs(proxy, bucket, ApplicationDefault())) as store, pytest.raises(AccessDeniedError, match="absent"):
        store.get("object")
    assert proxy.seen == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json SECRETSECRET",
        '["SECRETSECRET"]',
        "null",
        '{"type": "SECRETSECRET"}',
        '{"access_token": 5}',
        '{"type": "service_account", "private_key": "SECRETSECRET"}',
        '{"type": "service_account", "private_key": "SECRETSECRET", "client_email": "x", "token_uri": "y"}',
        '{"type": "authorized_user", "refresh_token": "SECRETSECRET"}',
        '{"type": "external_account", "audience": "SECRETSECRET"}',
        '{"type": "external_account_authorized_user", "refresh_token": "SECRETSECRET"}',
        '{"type": ["service_account"]}',
        '{"type": "impersonated_service_account", "source_credentials": "SECRETSECRET"}',
    ],
)
def test_credentials_that_cannot_be_used_are_an_error_that_quotes_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match="Google credentials") as caught:
        parse_credentials(text.encode())
    assert "SECRETSECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        ({"access_token": "x"}, "google.oauth2.credentials"),
        (service_account(), "google.oauth2.service_account"),
        (
            {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"},
            "google.oauth2.credentials",
        ),
        (
            {
                "type": "external_account",
                "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                "token_url": "https://sts.googleapis.com/v1/token",
                "credential_source": {"file": "/token"},
            },
            "google.auth.identity_pool",
        ),
    ],
)
def test_google_s_kinds_of_credentials_are_known(info: dict[str, Any], kind: str) -> None:
    credentials = parse_credentials(json.dumps(info).encode())
    assert isinstance(credentials, Credentials)
    assert type(credentials).__module__ == kind


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"default": "true"}, ApplicationDefault()),
        ({"default": "false"}, Anonymous()),
        ({"json": '{"access_token": "x"}'}, CredentialsJson('{"access_token": "x"}')),
        ({"path": "/etc/credentials.json"}, CredentialsFile(Path("/etc/credentials.json"))),
    ],
)
def test_the_settings_choose_google_s_identity(properties: dict[str, str], expected: GcsCredentials) -> None:
    settings = settings_from(
        {
            "storage.backend.class": "gcs",
            "chunk.size": "4194304",
            "storage.gcs.bucket.name": "bucket",
            **{f"storage.gcs.credentials.{name}": value for name, value in properties.items()},
        }
    )
    assert GcsOptions.from_settings(settings).credentials == expected


def azure_settings(**azure: str) -> AzureOptions:
    names = {f"storage.azure.{name.replace('_', '.')}": value for name, value in azure.items()}
    base = {"storage.backend.class": "azure", "chunk.size": "4194304", "storage.azure.container.name": "c"}
    return AzureOptions.from_settings(settings_from({**base, **names}))


def test_the_settings_choose_azure_s_identity() -> None:
    own = "https://name.blob.core.windows.net"
    options = azure_settings(account_name="name", account_key="key", sas_token="sas")
    assert (options.credentials, options.account_url) == (AccountKey("name", "key"), own)
    options = azure_settings(account_name="name", sas_token="sas")
    assert (options.credentials, options.account_url) == (SasToken("sas"), own)
    options = azure_settings(account_name="name")
    assert (options.credentials, options.account_url) == (AzureDefault(), own)
    options = azure_settings(sas_token="sas", endpoint_url="https://elsewhere")
    assert (options.credentials, options.account_url) == (SasToken("sas"), "https://elsewhere")
    assert azure_settings(connection_string="text").credentials == ConnectionString("text")


@pytest.fixture
def nobody() -> Iterator[int]:
    """Yield a port without a listener."""
    with unanswered_port() as port:
        yield port


@pytest.mark.parametrize("identity", [AccountKey("name", SECRET), SasToken(f"sv=1&sig={SECRET}")], ids=["key", "sas"])
def test_azure_s_secrets_are_in_no_message(
    identity: AccountKey | SasToken, caplog: pytest.LogCaptureFixture, nobody: int
) -> None:
    url = f"http://127.0.0.1:{nobody}/name"
    store = AzureObjectStore(AzureOptions("c", identity, url), retries=quick())
    operations: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.put("k", b"x"),
        lambda: list(store.list()),
        lambda: store.delete(["k"]),
    ]
    messages = [repr(store), repr(store.options), store.identity]
    with caplog.at_level(logging.DEBUG), closing(store):
        for operation in operations:
            with pytest.raises(StoreUnavailableError) as caught:
                operation()
            messages.append("".join(traceback.format_exception(caught.value)))
    text = "".join(
        [*messages, *(record.getMessage() for record in caplog.records if record.name.startswith("tieredstore"))]
    )
    assert SECRET not in text
    assert SECRET.rstrip("=") not in text
    assert "the account name" in text or "shared access signature" in text


@pytest.mark.parametrize(
    "text", ["", "nonsense SECRETSECRET", "AccountKey=SECRETSECRET", "a=b;AccountKey=SECRETSECRET;;x"]
)
def test_a_malformed_connection_string_is_an_error_that_quotes_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match="is malformed") as caught:
        AzureObjectStore(AzureOptions("c", ConnectionString(text)))
    assert "SECRETSECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_connection_string_says_where_the_container_is() -> None:
    key = base64.b64encode(b"key").decode()
    text = f"DefaultEndpointsProtocol=https;AccountName=name;AccountKey={key};EndpointSuffix=core.windows.net"
    assert (
        AzureObjectStore(AzureOptions("c", ConnectionString(text))).identity == "https://name.blob.core.windows.net/c"
    )
    shared = "BlobEndpoint=https://name.example/;SharedAccessSignature=sv=1&sig=SECRETSECRET"
    assert AzureObjectStore(AzureOptions("c", ConnectionString(shared))).identity == "https://name.example/c"


def test_without_azure_s_default_credentials_requests_are_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    store = AzureObjectStore(AzureOptions("c", AzureDefault(), "https://127.0.0.1:1/name"), retries=quick())
    with closing(store), pytest.raises(AccessDeniedError, match="no usable credentials"):
        store.get("object")


def test_a_token_is_not_sent_in_the_clear() -> None:
    store = AzureObjectStore(AzureOptions("c", AzureDefault(), "http://127.0.0.1:1/name"))
    with pytest.raises(ConfigError, match="HTTPS"):
        store.get("object")


def test_azure_s_url_finds_the_account_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ACCOUNT", "KEY", "SAS_TOKEN", "CONNECTION_STRING")

    def options(**variables: str) -> AzureOptions:
        for name in names:
            monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
        for name, text in variables.items():
            monkeypatch.setenv(f"AZURE_STORAGE_{name}", text)
        parsed = AzureOptions.from_settings(settings_at("az://container/prefix"))
        return AzureOptions(parsed.container, parsed.credentials, parsed.account_url)

    own = "https://name.blob.core.windows.net"
    assert options(ACCOUNT="name") == AzureOptions("container", AzureDefault(), own)
    parsed = options(ACCOUNT="name", KEY="k", SAS_TOKEN="s")
    assert parsed == AzureOptions("container", AccountKey("name", "k"), own)
    assert options(ACCOUNT="name", SAS_TOKEN="s") == AzureOptions("container", SasToken("s"), own)
    parsed = options(ACCOUNT="name", CONNECTION_STRING="text")
    assert parsed == AzureOptions("container", ConnectionString("text"))
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT"):
        options()
    with pytest.raises(ConfigError, match="without credentials"):
        settings_at("az://container?sig=x")


def test_a_pickled_store_keeps_its_identity(proxy: FaultProxy, bucket: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"access_token": "of the file"}')
    for identity in (CredentialsJson('{"access_token": "of the text"}'), CredentialsFile(file)):
        with closing(gcs(proxy, bucket, identity)) as store:
            store.put("object", b"x")
            with closing(pickle.loads(pickle.dumps(store))) as copy:
                copy.get("object")
    text, of_file = "Bearer of the text", "Bearer of the file"
    assert authorizations(proxy, 4) == [text, text, of_file, of_file]
