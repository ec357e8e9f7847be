from tieredstore.kafka.batches import BatchHeader

class HeaderWalk:
    position: int
    last_offset: int
    max_timestamp: int
    is_contiguous: bool
    leader_epochs: list[tuple[int, int]]
    def __init__(self, descriptor: int, size: int, base_offset: int, checks_crcs: bool) -> None: ...
    def pass_ordinary(self) -> None: ...
    def pass_this(self, header: BatchHeader) -> None: ...
