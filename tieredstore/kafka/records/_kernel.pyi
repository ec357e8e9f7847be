from collections.abc import Callable
from typing import TypeAlias

from tieredstore.kafka.batches import Buffer, CompressionType
from tieredstore.kafka.records._slabs import Slab, SlabPool

Taken: TypeAlias = tuple[int, int, tuple[int, int, int, int], bool, list[tuple[Slab, int] | None]]

class ColumnBuilder:
    def take(self) -> Taken | None: ...

class Scanner:
    columns: ColumnBuilder
    last_offset: int
    def __init__(
        self,
        pool: SlabPool,
        wanted: int,
        start_offset: int,
        stop_offset: int,
        end_offset: int,
        aborted: list[tuple[int, int, int]],
        check_crc: bool,
        keep_headers: bool,
        max_batch_bytes: int,
        target_bytes: int,
        decompress: Callable[[CompressionType, int, memoryview], Buffer],
    ) -> None: ...
    def leave_out(self, aborted: list[tuple[int, int, int]]) -> None: ...
    def set_piece(self, piece: Buffer, position: int) -> None: ...
    def release(self) -> None: ...
    def skip_batch(self) -> None: ...
    def scan(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def place(self) -> int: ...
    @property
    def fault(self) -> tuple[int, int, int]: ...
    @property
    def batch_at_hand(self) -> tuple[int, int, int]: ...
    def take_headers(
        self,
    ) -> list[tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int | None]]: ...
