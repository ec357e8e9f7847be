"""Assignment of topics to brokers. One governing broker assigns them all. See docs/how-to/batches.md."""
