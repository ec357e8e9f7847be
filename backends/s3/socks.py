"""S3 through a SOCKS5 proxy, by urllib3's SOCKS connections, because botocore does not support such proxies.

This module replaces the session of a client's endpoint and the session's pool manager. botocore has no public way to do
so (seen in 1.44), so a test checks that requests pass the proxy. The test also checks that the proxy gets host names,
not IP addresses.

This module needs PySocks, so it is imported only if a proxy is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from botocore.awsrequest import AWSConnection
from urllib3.contrib.socks import SOCKSConnection, SOCKSHTTPSConnection, SOCKSProxyManager

from tieredstore.backends.http.sockets import BoundedConnection, pools
from tieredstore.backends.http.socks_sockets import BoundedSocksConnection
from tieredstore.backends.s3.connections import BoundedHttpSession, WholeContinue, endpoint_of
from tieredstore.backends.s3.options import S3Options

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

    from tieredstore.config.storage import ProxySettings

_BEFORE: Final = (WholeContinue, BoundedSocksConnection, BoundedConnection, AWSConnection)
_POOLS: Final = pools(SOCKSConnection, SOCKSHTTPSConnection, _BEFORE)


class SocksHttpSession(BoundedHttpSession):
    """botocore's HTTP session, with connections through a SOCKS proxy."""

    def __init__(self, proxy: ProxySettings, **options: Any) -> None:
        super().__init__(**options)
        self._manager = SOCKSProxyManager(proxy.url, **self._get_pool_manager_kwargs())
        self.use_pools(_POOLS)


def send_through(client: S3Client, options: S3Options, proxy: ProxySettings) -> None:
    """Send all requests of ``client`` through ``proxy``.

    Raise StoreError if this botocore differs from the tested one, so that the proxy is never bypassed.
    """
    endpoint = endpoint_of(client)
    endpoint.http_session.close()
    config: Any = client.meta.config
    endpoint.http_session = SocksHttpSession(
        proxy,
        verify=options.certificate_check,
        timeout=(config.connect_timeout, config.read_timeout),
        max_pool_connections=config.max_pool_connections,
    )
