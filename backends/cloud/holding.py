"""Clouds that hold a write back until it is ended: what is prepared is its parts, and nobody sees them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TypeVar

from tieredstore.backends.base import Body, Prepared
from tieredstore.backends.cloud.bucket_facts import Client
from tieredstore.backends.cloud.parts import PartCutter, cut
from tieredstore.backends.cloud.store import CloudStore, Options
from tieredstore.backends.cloud.upload import IF_ABSENT, Upload
from tieredstore.backends.contract.bodies import Digest, closed_body

UploadClient = TypeVar("UploadClient")
UploadOptions = TypeVar("UploadOptions")


class HeldUpload(Upload[UploadClient, UploadOptions]):
    """A write that may end in two steps, of two processes."""

    @abstractmethod
    def prepare(self, cutter: PartCutter) -> tuple[str, tuple[str, ...]]:
        """Send all parts: place and parts of a ``Prepared``. After any failure nothing stays that could be taken
        back."""

    @abstractmethod
    def publish(self, prepared: Prepared) -> None:
        """Make what was prepared, by a write of this mark, the object."""


class HoldingStore(CloudStore[Client, Options]):
    """A bucket of such a cloud."""

    @property
    @abstractmethod
    def _upload(self) -> type[HeldUpload[Client, Options]]:
        """How objects are written."""

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:  # noqa: ARG002  the cloud holds it back
        """A request for each part, and one to begin where the cloud needs it."""
        digest = Digest()
        with closed_body(body), cut(digest.of(body), self.options.part_size) as cutter:
            self._check_key(key)
            upload = self._upload_of(self._upload, key, IF_ABSENT)
            place, parts = upload.prepare(cutter)
        return Prepared(key, digest.size, digest.sha256, place, parts, upload.mark)

    def publish(self, prepared: Prepared) -> None:
        """One request; what it refuses is looked at by one more."""
        self._check_key(prepared.key)
        upload = self._upload_of(self._upload, prepared.key, IF_ABSENT)
        replace(upload, mark=prepared.mark).publish(prepared)
