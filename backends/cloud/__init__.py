"""What the clouds' stores share: one skeleton of a store, bodies in parts, credentials that rotate."""
