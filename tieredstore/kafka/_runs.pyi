from typing import TypeAlias

from tieredstore.kafka.batches import Buffer
from tieredstore.kafka.indexes import Column

Pending: TypeAlias = tuple[int, int, int, int, int, int]

class BatchRun:
    first_offset: int
    next_entry: int
    next_time: int
    last_offset: int
    max_timestamp: int
    epoch: int
    epoch_stop: int
    follows_transactions: bool
    def __init__(
        self,
        first_offset: int,
        entry_offsets: Column,
        entry_positions: Column,
        timestamps: Column,
        time_offsets: Column,
    ) -> None: ...
    def drop_indexes(self) -> None: ...
    def begin_transaction(self, producer_id: int) -> None: ...
    def end_transactions(self) -> None: ...
    def walk(self, piece: Buffer, position: int, last_offset: int, pending: Pending | None) -> int: ...
    @property
    def header(self) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int | None]: ...
