"""Each service, over HTTP: it opens its own sealed keys, and each refusal is one sentence in the right error class."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import boto3
import pytest
from azure.core.credentials import AccessToken
from moto.server import ThreadedMotoServer

from tests.support.network.key_services import (
    TOKEN,
    Answer,
    AzureVault,
    GoogleKms,
    KeyService,
    Vault,
    make_certificate,
    serving,
)
from tieredstore.errors import (
    ConfigError,
    KeyRingError,
    KeyServiceDeniedError,
    KeyServiceError,
    KeyServiceUnavailableError,
)
from tieredstore.kms import base
from tieredstore.kms.azure import AzureKeySource
from tieredstore.kms.base import KeySource, ask_service, key_source
from tieredstore.kms.gcp import GcpKeySource
from tieredstore.process.retry import RetryPolicy

pytestmark = pytest.mark.slow

SECRET = bytes(range(32))
RING = "projects/p/locations/l/keyRings/r/cryptoKeys"


def once(call: Callable[[], bytes]) -> bytes:
    """Make the call as the key sources do, but without retries."""
    return ask_service("asking", call, RetryPolicy(attempts=1))


@dataclass
class Case:
    """A running service, two of its keys, and its refusals."""

    service: KeyService
    first: Callable[[], KeySource]
    second: Callable[[], KeySource]
    absent: Callable[[], KeySource]
    denied: Answer
    throttled: Answer = field(default_factory=lambda: Answer(429, b'{"errors": ["slow down"]}'))


class StaticToken:
    """Azure's token, without a token request."""

    def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        assert scopes
        return AccessToken(TOKEN, int(time.time()) + 3600)


@contextmanager
def aws(monkeypatch: pytest.MonkeyPatch) -> Generator[Case]:
    """Yield moto's server with a refusing server in front."""
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "eu-central-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        client = boto3.client("kms", endpoint_url=url)
        keys = [client.create_key()["KeyMetadata"].get("Arn", "") for _ in range(2)]
        gone = keys[0].rpartition("/")[0] + "/00000000-0000-0000-0000-000000000000"
        with serving(KeyService()) as refusing:
            error = b'{"__type": "AccessDeniedException", "message": "User is not authorized to perform: kms:Decrypt"}'
            throttled = Answer(400, b'{"__type": "ThrottlingException", "message": "Rate exceeded"}')

            def at(key: str) -> Callable[[], KeySource]:
                # The refusing server gives the planned answers, and moto's server all others.
                return lambda: key_source("aws", key, refusing.url if refusing.planned else url)

            yield Case(refusing, at(keys[0]), at(keys[1]), at(gone), Answer(400, error), throttled)
    finally:
        server.stop()


@contextmanager
def gcp(_monkeypatch: pytest.MonkeyPatch) -> Generator[Case]:
    with serving(GoogleKms()) as service:
        assert isinstance(service, GoogleKms)
        service.keys.add(f"{RING}/one")
        service.keys.add(f"{RING}/two")

        def at(key: str) -> Callable[[], KeySource]:
            return lambda: key_source("gcp", f"{RING}/{key}", service.url)

        denied = b'{"error": {"code": 403, "message": "Permission denied on resource", "status": "PERMISSION_DENIED"}}'
        yield Case(service, at("one"), at("two"), at("three"), Answer(403, denied))


@contextmanager
def vault(monkeypatch: pytest.MonkeyPatch) -> Generator[Case]:
    with serving(Vault()) as service:
        assert isinstance(service, Vault)
        service.keys.add("transit/one")
        service.keys.add("team/transit/two")
        monkeypatch.setenv("VAULT_ADDR", service.url)
        monkeypatch.setenv("VAULT_TOKEN", TOKEN)

        def at(key: str) -> Callable[[], KeySource]:
            return lambda: key_source("vault", key)

        denied = Answer(403, b'{"errors": ["permission denied"]}')
        yield Case(service, at("one"), at("team/transit/two"), at("three"), denied)


@contextmanager
def azure(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Generator[Case]:
    certificate = make_certificate(folder)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    service = AzureVault()
    service.rotate("one")
    service.rotate("two")
    challenge = 'Bearer authorization="https://login.example/tenant", resource="https://vault.example"'
    service.headers["WWW-Authenticate"] = challenge
    with serving(service, certificate=certificate):

        def at(version: str) -> Callable[[], KeySource]:
            url = f"{service.url}/keys/kafka/{version}"
            return lambda: AzureKeySource(url, StaticToken(), verify_challenge_resource=False)

        denied = Answer(403, b'{"error": {"code": "Forbidden", "message": "no keys/unwrapKey permission"}}')
        yield Case(service, at("one"), at("two"), at("three"), denied)


@pytest.fixture(params=["aws", "gcp", "azure", "vault"])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Case]:
    opened = azure(monkeypatch, tmp_path) if request.param == "azure" else globals()[request.param](monkeypatch)
    with opened as running:
        yield running


@pytest.fixture
def google() -> Iterator[GoogleKms]:
    service = GoogleKms()
    service.keys.add(f"{RING}/one")
    with serving(service):
        yield service


def test_what_a_key_seals_it_opens_and_the_secret_is_not_to_be_seen(case: Case) -> None:
    sealed = case.first().seal(SECRET)
    assert SECRET not in sealed
    assert case.first().open(sealed) == SECRET


def test_another_key_and_damage_are_told_as_that(case: Case) -> None:
    sealed = case.first().seal(SECRET)
    # Azure opens a text with the key version that sealed it, whatever key the settings name.
    if not sealed.startswith(b"one:"):
        # moto checks the key's rights before the ciphertext, so it may answer that access is denied.
        with pytest.raises((KeyRingError, KeyServiceDeniedError)):
            once(lambda: case.second().open(sealed))
    for damaged in (sealed[:-4] + bytes(byte ^ 1 for byte in sealed[-4:]), sealed[:-30], b"nothing"):
        with pytest.raises((KeyRingError, KeyServiceError)) as caught:
            once(partial(case.first().open, damaged))
        assert not caught.value.retryable


def test_a_key_that_is_not_there_is_refused(case: Case) -> None:
    with pytest.raises((KeyServiceError, KeyRingError)) as caught:
        case.absent().seal(SECRET)
    assert not caught.value.retryable


def test_who_may_not_is_told_so_and_not_tried_again(case: Case) -> None:
    sealed = case.first().seal(SECRET)
    case.service.planned.extend([case.denied] * 9)
    before = len(case.service.requests)
    with pytest.raises(KeyServiceDeniedError, match="does not allow the use of"):
        ask_service("opening", lambda: case.first().open(sealed))
    # There may be two requests, because Azure's SDK also asks for the key.
    assert len(case.service.requests) - before <= 2


@pytest.mark.parametrize("kind", ["throttled", "broken", "html"])
def test_transient_errors_are_retried(case: Case, kind: str) -> None:
    sealed = case.first().seal(SECRET)
    answers = {
        "throttled": case.throttled,
        "broken": Answer(503, b'{"errors": ["down"]}'),
        "html": Answer(502, b"<h1>"),
    }
    case.service.planned.extend([answers[kind]] * 2)
    policy = RetryPolicy(attempts=6, base_delay_s=0.01, max_delay_s=0.02)
    assert ask_service("opening", lambda: case.first().open(sealed), policy) == SECRET
    case.service.planned.extend([answers[kind]] * 50)
    with pytest.raises(KeyServiceUnavailableError, match=r"opening failed \(2 of 2 tries\)") as caught:
        ask_service(
            "opening", lambda: case.first().open(sealed), RetryPolicy(attempts=2, base_delay_s=0, max_delay_s=0)
        )
    assert caught.value.exit_code == 75


def test_an_answer_that_drips_ends_by_the_deadline(case: Case) -> None:
    sealed = case.first().seal(SECRET)
    case.service.planned.extend([Answer(200, b"{" + b" " * 10_000, drip_s=0.1)] * 4)
    started = time.monotonic()
    with pytest.raises(KeyServiceUnavailableError, match="did not answer within"):
        ask_service("opening", lambda: case.first().open(sealed), RetryPolicy(attempts=1, timeout_s=1))
    assert time.monotonic() - started < 300


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", TOKEN)
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "eu-central-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    nobody = "http://127.0.0.1:9"
    azures = AzureKeySource("https://127.0.0.1:9/keys/kafka", StaticToken())
    sources = [key_source("aws", "k", nobody), key_source("gcp", f"{RING}/k", nobody), key_source("vault", "k", nobody)]
    for source in [*sources, azures]:
        with pytest.raises(KeyServiceUnavailableError):
            source.seal(SECRET)


def test_answers_that_say_nothing_are_errors_of_ours(case: Case) -> None:
    sealed = case.first().seal(SECRET)
    for body in (b"{}", b"[]", b"null", b'{"data": null}', b"<html>"):
        case.service.planned.extend([Answer(200, body)] * 2)
        for call in (lambda: case.first().seal(SECRET), lambda: case.first().open(sealed)):
            try:
                answered = once(call)
            except (KeyServiceError, KeyRingError):
                continue
            # If Azure's SDK cannot get the key, it lets the service do the work, so the call may succeed.
            assert answered == SECRET or case.first().open(answered) == SECRET
        case.service.planned.clear()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("InvalidCiphertextException", KeyRingError),
        ("IncorrectKeyException", KeyRingError),
        ("DisabledException", KeyServiceError),
        ("NotFoundException", KeyServiceError),
        ("ExpiredTokenException", KeyServiceDeniedError),
        ("UnrecognizedClientException", KeyServiceDeniedError),
        ("KMSInternalException", KeyServiceUnavailableError),
        ("DependencyTimeoutException", KeyServiceUnavailableError),
    ],
)
def test_errors_of_aws_have_the_right_class(code: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with serving(KeyService()) as service:
        service.planned.append(Answer(400, b'{"__type": "%s", "message": "no"}' % code.encode()))
        with pytest.raises(error) as caught:
            key_source("aws", "arn:aws:kms:eu-north-1:123456789012:key/k", service.url).open(b"sealed")
    assert type(caught.value) is error


def test_bytes_that_changed_on_the_way_to_google_are_noticed(google: GoogleKms) -> None:
    source = GcpKeySource.from_settings(f"{RING}/one", google.url)
    sealed = source.seal(SECRET)
    google.planned.append(
        Answer(200, b'{"ciphertext": "AAAA", "ciphertextCrc32c": "1", "verifiedPlaintextCrc32c": true}')
    )
    with pytest.raises(KeyServiceUnavailableError, match="bytes changed"):
        source.seal(SECRET)
    google.planned.append(Answer(200, b'{"plaintext": "AAAA", "plaintextCrc32c": "1"}'))
    with pytest.raises(KeyServiceUnavailableError, match="bytes changed"):
        source.open(sealed)


def test_azures_key_may_be_rotated_and_read_by_who_may_not_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with azure(monkeypatch, tmp_path) as case:
        assert isinstance(case.service, AzureVault)
        latest = AzureKeySource(f"{case.service.url}/keys/kafka", StaticToken(), verify_challenge_resource=False)
        sealed = latest.seal(SECRET)
        assert sealed.startswith(b"two:")
        case.service.rotate("three")
        assert latest.open(sealed) == SECRET
        assert latest.seal(SECRET).startswith(b"three:")
        case.service.may_get = False
        with pytest.raises(KeyServiceDeniedError, match="does not say which version"):
            latest.seal(SECRET)
        fixed = AzureKeySource(f"{case.service.url}/keys/kafka/two", StaticToken(), verify_challenge_resource=False)
        assert latest.open(fixed.seal(SECRET)) == SECRET


@pytest.mark.parametrize(
    ("service", "key", "endpoint", "sentence"),
    [
        ("gcp", "kafka", None, "is not the name of a key of Google Cloud KMS"),
        ("azure", "kafka", None, "is not a key of a vault"),
        ("azure", "http://vault/keys/kafka", None, "is not a key of a vault"),
        ("azure", "https://user:secret@vault/keys/kafka", None, "is not a key of a vault"),
        ("azure", "https://vault/keys/kafka", "https://other", "has no meaning for azure"),
        ("vault", "../sys/seal", "http://vault", "is not a key of Vault's transit engine"),
        ("vault", "kafka", None, "set VAULT_ADDR"),
        ("kms", "kafka", None, "neither one of aws, gcp, azure, vault nor a service of"),
    ],
)
def test_names_that_can_be_none_are_refused_before_anybody_is_asked(
    service: str, key: str, endpoint: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VAULT_ADDR", raising=False)
    with pytest.raises(ConfigError, match=sentence) as caught:
        key_source(service, key, endpoint)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 403, 418, 500])
def test_secrets_that_vault_echoes_are_not_repeated(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    sent = base64.b64encode(SECRET).decode()
    with vault(monkeypatch) as case:
        body = json.dumps({"errors": [f"cannot parse plaintext={sent} of token={'hvs.' + 'CAES-_x' * 12}"]}).encode()
        case.service.planned.append(Answer(status, body))
        with pytest.raises((KeyServiceError, KeyRingError), match="cannot parse") as caught:
            once(lambda: case.first().seal(SECRET))
    assert sent[:40] not in str(caught.value)
    assert "CAES" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_neither_key_nor_token_follows_a_redirection(case: Case, status: int) -> None:
    sealed = case.first().seal(SECRET)
    elsewhere: KeyService
    with serving(KeyService()) as elsewhere:
        case.service.headers["Location"] = f"{elsewhere.url}/v1/there"
        for call in (lambda: case.first().seal(SECRET), lambda: case.first().open(sealed)):
            case.service.planned.extend([Answer(status)] * 2)
            with pytest.raises(KeyServiceError):
                once(call)
            case.service.planned.clear()
        assert elsewhere.requests == []


@pytest.mark.parametrize("body", [b"", b"{}"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_refused_as_one(case: Case, status: int, body: bytes) -> None:
    sealed = case.first().seal(SECRET)
    case.service.headers["Location"] = "http://elsewhere.example/"
    for call in (lambda: case.first().seal(SECRET), lambda: case.first().open(sealed)):
        case.service.planned.extend([Answer(status, body)] * 2)
        # The messages of Azure's client have the status's phrase instead of its number.
        with pytest.raises(
            KeyServiceError, match=rf"refuses to use .*({status}|{HTTPStatus(status).phrase})"
        ) as caught:
            once(call)
        case.service.planned.clear()
        assert not caught.value.retryable


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_instead_of_aws_is_refused(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with serving(KeyService()) as service:
        service.headers["Location"] = "http://elsewhere.example/"
        service.planned.append(Answer(status))
        source = key_source("aws", "arn:aws:kms:eu-north-1:123456789012:key/k", service.url)
        with pytest.raises(KeyServiceError, match=rf"refuses to use .*\({status}\)") as caught:
            source.seal(SECRET)
    assert not caught.value.retryable


@pytest.mark.parametrize("service", ["aws", "gcp"])
def test_an_endpoint_of_credentials_that_drips_ends_by_the_deadline(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The client looks for credentials when it is made, before any request to the service."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "GCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(base, "POLICY", RetryPolicy(attempts=1, timeout_s=1))
    with serving(KeyService()) as endpoint:
        host = endpoint.url.removeprefix("http://")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint.url}/keys")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        monkeypatch.setenv("GCE_METADATA_IP", host)
        endpoint.headers["Metadata-Flavor"] = "Google"
        endpoint.planned.extend([Answer(200, b"{" + b" " * 10_000, drip_s=0.1)] * 9)
        key = f"{RING}/one" if service == "gcp" else "alias/one"
        started = time.monotonic()
        with pytest.raises(KeyServiceUnavailableError, match="did not answer within"):
            key_source(service, key, None)
        assert time.monotonic() - started < 300
        assert endpoint.requests
