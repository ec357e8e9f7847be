"""How records are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import pyarrow as pa

from tieredstore.catalog.timestamps import BatchDecoding
from tieredstore.errors import ConfigError
from tieredstore.kafka.records import COLUMNS, RecordDecoder
from tieredstore.model import DEFAULT_ISOLATION, Isolation

OnDataLoss: TypeAlias = Literal["fail", "report"]
"""What offsets that no segment holds are: an error before the first record is read, or an entry of the report."""

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """``columns`` are some of ``kafka.records.COLUMNS``, in the order wanted.

    ``on_corrupt`` says what a damaged batch is: an error, or left out and reported. The log is decoded in pieces of
    ``piece_bytes`` at most, into record batches of about ``target_bytes``; ``max_batch_bytes`` bounds what one of
    Kafka's batches may have, stored and decompressed. Chunks of the log are decrypted and decompressed by threads of
    the manager, ahead of the reader; without ``decode_ahead`` the reader's own thread does it, which takes less
    processor time and memory: for readers side by side, as many as there are processors. ``accept_loss`` is what an
    error names as the way out where data are lost, in the words of whoever asks. ConfigError for what cannot be.
    """

    columns: Sequence[str] = COLUMNS
    isolation: Isolation = DEFAULT_ISOLATION
    on_data_loss: OnDataLoss = "fail"
    on_corrupt: Literal["fail", "skip"] = "fail"
    check_crc: bool = True
    piece_bytes: int = 4 * _MIB
    target_bytes: int = 4 * _MIB
    max_batch_bytes: int = 256 * _MIB
    decode_ahead: bool = True
    accept_loss: str = "have losses reported (on_data_loss)"

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
        """The schema of the columns asked for."""
        return self.decoder().schema

    @property
    def decoding(self) -> BatchDecoding:
        """What of these concerns a look-up by time."""
        return BatchDecoding(self.check_crc, self.on_corrupt, self.piece_bytes, self.max_batch_bytes)

    def decoder(self, *more_columns: str) -> RecordDecoder:
        """A decoder of the columns asked for, and of ``more_columns`` behind them where these are not asked for."""
        return RecordDecoder(
            (*self.columns, *(name for name in more_columns if name not in self.columns)),
            check_crc=self.check_crc,
            on_corrupt=self.on_corrupt,
            target_bytes=self.target_bytes,
            max_batch_bytes=self.max_batch_bytes,
        )
