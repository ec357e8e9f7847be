"""The checkup of settings, keys, store, clock, rules and caches."""
