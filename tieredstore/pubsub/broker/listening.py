"""Where a broker is reached, and how."""

from __future__ import annotations

import socket
import ssl

from tieredstore.config import Settings
from tieredstore.errors import ConfigError
from tieredstore.pubsub.settings import BatchBrokerSettings


def own_address(host: str) -> str:
    """The address that others reach this machine by, where it listens on all of them."""
    if host not in {"0.0.0.0", "::", ""}:  # noqa: S104  compared, not listened on
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses a way out
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def server_tls(settings: Settings) -> ssl.SSLContext | None:
    """How clients must speak; ConfigError for files that cannot be used."""
    own = settings.section(BatchBrokerSettings)
    if own.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(own.certificate, own.key)
        if own.client_ca is not None:
            context.load_verify_locations(own.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the files of pubsub.broker.tls.* cannot be used: {error}") from error
    return context
