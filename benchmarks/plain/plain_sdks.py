"""The clouds' own SDKs in direct, fast use, compared with our store on the same server."""

from __future__ import annotations

import base64
import importlib
import io
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3
import requests.adapters
from azure.storage.blob import ContainerClient
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from tests.support.servers.azurite_server import start_azurite
from tests.support.servers.fake_gcs import start_fake_gcs
from tests.support.servers.minio import start_minio
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.servers.seaweedfs import start_seaweedfs
from tieredstore.backends.azure.options import AzureOptions, ConnectionString
from tieredstore.backends.azure.store import AzureObjectStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.gcs.options import Anonymous, GcsOptions
from tieredstore.backends.gcs.store import GcsObjectStore
from tieredstore.backends.s3.options import AccessKeys, Compatibility, S3Options
from tieredstore.backends.s3.store import S3ObjectStore

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

KEY: Final = "object"
PART: Final = 26214400
"""The size of parts, blocks and chunks. It is our default, and the bare clients use it here too."""
PARALLEL_PARTS: Final = 4
PIECE: Final = 1 << 20
"""The size of the pieces in which our store gets the body. A segment's transformation gives it such pieces."""
CONNECTIONS: Final = 32
GCS_CHUNK: Final = 104857600
"""The default chunk size of google-cloud-storage."""

Upload = Callable[[bytes], object]
Read = Callable[[int, memoryview], object]
"""Function that fills the buffer with the object's bytes from a position."""


@dataclass(frozen=True)
class Contest:
    """Two maps of functions by name: those that upload ``KEY``, and those that read from it. ``ours`` is our store.

    ``unlike`` are the names of functions that are measured but not compared, because they do less, or because the
    server handles them differently.
    """

    uploads: dict[str, Upload]
    reads: dict[str, Read]
    unlike: frozenset[str] = frozenset()


def ours(store: ObjectStore) -> tuple[Upload, Read]:
    """Return the functions of our store."""

    def upload(data: bytes) -> None:
        view = memoryview(data)
        store.put(KEY, (view[at : at + PIECE] for at in range(0, len(view), PIECE)))

    return upload, lambda start, buffer: store.get_into(KEY, start, buffer)


@contextmanager
def s3(name: str, compatibility: Compatibility) -> Generator[Contest, None, None]:
    """Yield boto3's transfer manager with defaults and with our parts, and the bare client with parallel parts."""
    with {"minio": start_minio, "seaweedfs": start_seaweedfs}[name]() as server:
        bucket = server.make_bucket()
        options = S3Options(
            bucket,
            region=REGION,
            endpoint_url=server.endpoint_url,
            path_style=True,
            compatibility=compatibility,
            credentials=AccessKeys(server.access_key, server.secret_key),
        )
        with closing(S3ObjectStore(options)) as store, closing(_s3_client(server)) as client:
            put, get = ours(store)
            plain = _PlainS3(client, bucket)
            yield Contest(
                {
                    "ours": put,
                    "transfer manager": plain.transfer(TransferConfig()),
                    "transfer manager, parts as ours": plain.transfer(
                        TransferConfig(multipart_chunksize=PART, max_concurrency=PARALLEL_PARTS)
                    ),
                    "bare client": plain.upload_parts,
                },
                {"ours": get, "get_object, read": plain.read, "get_object, readinto": plain.read_into},
            )


def _s3_client(server: S3Server) -> S3Client:
    # Leave the session untyped, because its ``client`` has an overload for each of some 400 services, which the stubs
    # of a single service lack.
    session: Any = boto3.Session()
    client: S3Client = session.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(
            s3={"addressing_style": "path"},
            max_pool_connections=CONNECTIONS,
            # Do without the SDK's own checksum, a CRC-32 on a single thread, so that boto3 is as fast as it can be.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return client


class _PlainS3:
    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._where: Any = {"Bucket": bucket, "Key": KEY}

    def transfer(self, config: TransferConfig) -> Upload:
        return lambda data: self._client.upload_fileobj(io.BytesIO(data), **self._where, Config=config)

    def upload_parts(self, data: bytes) -> None:
        upload: Any = {"UploadId": self._client.create_multipart_upload(**self._where)["UploadId"]}

        def send(number: int) -> dict[str, Any]:
            part = data[(number - 1) * PART : number * PART]
            sent = self._client.upload_part(**self._where, **upload, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        with ThreadPoolExecutor(PARALLEL_PARTS) as pool:
            parts: Any = {"Parts": list(pool.map(send, range(1, -(-len(data) // PART) + 1)))}
        self._client.complete_multipart_upload(**self._where, **upload, MultipartUpload=parts)

    def read(self, start: int, buffer: memoryview) -> None:
        with self._opened(start, len(buffer)) as body:
            buffer[:] = body.read()

    def read_into(self, start: int, buffer: memoryview) -> None:
        filled = 0
        with self._opened(start, len(buffer)) as body:
            while filled < len(buffer):
                filled += body.readinto(buffer[filled:])

    def _opened(self, start: int, size: int) -> Any:
        answer = self._client.get_object(**self._where, Range=f"bytes={start}-{start + size - 1}")
        return closing(answer["Body"])


@contextmanager
def gcs(chunk_size: int = PART) -> Generator[Contest, None, None]:
    """Yield google-cloud-storage's resumable upload, with our chunks and with defaults, and ranged downloads.

    The emulator copies the object's whole content for every chunk. So an upload in fewer chunks is faster here, by any
    client.
    """
    with start_fake_gcs() as server:
        bucket = server.make_bucket()
        options = GcsOptions(bucket, Anonymous(), server.endpoint_url, part_size=chunk_size)
        with closing(GcsObjectStore(options)) as store, _gcs_client(server.endpoint_url) as client:
            put, get = ours(store)
            plain = client.bucket(bucket)

            def upload(data: bytes, chunk_size: int | None) -> None:
                plain.blob(KEY, chunk_size=chunk_size).upload_from_file(io.BytesIO(data), size=len(data))

            def read(start: int, buffer: memoryview, checksum: str | None) -> None:
                last = start + len(buffer) - 1
                buffer[:] = plain.blob(KEY).download_as_bytes(
                    start=start, end=last, raw_download=True, checksum=checksum
                )

            as_it_is = "resumable, chunks of 100 MiB"
            yield Contest(
                {
                    "ours": put,
                    as_it_is: lambda data: upload(data, None),
                    "resumable, chunks as ours": lambda data: upload(data, chunk_size),
                },
                {"ours": get, "download_as_bytes": lambda start, buffer: read(start, buffer, None)},
                unlike=frozenset() if chunk_size == GCS_CHUNK else frozenset({as_it_is}),
            )


@contextmanager
def _gcs_client(endpoint_url: str) -> Generator[Any, None, None]:
    # no types
    storage: Any = importlib.import_module("google.cloud.storage")
    credentials: Any = importlib.import_module("google.auth.credentials").AnonymousCredentials()
    session: Any = importlib.import_module("google.auth.transport.requests").AuthorizedSession(credentials)
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
    client = storage.Client(
        project="tests", credentials=credentials, client_options={"api_endpoint": endpoint_url}, _http=session
    )
    with closing(session):
        yield client


@contextmanager
def azure(*, md5: bool = True) -> Generator[Contest, None, None]:
    """Yield azure-storage-blob's parallel upload, with defaults and with our blocks, and ranged downloads.

    With ``md5``, all clients send an MD5 of every block, and the server computes it too.
    """
    with start_azurite() as server, ExitStack() as stack:
        name = f"bench-{base64.b16encode(os.urandom(4)).decode().lower()}"

        def container(**sizes: Any) -> ContainerClient:
            session = stack.enter_context(requests.Session())
            session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
            container = ContainerClient.from_connection_string(server.connection_string, name, session=session, **sizes)
            return stack.enter_context(container)

        plain, tuned = container(), container(max_block_size=PART, max_single_put_size=PART)
        plain.create_container()
        options = AzureOptions(name, ConnectionString(server.connection_string), send_md5=md5)
        put, get = ours(stack.enter_context(closing(AzureObjectStore(options))))

        def uploader(client: ContainerClient, checked: bool) -> Upload:
            return lambda data: client.upload_blob(
                KEY, data, overwrite=True, max_concurrency=PARALLEL_PARTS, validate_content=checked
            )

        def read(start: int, buffer: memoryview) -> None:
            buffer[:] = plain.download_blob(KEY, offset=start, length=len(buffer)).readall()

        uploads = {
            "ours": put,
            "upload_blob": uploader(plain, md5),
            "upload_blob, blocks as ours": uploader(tuned, md5),
        }
        unchecked = {"upload_blob, without MD5": uploader(tuned, False)} if md5 else {}
        yield Contest({**uploads, **unchecked}, {"ours": get, "download_blob": read}, unlike=frozenset(unchecked))
