"""Parts that all cloud stores share: the skeleton of a store, bodies in parts, rotated credentials."""
