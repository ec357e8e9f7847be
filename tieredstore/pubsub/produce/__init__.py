"""Producers and sinks: records into Messages, batches and the store, or to brokers."""
