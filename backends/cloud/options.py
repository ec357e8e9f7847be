"""Options that all cloud connections share: limits of size, number and time, and a proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from tieredstore.errors import ConfigError, redact
from tieredstore.process.deadline import CALL_TIMEOUT_S, seconds

if TYPE_CHECKING:
    from pydantic import SecretStr

    from tieredstore.config import Settings
    from tieredstore.config.clouds import AzureSettings, GcsSettings, S3Settings
    from tieredstore.config.storage import ProxySettings


_NO_NAME: Final = re.compile(r"[@?#\s]|//")


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    """Options of the connection to one bucket that all clouds share.

    Bodies above ``part_size`` are written in parts of that size. A listing comes in pages of ``page_size`` objects.
    ``concurrency`` is the number of requests that callers send in parallel; the connection pool has this size.

    ``call_timeout_s`` limits one request with all its retries, ``attempt_timeout_s`` one attempt (None: no separate
    limit). ``stall_timeout_s`` limits the time in which an upload sends no byte. The upload as a whole has no limit.
    ``connect_timeout_s`` and ``read_timeout_s`` limit each wait for the network.
    """

    part_size: int = 26214400
    page_size: int = 1000
    concurrency: int = 16
    attempts: int = 5
    call_timeout_s: float = CALL_TIMEOUT_S
    attempt_timeout_s: float | None = None
    stall_timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    proxy: ProxySettings | None = None

    @classmethod
    def of_group(cls, settings: Settings, group: S3Settings | GcsSettings | AzureSettings, **own: object) -> Self:
        """Make the options from ``settings``. ``group`` contains the settings of one cloud.

        Each setting of ``group`` becomes the option of the same name, if such an option exists. ``own`` gives further
        options, which override those of ``group``.
        """
        options: dict[str, Any] = {name: getattr(group, name) for name in type(group).model_fields}
        names = {field.name for field in fields(cls)}
        options = {name: value for name, value in options.items() if name in names} | own
        return cls(
            concurrency=settings.requests_at_once,
            call_timeout_s=seconds(group.api_call_timeout_ms) or CALL_TIMEOUT_S,
            attempt_timeout_s=seconds(group.api_call_attempt_timeout_ms),
            stall_timeout_s=settings.upload_stall_timeout_ms / 1000,
            proxy=settings.proxy,
            **options,
        )


def require_name(what: str, name: str) -> str:
    """Return ``name``; raise ConfigError if it is invalid, without quoting it: it may be a URL with credentials."""
    if _NO_NAME.search(name):
        raise ConfigError(f"{what} is {redact(name)!r:.80}, which is no valid name: give only the name, not a URL")
    return name


def secret_text(secret: SecretStr | None) -> str | None:
    """Return the content of a secret setting, or None."""
    return None if secret is None else secret.get_secret_value()
