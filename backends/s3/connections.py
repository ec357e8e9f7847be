"""Bounded connections (see ``backends.http.sockets``) under botocore, which handles "100-continue" in its own way.

botocore has no public way to replace the pool classes in the session of a client's endpoint (seen in 1.44). Tests check
that deadlines hold and that requests pass the proxy.
"""

from __future__ import annotations

import http.client
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import botocore.session
from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection
from botocore.httpsession import URLLib3Session
from botocore.session import Session

from tieredstore.backends.http.sockets import BoundedConnection, close_pools, pools
from tieredstore.errors import StoreError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


class WholeContinue:
    """Mix-in for botocore's connections: botocore alone would wait forever for the end of a "100 Continue"."""

    def _consume_headers(self, fp: Any) -> None:
        while line := fp.readline():
            if line == b"\r\n":
                return
        raise http.client.RemoteDisconnected("the connection ended within the headers of a 100 Continue")


_POOLS: Final = pools(AWSHTTPConnection, AWSHTTPSConnection, (WholeContinue, BoundedConnection))


def http_session(client: S3Client) -> Any:
    """Return the HTTP session of ``client``; raise StoreError if this botocore differs from the tested one."""
    endpoint: Any = getattr(client, "_endpoint", None)
    session = getattr(endpoint, "http_session", None)
    if not isinstance(session, URLLib3Session) or not hasattr(session, "_pool_classes_by_scheme"):
        raise StoreError("deadlines and proxies cannot be kept with this release of botocore: install the pinned one")
    return session


def open_session() -> Session:
    """Open a session of the SDK whose clients observe the call's deadline, including those that fetch credentials.

    The deadline bounds each wait for a server, or for the environment's proxy.
    """
    session = botocore.session.get_session()
    untyped: Any = session
    create: Any = session.create_client

    def create_client(*args: Any, **options: Any) -> Any:
        client = create(*args, **options)
        _bound(http_session(client))
        return client

    untyped.create_client = create_client
    return session


def bound_chain(session: Session) -> None:
    """Set deadlines for requests that the SDK's credential chain makes without a client, to metadata endpoints."""
    chain: Any = session.get_component("credential_provider")
    for provider in chain.providers:
        fetcher = getattr(provider, "_fetcher", None) or getattr(provider, "_role_fetcher", None)
        http = getattr(fetcher, "_session", None)
        if isinstance(http, URLLib3Session):
            _bound(http)


def _bound(session: Any) -> None:
    session._pool_classes_by_scheme = session._manager.pool_classes_by_scheme = _POOLS
    session.close = partial(_close, session)


def _close(session: Any) -> None:
    for manager in (session._manager, *session._proxy_managers.values()):
        close_pools(manager)
