"""Key pairs: made, counted, rotated, sealed."""
