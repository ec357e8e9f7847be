"""Azurite: the Azure Blob emulator, which scripts/servers.py installs from npm."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.toolchain import NODE, located, missing
from tests.support.servers.probe import answers
from tests.support.servers.process import Launch, ServerFailedError, free_port, installed_server, running

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "dGllcmVkc3RvcmUtdGVzdHM="


@dataclass(frozen=True)
class AzureServer:
    """Running emulator; ``kill`` is kill -9. The endpoint ends with the account's name, as Azurite requires."""

    endpoint_url: str
    account_name: str
    account_key: str = field(repr=False)
    kill: Callable[[], None] = field(repr=False)

    @property
    def connection_string(self) -> str:
        """Return the connection string for Azure's SDK."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account_name};AccountKey={self.account_key};"
            f"BlobEndpoint={self.endpoint_url};"
        )


@contextmanager
def start_azurite() -> Generator[AzureServer, None, None]:
    """Run a fresh emulator (about 2 s to be ready); kill it at the end of the block."""
    chosen: list[int] = []

    def prepare(folder: Path) -> Launch:
        port = free_port()
        chosen.append(port)
        node = located(NODE)
        if node is None:
            raise ServerFailedError(missing(NODE))
        script = installed_server("azurite/node_modules/azurite/dist/src/blob/main.js")
        command: list[str | Path] = [node, script, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        command += ["--location", folder, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        # Accept any HTTP answer, because Azurite refuses this request, which has no credentials.
        any_answer = frozenset(range(200, 500))
        environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
        return Launch(command, lambda: answers(port, f"/{ACCOUNT}?comp=list", statuses=any_answer), environment)

    with running("azurite", prepare) as process:
        yield AzureServer(f"http://127.0.0.1:{chosen[-1]}/{ACCOUNT}", ACCOUNT, ACCOUNT_KEY, process.kill)
