"""Key management services, which protect private keys.

Key management services. The format wraps data keys by RSA-OAEP with SHA3-512, which no service offers. So the service
encrypts (seals) an AES key, and the AES key encrypts the private key. Loading the settings takes one request to the
service; segments take none.
"""
