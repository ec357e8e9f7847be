"""Interface to a cloud's protocol: the step of a request, and its honest answer."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import ClassVar

from tests.support.faulty_server.objects import HeldObjects
from tests.support.faulty_server.wire import Reply, Request


class Cloud(enum.Enum):
    """Clouds whose protocol a server can speak."""

    S3 = "S3"
    GCS = "GCS"
    AZURE = "Azure"


class Step(enum.Enum):
    """Purpose of a request, in terms common to all three clouds."""

    WRITE = "write"
    BEGIN = "begin upload"
    PART = "part"
    COMPLETE = "complete"
    ABORT = "abort"
    PARTS = "parts"
    UPLOADS = "uploads"
    READ = "read"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"
    BULK = "bulk delete"
    BUCKET = "bucket"


class Service(ABC):
    """One bucket (container) in one cloud's protocol. Credentials are not checked."""

    cloud: ClassVar[Cloud]

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.objects = HeldObjects()

    @abstractmethod
    def step(self, request: Request) -> Step:
        """Return the purpose of ``request``."""

    @abstractmethod
    def answer(self, request: Request) -> Reply:
        """Execute the request and return the answer."""

    @abstractmethod
    def refusal(self, status: int, code: str, message: str = "no") -> Reply:
        """Return an error in the cloud's format."""
