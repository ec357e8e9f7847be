"""Producers and sinks: pack records into Messages and batches, and store them or send them to brokers."""
