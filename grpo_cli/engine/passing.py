"""Results from one process to another, large texts copied by nobody but the system.

Pickled the usual way, a text of some megabytes is copied once where it is sent and three times
where it comes: a fifth of the time of a run that writes its tokens from two processes.
"""

from __future__ import annotations

import os
import pickle
import socket
from multiprocessing.connection import Connection
from typing import Any

_SOCKETS = hasattr(socket, "AF_UNIX")  # whether that is what connections are


def send(connection: Connection, result: object) -> None:
    """Sends a result; its large texts from where they lie, as pickle's protocol 5 has it.

    Arrays, which may be written to here, are copied: so they may be where they come.
    """
    views: list[memoryview] = []

    def goes_along(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.readonly:
            views.append(view)
        return not view.readonly

    message = pickle.dumps(result, 5, buffer_callback=goes_along if _SOCKETS else None)
    connection.send((message, [len(view) for view in views]))
    if views:
        with _socket(connection) as stream:
            for view in views:
                stream.sendall(view)


def receive(connection: Connection) -> Any:
    """What ``send`` sent, each buffer read into its place by one call."""
    message, sizes = connection.recv()
    if not sizes:
        return pickle.loads(message)
    with _socket(connection) as stream:
        return pickle.loads(message, buffers=[_read(stream, size) for size in sizes])


def _read(stream: socket.socket, size: int) -> bytes:
    read = stream.recv(size, socket.MSG_WAITALL)
    while len(read) < size:  # a signal came
        more = stream.recv(size - len(read), socket.MSG_WAITALL)
        if not more:
            raise EOFError
        read += more
    return read


def _socket(connection: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))
