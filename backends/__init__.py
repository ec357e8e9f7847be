"""Object stores: the contract (``base``), the stores, and the table that opens them (``registry``)."""
