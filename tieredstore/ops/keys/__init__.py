"""Key pairs: creation, use, rotation and sealing."""
