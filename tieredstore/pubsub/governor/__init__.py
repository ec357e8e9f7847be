"""Who says which broker has which topics: one of the brokers, at a time. See docs/how-to/batch-brokers.md."""
