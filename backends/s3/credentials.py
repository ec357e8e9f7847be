"""Who signs the requests: fixed keys, a file of keys that is rotated, or the SDK's own chain. Never one for another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import javaproperties
from botocore.credentials import Credentials, ReadOnlyCredentials

from tieredstore.backends.cloud.watched_file import WatchedFile
from tieredstore.backends.s3.connections import bound_chain, open_session
from tieredstore.backends.s3.options import AccessKeys, S3Options
from tieredstore.config.properties import joined_lines
from tieredstore.errors import AccessDenied, ConfigError

if TYPE_CHECKING:
    from botocore.session import Session

_logger: Final = logging.getLogger(__name__)

_NAMES: Final = ("aws.access.key.id", "aws.secret.access.key", "aws.session.token")
_PREFIXES: Final = ("", "rsm.config.storage.", "storage.")


def parse_credentials(raw: bytes) -> AccessKeys:
    """The keys of a properties file with ``aws.access.key.id``, ``aws.secret.access.key``, ``aws.session.token``.

    The names may stand bare or with ``rsm.config.storage.`` or ``storage.`` before them. ConfigError, which quotes no
    value, if one of the first two is missing.
    """
    try:
        properties = javaproperties.loads(joined_lines(raw.decode("latin-1")))
    except ValueError as error:
        raise ConfigError("it is not a properties file") from error
    key_id, secret, token = (_value(properties, name) for name in _NAMES)
    if not key_id or not secret:
        raise ConfigError(f"it must have both {_NAMES[0]} and {_NAMES[1]}")
    return AccessKeys(key_id, secret, token or None)


def _value(properties: Mapping[str, str], name: str) -> str:
    return next((properties[p + name].strip() for p in _PREFIXES if p + name in properties), "")


class FileCredentials(Credentials):
    """Keys that are looked up in a watched file whenever a request is signed."""

    def __init__(self, file: WatchedFile[AccessKeys]) -> None:
        self._file = file
        keys = file.get()
        super().__init__(keys.key_id, keys.secret, keys.token, method="tieredstore-file")

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The keys as the file has them now; ConfigError if it cannot be read, never older ones."""
        keys = self._file.get()
        return ReadOnlyCredentials(keys.key_id, keys.secret, keys.token)


def chosen_credentials(options: S3Options, session: Session) -> Credentials:
    """The credentials for ``options``; what was chosen is logged, without any secret.

    AccessDenied if the SDK's chain finds none: requests are never sent unsigned.
    """
    chosen = options.credentials
    if isinstance(chosen, AccessKeys):
        _logger.info("%s: requests are signed with the access key of the settings", options.url)
        return Credentials(chosen.key_id, chosen.secret, chosen.token, method="tieredstore-static")
    if isinstance(chosen, Path):
        _logger.info("%s: requests are signed with the access key in %s", options.url, chosen)
        return FileCredentials(WatchedFile(chosen, parse_credentials, interval_s=options.credentials_reread_s))
    return _of_chain(options, session)


def described(options: S3Options) -> str:
    """Whose requests those of ``options`` are: where the key comes from, and the end of its id. May ask for a token."""
    session = open_session()
    credentials = chosen_credentials(options, session)
    match options.credentials:
        case AccessKeys():
            source = "the settings"
        case Path() as path:
            source = str(path)
        case _:
            source = f"the SDK's chain ({credentials.method})"
    key_id = credentials.get_frozen_credentials().access_key or ""
    return f"access key …{key_id[-4:]} of {source}"


def _of_chain(options: S3Options, session: Session) -> Credentials:
    bound_chain(session)
    credentials = session.get_credentials()
    if credentials is None:
        raise AccessDenied(
            f"no credentials for {options.url}: the AWS SDK's chain (environment, profile, container, instance) "
            "found none; set storage.aws.access.key.id and .secret.access.key, or storage.aws.credentials.file"
        )
    _logger.info("%s: requests are signed with credentials of the AWS SDK's chain: %s", options.url, credentials.method)
    return credentials
