"""Parts that all cloud stores share: the store above the requests of a cloud, bodies in parts, rotated credentials."""
