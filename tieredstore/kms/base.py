"""The interface of key management services, the table that opens them, and one request to a service.

Users can implement :class:`KeySource` for their own service, and offer it as an entry point of an installed package.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final, Self, TypeVar

from tieredstore.config.named_class import KEY_SOURCES, installed_class
from tieredstore.errors import ConfigError, KeyServiceError, KeyServiceUnavailableError, TieredStoreError, excerpt
from tieredstore.installation import Extra
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.retry import Attempt, RetryPolicy
from tieredstore.process.thread_pool import ThreadPool

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 10.0
"""Timeout of the SDKs between two bytes; ``POLICY`` limits the whole call."""

POLICY: Final = RetryPolicy(attempts=4, base_delay_s=0.25, max_delay_s=4.0, timeout_s=60.0, attempt_timeout_s=20.0)

_SERVICES: Final = {
    "aws": "tieredstore.kms.aws:AwsKeySource",
    "gcp": "tieredstore.kms.gcp:GcpKeySource",
    "azure": "tieredstore.kms.azure:AzureKeySource",
    "vault": "tieredstore.kms.vault:VaultKeySource",
}

_Result = TypeVar("_Result")


class KeySource(ABC):
    """A key that never leaves a key management service, and that seals short secrets.

    Each method makes one request without retries, because the caller retries. Each raises KeyServiceDeniedError for
    refused credentials or permissions, KeyServiceUnavailableError for a transient fault, KeyRingError for a secret that
    another key sealed, and KeyServiceError for any other fault.
    """

    @classmethod
    @abstractmethod
    def from_settings(cls, key: str, endpoint_url: str | None) -> Self:
        """Make the key from the settings ``private.key.kms.key`` and ``private.key.kms.endpoint.url``, without a
        request to the service.

        Raise ConfigError for an invalid name of a key.
        """

    @abstractmethod
    def seal(self, secret: bytes) -> bytes:
        """Seal ``secret`` (at most 64 bytes), so that only the service can open it."""

    @abstractmethod
    def open(self, sealed: bytes) -> bytes:
        """Return the secret given to ``seal``."""


def ask_service(what: str, request: Callable[[], _Result], policy: RetryPolicy | None = None) -> _Result:
    """Return the result of ``request``. After the last retry or the deadline, raise KeyServiceUnavailableError; its
    message names ``what``.

    Raise KeyServiceError for an invalid answer.
    """
    return (policy or POLICY).call(what, partial(_run_within, request))


def _run_within(request: Callable[[], _Result], attempt: Attempt) -> _Result:
    # The SDKs do not limit the total time of an answer, because each byte restarts their timeout. So run the request on
    # another thread, and abandon it at the deadline.
    pool = ThreadPool(1, "tieredstore-kms")
    try:
        future = pool.submit(request)
        if not is_done(future, max(0.0, attempt.deadline.remaining_s())):
            raise KeyServiceUnavailableError("the service did not answer within the time-out")
        try:
            return outcome(future)
        except TieredStoreError:
            raise
        except Exception as error:
            # For an invalid answer, such as a proxy's page or an empty body, the SDKs may raise an error of any class.
            # So translate every error.
            raise KeyServiceError(f"the service's answer cannot be used ({type(error).__name__})") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def key_source(service: str, key: str, endpoint_url: str | None = None) -> KeySource:
    """Return the service's key; raise ConfigError for an unknown service, or if its SDK is not installed.

    Raise KeyServiceUnavailableError if the SDK is not ready by the deadline, because it may look for credentials on the
    network.
    """
    path = _SERVICES.get(service) or _find_installed(service)
    module, _, name = path.partition(":")
    with Extra(f"the key management service {service}"):
        offered: object = getattr(importlib.import_module(module), name, None)
    if not (isinstance(offered, type) and issubclass(offered, KeySource)):
        raise ConfigError(f"{excerpt(path)} is not a class that derives from KeySource")
    return ask_service(f"opening the key of {service}", partial(offered.from_settings, key, endpoint_url))


def _find_installed(service: str) -> str:
    try:
        path = installed_class(KEY_SOURCES, service)
    except ValueError as error:
        raise ConfigError(f"private.key.kms {excerpt(service)!r}: {error}") from error
    if path is None:
        raise ConfigError(
            f"private.key.kms {excerpt(service)!r} is neither one of {', '.join(_SERVICES)} nor a service of an "
            "installed package"
        )
    return path
