"""Bounded connections (see ``backends.http.sockets``) for botocore, which handles "100-continue" in its own way.

This module replaces the pool classes in the session of a client's endpoint. botocore has no public way to do so (seen
in 1.44), so tests check that deadlines hold and that requests pass the proxy.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection
from botocore.httpsession import URLLib3Session
from botocore.session import Session
from urllib3 import HTTPConnectionPool, PoolManager

from tieredstore.backends.http.sockets import BoundedConnection, close_pools, pools
from tieredstore.errors import StoreError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import CredentialResolver
    from botocore.endpoint import Endpoint


class WholeContinue:
    """Mix-in for botocore's connections: raises an error if a connection ends within a "100 Continue", where botocore
    alone would read forever.
    """

    def _consume_headers(self, fp: BinaryIO) -> None:
        while line := fp.readline():
            if line == b"\r\n":
                return
        raise http.client.RemoteDisconnected("the connection ended within the headers of a 100 Continue")


_POOLS: Final = pools(AWSHTTPConnection, AWSHTTPSConnection, (WholeContinue, BoundedConnection))


class BoundedHttpSession(URLLib3Session):
    """botocore's HTTP session, with bounded connections."""

    _manager: PoolManager
    _proxy_managers: Mapping[str, PoolManager]
    _pool_classes_by_scheme: dict[str, type[HTTPConnectionPool]]
    _get_pool_manager_kwargs: Callable[[], Mapping[str, Any]]

    def use_pools(self, pools: dict[str, type[HTTPConnectionPool]]) -> None:
        """Make pools of these classes from now on."""
        self._pool_classes_by_scheme = self._manager.pool_classes_by_scheme = pools

    def close(self) -> None:
        """Close all idle connections."""
        for manager in (self._manager, *self._proxy_managers.values()):
            close_pools(manager)


def endpoint_of(client: BaseClient) -> Endpoint:
    """Return the endpoint of ``client``; raise StoreError if this botocore differs from the tested one."""
    endpoint: Endpoint | None = getattr(client, "_endpoint", None)
    session = getattr(endpoint, "http_session", None)
    if endpoint is None or not isinstance(session, URLLib3Session) or not hasattr(session, "_pool_classes_by_scheme"):
        raise StoreError("deadlines and proxies do not work with this release of botocore: install the pinned release")
    return endpoint


class BoundedSession(Session):
    """A session of the SDK whose clients observe the call's deadline, including those that fetch credentials.

    The deadline bounds each wait for a server, or for the environment's proxy.
    """

    def create_client(self, *args: Any, **options: Any) -> BaseClient:
        """Create a client."""
        client = super().create_client(*args, **options)
        _bound(endpoint_of(client).http_session)
        return client


def bound_chain(session: Session) -> None:
    """Set deadlines for the requests to metadata endpoints that the SDK's credential chain makes without a client."""
    chain: CredentialResolver = session.get_component("credential_provider")
    for provider in chain.providers:
        fetcher = getattr(provider, "_fetcher", None) or getattr(provider, "_role_fetcher", None)
        http = getattr(fetcher, "_session", None)
        if isinstance(http, URLLib3Session):
            _bound(http)


def _bound(session: URLLib3Session) -> None:
    session.__class__ = BoundedHttpSession
    assert isinstance(session, BoundedHttpSession)
    session.use_pools(_POOLS)
