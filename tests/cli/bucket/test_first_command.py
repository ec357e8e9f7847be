"""``ls --store s3://…`` with nothing but AWS's usual environment, each kind of credentials at a fake endpoint."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import Result, spawn, tieredstore
from tests.support.faulty_server.s3 import S3Service, document, elements
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.wire import Reply, Request
from tests.support.paths import GOLDEN

REGION = "eu-north-1"
SECRET = "a-secret-that-must-not-be-told"
START_URL = "https://portal.invalid/start"
LATER = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
SIGNED = re.compile(r"Credential=([\w-]+)/\d+/([\w-]+)/s3/")

Environment = Mapping[str, str]


class Aws(S3Service):
    """A bucket that accepts only the credentials ``key_id`` and ``token``, and the services that issue credentials."""

    def __init__(self, case: str) -> None:
        super().__init__()
        store = GOLDEN / case / "store"
        for path in filter(Path.is_file, store.rglob("*")):
            self.objects.write(f"prod/{path.relative_to(store)}", path.read_bytes(), {})
        self.key_id, self.token = "AKIDIRECT", ""
        self.asked: list[str] = []

    def answer(self, request: Request) -> Reply:
        """Answer as S3, STS, SSO's portal or a machine's metadata service."""
        if request.path.startswith(("/latest/", "/federation/")) or request.path == "/":
            return self._credentials(request)
        signed = SIGNED.search(request.headers.get("authorization", ""))
        token = request.headers.get("x-amz-security-token", "")
        if signed is None or (signed[1], token) != (self.key_id, self.token):
            return self.refusal(403, "InvalidAccessKeyId", "unknown key")
        if signed[2] != REGION:
            return self._elsewhere()
        return super().answer(request)

    def _elsewhere(self) -> Reply:
        content = elements(Code="AuthorizationHeaderMalformed", Message="the region is wrong", Region=REGION)
        return Reply(400, f"<Error>{content}</Error>".encode(), {"x-amz-bucket-region": REGION})

    def _credentials(self, request: Request) -> Reply:
        self.key_id, self.token = "ASIAFETCHED", "a-token"
        self.asked.append(f"{request.method} {request.path}")
        keys = {"SecretAccessKey": SECRET, "Expiration": LATER}
        match request.path:
            case "/latest/api/token":
                assert request.method == "PUT"
                return Reply(200, b"of-version-2", {"x-aws-ec2-metadata-token-ttl-seconds": "21600"})
            case "/latest/meta-data/iam/security-credentials/":
                return Reply(200, b"reader")
            case "/latest/meta-data/iam/security-credentials/reader":
                assert request.headers["x-aws-ec2-metadata-token"] == "of-version-2"
                held = {"Code": "Success", "AccessKeyId": self.key_id, "Token": self.token, **keys}
                return Reply(200, json.dumps(held).encode())
            case "/federation/credentials":
                assert request.headers["x-amz-sso_bearer_token"] == "cached-token"
                role = {"accessKeyId": self.key_id, "secretAccessKey": SECRET, "sessionToken": self.token}
                return Reply(200, json.dumps({"roleCredentials": {**role, "expiration": 4102444800000}}).encode())
            case _:
                assert b"WebIdentityToken=an-identity" in request.body
                held = {"AccessKeyId": self.key_id, "SessionToken": self.token, **keys}
                result = f"<AssumeRoleWithWebIdentityResult><Credentials>{elements(**held)}</Credentials>"
                whole = document("AssumeRoleWithWebIdentityResponse", f"{result}</AssumeRoleWithWebIdentityResult>")
                xml = whole.replace(b"s3.amazonaws.com/doc/2006-03-01", b"sts.amazonaws.com/doc/2011-06-15")
                return Reply(200, xml, {"Content-Type": "text/xml"})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty home, and an environment without credentials."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "TIEREDSTORE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture
def aws() -> Iterator[FaultyServer]:
    with FaultyServer(Aws("07-txn")) as server:
        yield server


def keys(_home: Path, _url: str) -> Environment:
    return {"AWS_ACCESS_KEY_ID": "AKIDIRECT", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}


def shared_credentials(home: Path, _url: str) -> Environment:
    text = f"[default]\naws_access_key_id=AKIDIRECT\naws_secret_access_key={SECRET}\n"
    (home / ".aws" / "credentials").write_text(text)
    return {"AWS_DEFAULT_REGION": REGION}


def profile(home: Path, _url: str) -> Environment:
    text = f"[work]\naws_access_key_id=AKIDIRECT\naws_secret_access_key={SECRET}\n"
    (home / ".aws" / "credentials").write_text(text)
    (home / ".aws" / "config").write_text(f"[profile work]\nregion={REGION}\n")
    return {"AWS_PROFILE": "work"}


def endpoint_of_profile(home: Path, url: str) -> Environment:
    text = f"[profile work]\nregion={REGION}\nendpoint_url={url}\naws_access_key_id=AKIDIRECT\n"
    (home / ".aws" / "config").write_text(f"{text}aws_secret_access_key={SECRET}\n")
    return {"AWS_PROFILE": "work", "AWS_ENDPOINT_URL": ""}


def sso(home: Path, url: str) -> Environment:
    lines = ["[default]", f"region={REGION}", "sso_session=work", "sso_account_id=1", "sso_role_name=reader"]
    session = ["[sso-session work]", f"sso_start_url={START_URL}", f"sso_region={REGION}"]
    (home / ".aws" / "config").write_text("\n".join([*lines, *session]))
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    token = {"startUrl": START_URL, "region": REGION, "accessToken": "cached-token", "expiresAt": LATER}
    (cache / f"{hashlib.sha1(b'work').hexdigest()}.json").write_text(json.dumps(token))
    return {"AWS_ENDPOINT_URL_SSO": url}


def web_identity(home: Path, url: str) -> Environment:
    (home / "token").write_text("an-identity")
    role = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/reader", "AWS_WEB_IDENTITY_TOKEN_FILE": str(home / "token")}
    return {**role, "AWS_ENDPOINT_URL_STS": url, "AWS_REGION": REGION}


def instance(_home: Path, url: str) -> Environment:
    return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}


KINDS: dict[Callable[[Path, str], Environment], list[str]] = {
    keys: [],
    shared_credentials: [],
    profile: [],
    endpoint_of_profile: [],
    sso: ["GET /federation/credentials"],
    web_identity: ["POST /"],
    instance: [
        "PUT /latest/api/token",
        "GET /latest/meta-data/iam/security-credentials/",
        "GET /latest/meta-data/iam/security-credentials/reader",
    ],
}
"""The requests for each kind of credentials. The credentials of a machine's role come without a region."""


def ls(monkeypatch: pytest.MonkeyPatch, environment: Environment, *arguments: str) -> Result:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    # SSO needs a new process, because the SDK looks for the cache of tokens when it is imported.
    run = spawn if "AWS_ENDPOINT_URL_SSO" in environment else tieredstore
    return run("ls", "--store", "s3://bucket/prod", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_usual_environment_is_enough(
    kind: Callable[[Path, str], Environment], aws: FaultyServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"AWS_ENDPOINT_URL": aws.url, "AWS_EC2_METADATA_DISABLED": str(kind is not instance).lower()}
    done = ls(monkeypatch, {**environment, **kind(home, aws.url)}, "--json").clean()
    assert [row["topic"] for row in done.rows[0]] == ["txn"]
    service: Any = aws.service
    assert list(dict.fromkeys(service.asked)) == KINDS[kind]
    assert SECRET not in done.text


def test_the_bucket_is_in_the_path_at_a_named_endpoint(
    aws: FaultyServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = aws.url.replace("127.0.0.1", "localhost")
    ls(monkeypatch, {"AWS_ENDPOINT_URL_S3": named, **keys(home, aws.url)}).clean()
    assert {one.request.path.split("/")[1] for one in aws.asked} == {"bucket"}


def test_without_credentials_one_sentence_names_the_ways(aws: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ls(monkeypatch, {"AWS_ENDPOINT_URL": aws.url, "AWS_EC2_METADATA_DISABLED": "true"})
    refused.fails(6, "the AWS SDK's chain (environment, profile, container, instance) found none")
    assert refused.stderr.count("\n") == 1


def test_an_encrypted_bucket_names_the_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer(Aws("08-keyring")) as aws:
        environment = {"AWS_ENDPOINT_URL": aws.url, **keys(home, aws.url)}
        listed = ls(monkeypatch, environment)
        assert listed.code == 0
        assert "keyring" in listed.text
        assert listed.stderr == (
            "tieredstore: the segments are encrypted: reading their records needs the private key of 'key1' and "
            "'key2', in a settings file as encryption.key.pairs.key1.private.key.file; tieredstore init writes one\n"
        )
        refused = tieredstore("cat", "--store", "s3://bucket/prod", "keyring", "--last", 1)
        refused.fails(4, "the segment is encrypted (key pair 'key2') but the settings have no key pairs")
