"""A broker that speaks MemQ's packets: many small requests in, few large objects out. See docs/broker.md."""
