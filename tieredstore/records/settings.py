"""The settings of a read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.kafka.records import COLUMNS, RecordDecoder
from tieredstore.model import DEFAULT_ISOLATION, Isolation

OnDataLoss: TypeAlias = Literal["fail", "report"]
"""The policy for offsets that no segment has: raise an error before the first record, or add them to the report."""

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings of a read. ``columns`` are the columns to return, in this order; all are in ``kafka.records.COLUMNS``.

    ``on_corrupt`` decides if a damaged batch is an error, or is skipped and reported. The log is decoded in pieces of
    at most ``piece_bytes`` into record batches of about ``target_bytes``.

    With ``decode_ahead``, the manager's threads decrypt and decompress chunks ahead of the reader. Without it, the
    reader's own thread does so, which saves processor time and memory if there are as many parallel readers as
    processors. Errors about lost data contain the text ``accept_loss``, which tells the user how to accept the loss.
    Raise ConfigError for invalid values.
    """

    columns: Sequence[str] = COLUMNS
    isolation: Isolation = DEFAULT_ISOLATION
    on_data_loss: OnDataLoss = "fail"
    on_corrupt: Literal["fail", "skip"] = "fail"
    piece_bytes: int = 4 * _MIB
    target_bytes: int = 4 * _MIB
    decode_ahead: bool = True
    accept_loss: str = 'set on_data_loss="report"'

    def __post_init__(self) -> None:
        choices = {"isolation": Isolation, "on_data_loss": OnDataLoss, "on_corrupt": Literal["fail", "skip"]}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(get_args(kind))}")
        if self.piece_bytes < 1:
            raise ConfigError(f"piece_bytes is {self.piece_bytes}; it must be at least 1")
        self.decoder()

    @property
    def schema(self) -> pa.Schema:
        """The schema of the requested columns."""
        return self.decoder().schema

    def decoder(self, *more_columns: str) -> RecordDecoder:
        """Return a decoder of the requested columns, followed by those of ``more_columns`` that are not requested."""
        return RecordDecoder(
            (*self.columns, *(name for name in more_columns if name not in self.columns)),
            on_corrupt=self.on_corrupt,
            target_bytes=self.target_bytes,
        )
