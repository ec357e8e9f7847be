"""What the stored bytes mean: object keys, chunk index, manifest and custom metadata. Pure: bytes in, values out."""
