"""Key management services, which protect private keys.

Segments contain data keys that are encrypted by RSA-OAEP with SHA3-512, which no service offers. So this process
decrypts them with the private key, which is stored encrypted by an AES key; the service encrypts (seals) only the AES
key. Loading the settings takes one request to the service; reading a segment takes none.
"""
