"""Transformation of bytes, independent of stores: zstd frames, AES-256-GCM, the RSA key ring, and the ordered
pipeline."""
