"""Stores around stores: counted, limited."""
