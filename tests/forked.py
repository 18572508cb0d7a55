"""``grpo`` and ``pytest`` as processes that start in a hundredth of a second, for many of them.

A process that has imported both waits, and forks for each. What comes of it has pipes, a
folder, an environment, signals and an exit code of its own, as every process has; only the imports
are spared. How a command is imported, starts and is interrupted is for ``python -m grpo_cli``.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PEAK = "FORKED_PEAK"
"""Names a variable with the file for the most memory that a command had, in kB."""

CLIENT = """\
#!{python} -ISB
import _socket, array, marshal, os, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
streams = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))]
asked = marshal.dumps((sys.argv, os.getcwd(), dict(os.environ)))
server.sendmsg([len(asked).to_bytes(4, "little")], streams)
while asked:
    asked = asked[server.send(asked) :]
status = int.from_bytes(server.recv(4), "little")
if os.WIFSIGNALED(status):
    import _signal
    _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
"""


@contextmanager
def started() -> Iterator[Path]:
    """A folder for ``PATH`` with both in it; a new one: the name of a socket is short."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        folder, address = Path(place), f"{place}/socket"
        for name in ("grpo", "pytest"):
            (folder / name).write_text(CLIENT.format(python=sys.executable, address=address))
            (folder / name).chmod(0o755)
        command, pipe = [sys.executable, __file__, address], subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as server:
            assert server.stdout is not None
            server.stdout.readline()  # it listens
            try:
                yield folder
            finally:  # a process that was forked from this one may hold its standard input open
                server.terminate()


def asked(address: str) -> socket.socket:
    """Waits for commands until standard input ends; returns in a process of its own for each."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen(16)
    print("it listens", flush=True)
    while True:
        waiting, _, _ = select.select([server, 0], [], [])
        reaped()
        if 0 in waiting:
            sys.exit()
        client, _ = server.accept()
        if not os.fork():
            server.close()
            return client
        client.close()


def reaped() -> None:
    """Waits for the children that have ended: their time counts as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(client: socket.socket) -> None:
    """Takes the client's place, in a child whose end is told to the client."""
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    with client.makefile("rb") as stream:
        arguments, folder, variables = marshal.loads(stream.read(int.from_bytes(size, "little")))
    if child := os.fork():
        for number in (0, 1, 2, *streams):
            os.close(number)
        _, status, used = os.wait4(child, 0)
        if PEAK in variables:
            Path(variables[PEAK]).write_text(str(used.ru_maxrss))
        client.sendall(status.to_bytes(4, "little"))
        os._exit(0)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = arguments
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)


if __name__ == "__main__":
    import command  # noqa: F401 - builds all commands
    import pytest

    from grpo_cli.__main__ import main

    sys.path[0] = str(ROOT)
    gc.freeze()  # those that fork do not look for garbage in what they share
    become(asked(sys.argv[1]))
    main() if sys.argv[0].endswith("grpo") else sys.exit(pytest.main())
