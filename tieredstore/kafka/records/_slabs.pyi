class SlabPool:
    def slab(self, size: int) -> Slab: ...

class Slab:
    size: int
    address: int
    def __buffer__(self, flags: int, /) -> memoryview: ...
