"""Assignment of topics to brokers. One governing broker assigns all topics. See docs/how-to/batches.md."""
