"""Key management services: what opens a private key that is stored sealed.

No service has RSA-OAEP with SHA3-512, by which the format wraps data keys. So it seals a key that encrypts the private
key: one request when the settings are loaded, and none a segment.
"""
