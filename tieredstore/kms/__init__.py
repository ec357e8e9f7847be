"""Key management services that open a sealed private key.

No service has RSA-OAEP with SHA3-512, by which the format wraps data keys. So the service seals a key that encrypts the
private key: one request when the settings are loaded, and none per segment.
"""
