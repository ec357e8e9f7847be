"""HTTP code that several clouds' clients share: sessions, bodies, sockets."""
