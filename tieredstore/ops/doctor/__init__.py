"""A checkup of settings, keys, store, clock, lifecycle rules and caches."""
