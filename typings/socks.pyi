# The public names of PySocks that the stores use; the library ships no types.

import socket

class socksocket(socket.socket):
    def set_proxy(
        self, proxy_type: int, addr: str | None, port: int, rdns: bool, username: str | None, password: str | None
    ) -> None: ...
