"""The common parts of the clouds' stores: one skeleton of a store, bodies in parts, rotated credentials."""
