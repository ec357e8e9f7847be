"""Copies of segments: from a broker's log directories into a store, and from one store to another."""
