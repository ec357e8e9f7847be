"""Who asks Google Cloud Storage: the identity that the settings name, and never another. It is logged when chosen."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from google.auth.credentials import AnonymousCredentials, Credentials

from tieredstore.backends.cloud.watched_file import WatchedFile
from tieredstore.backends.gcs.options import Anonymous, CredentialsFile, CredentialsJson, GcsOptions
from tieredstore.errors import ConfigError

_logger: Final = logging.getLogger(__name__)

SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
"""What tokens are asked for: to read, write and delete objects."""

_AWS_TOKEN: Final = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105  the name of a kind of token


def chosen_credentials(options: GcsOptions, request: object) -> Credentials:
    """The credentials for ``options``; what was chosen is logged, without any secret.

    ``request`` is Google's transport for requests that look for credentials. ConfigError for a text or file that holds
    none; what the SDK raises where its own search finds none.
    """
    chosen = options.credentials
    if isinstance(chosen, Anonymous):
        _logger.info("%s: requests are made without an identity (storage.gcs.credentials.default=false)", options.url)
        return _anonymous()
    if isinstance(chosen, CredentialsJson):
        credentials = parse_credentials(chosen.text.encode())
        _logger.info(
            "%s: requests are made with the credentials of the settings: %s", options.url, described(credentials)
        )
        return credentials
    if isinstance(chosen, CredentialsFile):
        file = WatchedFile(chosen.path, parse_credentials, interval_s=chosen.reread_s)
        _logger.info("%s: requests are made with the credentials in %s", options.url, chosen.path)
        return WatchedCredentials(file)
    credentials = _application_default(request)
    _logger.info("%s: requests are made with application default credentials: %s", options.url, described(credentials))
    return credentials


def described(credentials: Credentials) -> str:
    """The kind of credentials and, where they tell it, whose they are."""
    kind = f"{type(credentials).__module__.rpartition('.')[2]}.{type(credentials).__name__}"
    whose = getattr(credentials, "service_account_email", None)
    return f"{kind} of {whose}" if whose else kind


def parse_credentials(raw: bytes) -> Credentials:
    """The credentials of a JSON text: a file of Google's for an account, or an object with only ``access_token``.

    ConfigError, which quotes nothing of the text, for anything else.
    """
    try:
        content: object = json.loads(raw)
    except ValueError as error:
        raise ConfigError("the Google credentials are not JSON") from error
    if not isinstance(content, dict):
        raise ConfigError("the Google credentials are not a JSON object")
    info = cast("dict[str, object]", content)
    kind = info.get("type")
    if kind is None and isinstance(info.get("access_token"), str):
        return _of_token(info)
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        known = ", ".join(_KINDS)
        raise ConfigError(f"the Google credentials have no type that is known here ({known}), nor an access_token")
    try:
        credentials = make(info)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # The SDK's own sentence may quote the text: it says which field, and so does its class for who debugs.
        raise ConfigError(f"the Google credentials of type {kind} are incomplete or malformed") from error
    return cast("Credentials", credentials)


def _of_token(info: Mapping[str, object]) -> Credentials:
    return cast("Credentials", _module("google.oauth2.credentials").Credentials(info["access_token"]))


def _service_account(info: Mapping[str, object]) -> object:
    kind = _module("google.oauth2.service_account").Credentials
    return kind.from_service_account_info(info, scopes=SCOPES)


def _authorized_user(info: Mapping[str, object]) -> object:
    return _module("google.oauth2.credentials").Credentials.from_authorized_user_info(info, scopes=SCOPES)


def _external_account(info: Mapping[str, object]) -> object:
    aws = info.get("subject_token_type") == _AWS_TOKEN
    kind = _module("google.auth.aws" if aws else "google.auth.identity_pool").Credentials
    return kind.from_info(info, scopes=SCOPES)


def _impersonated(info: Mapping[str, object]) -> object:
    kind = _module("google.auth.impersonated_credentials").Credentials
    return kind.from_impersonated_service_account_info(info, scopes=SCOPES)


# Named one by one: the SDK's loader of any kind would also run programs that the text names.
_KINDS: Final[dict[str, Callable[[Mapping[str, object]], object]]] = {
    "service_account": _service_account,
    "authorized_user": _authorized_user,
    "external_account": _external_account,
    "impersonated_service_account": _impersonated,
}


class WatchedCredentials(Credentials):
    """Credentials that are looked up in a watched file whenever a request is made."""

    def __init__(self, file: WatchedFile[Credentials]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Google's classes are not typed
        self._file = file
        file.get()

    @property
    def valid(self) -> bool:
        """Whether the file's credentials need no refresh."""
        return bool(self._file.get().valid)

    def refresh(self, request: object) -> None:
        """Fetch a new token for the file's credentials."""
        self._current().refresh(request)

    def before_request(self, request: object, method: str, url: str, headers: Mapping[str, str]) -> None:
        """Sign a request with the file's credentials as they are now; ConfigError if it cannot be read."""
        self._current().before_request(request, method, url, headers)

    def _current(self) -> Any:
        return self._file.get()


def _anonymous() -> Credentials:
    make: Any = AnonymousCredentials
    return cast("Credentials", make())


def _application_default(request: object) -> Credentials:
    credentials, _ = _module("google.auth").default(scopes=SCOPES, request=request)
    return cast("Credentials", credentials)


def _module(name: str) -> Any:
    """A module of Google's, whose functions are not typed."""
    return importlib.import_module(name)
