"""Segments copied: from log directories into the store, and from one store to another."""
