"""Key management services, which protect private keys.

A segment's data key is encrypted by RSA-OAEP with SHA3-512. No service offers this algorithm, so this process itself
decrypts data keys, with the private key. The private key is stored encrypted by an AES key, and the service encrypts
(seals) only this AES key. So loading the settings takes one request to the service, and reading a segment takes none.
"""
