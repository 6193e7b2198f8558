"""Why the store did not do what it was asked for."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be used, or has failed. The text is for clients and operators."""


class StoreBusyError(StoreError):
    """More calls wait than may."""


class StoreGoneError(StoreError):
    """The database was removed or replaced while it was open."""


class StoreFullError(StoreError):
    """There is no room for an object, even if everything older left."""
