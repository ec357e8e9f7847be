"""A broker that speaks MemQ's packets: many small requests in, few large objects out (docs/how-to/batches.md)."""
