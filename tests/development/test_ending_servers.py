"""Test servers end within a deadline, whatever their clients do."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import waiting
from tests.support.network.key_services import GoogleKms, make_certificate, serving
from tests.support.network.loopback_server import LoopbackServer


def test_a_client_that_never_begins_tls_delays_neither_the_others_nor_the_end(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with serving(GoogleKms(), certificate=certificate) as service:
        port = int(service.url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)),
            pytest.raises(OSError, match="404"),
            urlopen(service.url, timeout=60, context=context),
        ):
            pass


def test_a_client_s_thread_that_does_not_end_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    is_served, may_end = threading.Event(), threading.Event()

    class Stuck(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            is_served.set()
            assert may_end.wait(600)

    server = LoopbackServer(Stuck)
    server.timeout = 60
    with socket.create_connection(("127.0.0.1", server.port)):
        server.handle_request()
        assert is_served.wait(60)
        monkeypatch.setattr(waiting, "END_S", 0)
        with pytest.raises(AssertionError, match=r"^the thread of a client of .* at port \d+ did not end within 0 s"):
            server.server_close()
    may_end.set()
    monkeypatch.undo()
    server.server_close()
