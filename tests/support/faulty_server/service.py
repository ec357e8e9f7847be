"""What the server asks of a cloud's protocol: what a request is for, and its honest answer."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import ClassVar

from tests.support.faulty_server.objects import HeldObjects
from tests.support.faulty_server.wire import Reply, Request


class Cloud(enum.Enum):
    """Whose protocol a server speaks."""

    S3 = "S3"
    GCS = "GCS"
    AZURE = "Azure"


class Step(enum.Enum):
    """What one request is for, in words that hold for all three clouds."""

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
    """One bucket (container), spoken to in one cloud's protocol. Credentials are not looked at."""

    cloud: ClassVar[Cloud]

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.objects = HeldObjects()

    @abstractmethod
    def step(self, request: Request) -> Step:
        """What ``request`` is for."""

    @abstractmethod
    def answer(self, request: Request) -> Reply:
        """Do what was asked, and say so."""

    @abstractmethod
    def refusal(self, status: int, code: str, message: str = "no") -> Reply:
        """An error as the cloud writes it."""
