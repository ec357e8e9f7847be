"""The segments in a store, found by listing it, without a broker."""
