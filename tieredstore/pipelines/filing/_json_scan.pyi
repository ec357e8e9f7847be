def epoch_millis(
    ends: memoryview,
    data: memoryview,
    valid: memoryview | None,
    first: int,
    rows: int,
    path: list[bytes],
    times: memoryview,
    told: bytearray,
) -> None: ...
