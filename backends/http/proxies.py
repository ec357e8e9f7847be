"""SOCKS5 proxy between this process and an object store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from tieredstore.config.storage import ProxySettings


@dataclass(frozen=True, slots=True)
class SocksProxy:
    """The proxy's address and our credentials for it. The proxy resolves host names."""

    host: str
    port: int
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def from_settings(cls, settings: ProxySettings | None) -> SocksProxy | None:
        """Return the proxy of ``storage.proxy.*``, or None."""
        if settings is None:
            return None
        username = settings.username.get_secret_value() if settings.username else None
        password = settings.password.get_secret_value() if settings.password else None
        return cls(settings.host, settings.port, username, password)

    @property
    def url(self) -> str:
        """The proxy's URL for HTTP libraries, with the password. ``socks5h`` lets the proxy resolve host names."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.username is None:
            return f"socks5h://{host}:{self.port}"
        return f"socks5h://{quote(self.username, safe='')}:{quote(self.password or '', safe='')}@{host}:{self.port}"
