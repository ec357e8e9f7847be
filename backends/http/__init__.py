"""What the clouds' HTTP clients share: sessions, bodies, proxies."""
