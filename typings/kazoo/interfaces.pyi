from typing import Protocol, TypeVar

_T_co = TypeVar("_T_co", covariant=True)

class IAsyncResult(Protocol[_T_co]):
    def get(self, block: bool = True, timeout: float | None = None) -> _T_co: ...
