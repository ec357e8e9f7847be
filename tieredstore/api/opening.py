"""``tieredstore.open``: a bucket from a URL, a folder or settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.api.bucket import Bucket
from tieredstore.config.properties import read_properties, texts_of
from tieredstore.errors import ConfigError
from tieredstore.model import GivenProperties, SettingValue
from tieredstore.query.arguments import wrong_kind
from tieredstore.remote.stores import keyword_properties, resolve_store

if TYPE_CHECKING:
    from tieredstore.remote.stores import StoreLike

BrokerLike: TypeAlias = "str | os.PathLike[str] | GivenProperties | None"
"""The broker that has the newer records of the bucket's topics: ``host:9092``, the properties file of a Kafka client,
or the client's properties.
"""

_SERVERS = "bootstrap.servers"


def open(
    source: StoreLike = None,
    /,
    *,
    store: str | os.PathLike[str] | None = None,
    broker: BrokerLike = None,
    **settings: SettingValue,
) -> Bucket:
    """Return a bucket of segments. The bucket connects to the store at the first request, and reads key files at the
    first read.

    ``source`` is a URL (``s3://logs/prod/``), a folder, a settings file (also a broker's ``server.properties``), a
    mapping of settings, or an open bucket; the default is the file that ``TIEREDSTORE_SETTINGS`` names. ``store`` is a
    URL or a folder that replaces the source's store. ``broker`` is the cluster that has the newer records. Other
    keywords are settings, with ``_`` for ``.``, such as ``chunk_size=1 << 20``.

    Close the bucket, or use it as a context manager.

    Raises ConfigError, which names the faulty argument or setting.

    Example::

        with tieredstore.open("s3://logs/prod/") as bucket:
            frame = bucket.read("orders", last=5).to_pandas()
    """
    found, named = resolve_store(source, store=store, extra=keyword_properties(settings))
    return Bucket(found, client_of(broker), named)


def client_of(broker: BrokerLike) -> dict[str, str] | None:
    """Return the properties of the Kafka client; None without a broker."""
    match broker:
        case None:
            return None
        case str() if ":" in broker and os.sep not in broker:
            client = {_SERVERS: broker}
        case str() | os.PathLike():
            client = dict(read_properties(os.fspath(broker)))
        case Mapping():
            client = texts_of(broker, "broker")
        case _:
            raise wrong_kind("broker", broker, "host:9092, a client's properties file, or a mapping")
    if not client.get(_SERVERS):
        raise ConfigError(f"the argument broker lacks the property {_SERVERS}")
    return client
