"""Key pairs: creation, use, rotation, sealing."""
