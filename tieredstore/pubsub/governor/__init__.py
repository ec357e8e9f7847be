"""Assignment of topics to brokers. One broker at a time governs: it decides for all. See docs/how-to/batches.md."""
