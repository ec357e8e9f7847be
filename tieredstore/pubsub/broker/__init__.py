"""A broker that speaks MemQ's packets. It combines many small requests into few large objects
(docs/how-to/batches.md).
"""
