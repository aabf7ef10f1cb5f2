"""Data of clients and server."""
