"""Keeps clients that leave out of the log."""

from __future__ import annotations

import logging

GRPC_LOGGER = "grpc._cython.cygrpc"
DEPARTURE = "ExecuteBatchError raised in core"  # begins what grpcio says of an answer that nobody is left to read


class DepartureFilter(logging.Filter):
    """Drops what grpcio logs, as an error with a traceback, when a client has cancelled its RPC while the answer was
    sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (isinstance(record.msg, str) and record.msg.startswith(DEPARTURE))


DEPARTURES = DepartureFilter()


def ignore_departures() -> None:
    """Idempotent."""
    logging.getLogger(GRPC_LOGGER).addFilter(DEPARTURES)
