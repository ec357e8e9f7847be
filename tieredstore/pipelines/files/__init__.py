"""What files hold: formats, their writers and readers, and the way of bytes to the store."""
