"""Key management services, which protect private keys.

The format wraps data keys by RSA-OAEP with SHA3-512, which no service offers. So the service encrypts (seals) a further
key, and that key encrypts the private key. That takes one request when the settings are loaded, and none per segment.
"""
