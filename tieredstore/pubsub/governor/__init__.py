"""Assignment of topics to brokers, by one governing broker at a time. See docs/how-to/batches.md."""
