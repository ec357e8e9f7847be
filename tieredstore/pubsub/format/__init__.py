"""MemQ's format of batches, Messages, records, keys and notifications, on bytes alone, without stores.

docs/reference/batch-format.md describes it. Decoding needs ``tieredstore[arrow]``.
"""
