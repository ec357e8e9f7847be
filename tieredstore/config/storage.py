"""Settings that select the object store and its proxy. Each store's own properties are in ``clouds``."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import quote

from pydantic import Field, SecretStr, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.named_class import STORES, installed_class
from tieredstore.config.nearest import did_you_mean
from tieredstore.config.values import NAME, SECRET, integer, java_class

_JAVA_PACKAGE: Final = "io.aiven.kafka.tieredstorage.storage."
JAVA_BACKENDS: Final = {
    f"{_JAVA_PACKAGE}filesystem.FileSystemStorage": "filesystem",
    f"{_JAVA_PACKAGE}s3.S3Storage": "s3",
    f"{_JAVA_PACKAGE}gcs.GcsStorage": "gcs",
    f"{_JAVA_PACKAGE}azure.AzureBlobStorage": "azure",
}
"""The plugin's storage classes, and our names for the same stores."""

BACKENDS: Final = (*JAVA_BACKENDS.values(), "memory")
"""Short names that ``storage.backend.class`` accepts."""

# A class: package.module.Class or package.module:Class, in letters of any script, as Python allows.
_PYTHON_CLASS: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*")


def _backend(text: str) -> str:
    if text in JAVA_BACKENDS or text in BACKENDS:
        return JAVA_BACKENDS.get(text, text)
    if not text.startswith("io.aiven.") and _PYTHON_CLASS.fullmatch(text):
        return text
    if installed_class(STORES, text) is not None:
        return text
    # A name under ``io.aiven.`` is a misspelled class of the plugin, not a user's Python class.
    if text.startswith("io.aiven."):
        raise ValueError(f"the plugin has no such class{did_you_mean(text, (*JAVA_BACKENDS, *BACKENDS))}")
    raise ValueError


BACKEND_CLASS: Final = java_class(
    f"{', '.join(BACKENDS)}, the plugin's Java class, an installed store, or a Python class as package.module:Class",
    _backend,
)


def backend_name(text: str) -> str | None:
    """Return the store that the text of ``storage.backend.class`` selects; None if it is invalid."""
    try:
        return _backend(text)
    except ValueError:
        return None


def require_both(first: tuple[str, object], second: tuple[str, object]) -> None:
    """If only one of the two properties is set, raise an error. Pydantic reports this error."""
    if (first[1] is None) != (second[1] is None):
        (absent, _), (present, _) = (first, second) if first[1] is None else (second, first)
        raise broken_rule(f"storage.{present}", f"is set without storage.{absent}: set both properties or neither")


class ProxySettings(SettingsGroup):
    """A SOCKS5 proxy in front of the object store. The proxy resolves host names."""

    host: Annotated[str, NAME] = Field(alias="storage.proxy.host", description="Host name of the SOCKS5 proxy.")
    port: Annotated[int, integer(1, 65535)] = Field(alias="storage.proxy.port", description="Port of the SOCKS5 proxy.")
    username: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.proxy.username",
        description="User name at the proxy. If you set it, also set storage.proxy.password.",
    )
    password: Annotated[SecretStr | None, SECRET] = Field(
        default=None,
        alias="storage.proxy.password",
        description="Password at the proxy. If you set it, also set storage.proxy.username.",
    )

    @property
    def url(self) -> str:
        """The proxy's URL for HTTP libraries, with the password. ``socks5h`` lets the proxy resolve host names."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if not self.username or self.password is None:
            return f"socks5h://{host}:{self.port}"
        login = (quote(secret.get_secret_value(), safe="") for secret in (self.username, self.password))
        return f"socks5h://{':'.join(login)}@{host}:{self.port}"

    @model_validator(mode="after")
    def _both_or_neither(self) -> ProxySettings:
        require_both(("proxy.username", self.username), ("proxy.password", self.password))
        return self
