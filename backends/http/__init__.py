"""The common parts of the clouds' HTTP clients: sessions, bodies, proxies."""
