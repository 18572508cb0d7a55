"""``grpo`` in this process with exit code, time and memory watched, or as a real process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from command import main

from grpo_cli.engine import memory

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 40.0
"""How much processor time a command may take with a small input, on a busy machine."""


class TooLongError(BaseException):
    """A command took more than ``SECONDS``; no Exception, so that nothing catches it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    Attributes:
        code: the exit code; of a real process negative for a signal.
        out, err: what it wrote.
        trouble: what escaped it in this process: a traceback's last line and function, a timeout.
        megabytes: how much the peak of resident memory was above what it was before.
    """

    code: int
    out: bytes
    err: bytes
    trouble: str = ""
    megabytes: float = 0.0


def run(arguments: Sequence[str], stdin: bytes | None = None) -> Outcome:
    """Runs a command in this process as ``main`` would, exit code and all."""
    out, err = _stream(b""), _stream(b"", "backslashreplace")
    before = _reset_peak()
    trouble, code = "", 70
    with _streams(_stream(stdin or b""), out, err), _arguments(arguments), _spared(), _timed():
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except TooLongError:
            trouble = f"more than {SECONDS:.0f} s"
        except BaseException as error:
            trouble = f"escaped: {error!r}"
    return Outcome(code, _written(out), _written(err), trouble, _peak() - before)


def process(
    arguments: Sequence[str], stdin: bytes | None = None, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command as a real process, in the current folder unless ``cwd`` says otherwise."""
    more.setdefault("timeout", 120)
    extra: Mapping[str, str] = more.pop("env", {})
    more.setdefault("stdin", subprocess.DEVNULL) if stdin is None else None
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, check=False,
        env=environment(extra), **more,
    )  # fmt: skip


COMMAND = (sys.executable, "-m", "grpo_cli")


def environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of real processes: this tree first, no colours, a fixed width."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "COLUMNS": "80", **extra}


def _stream(data: bytes, errors: str = "strict") -> io.TextIOWrapper:
    raw = io.BytesIO(data)
    buffer: Any = io.BufferedReader(raw) if data else raw  # type: ignore[type-var]
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, write_through=True)


def _written(stream: io.TextIOWrapper) -> bytes:
    try:
        stream.flush()
        return stream.buffer.getvalue()  # type: ignore[attr-defined]
    except ValueError:  # it was closed
        return b""


@contextmanager
def _streams(*streams: io.TextIOWrapper) -> Iterator[None]:
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _on_standard_error
            for unseen in (ResourceWarning, DeprecationWarning, PendingDeprecationWarning):
                warnings.simplefilter("ignore", unseen)  # as Python itself does
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept


def _on_standard_error(
    message: Warning | str, category: type[Warning], filename: str, line: int, *_: object
) -> None:
    """As a process of its own does, whatever the tests do with warnings."""
    sys.stderr.write(warnings.formatwarning(message, category, filename, line))


@contextmanager
def _arguments(arguments: Sequence[str]) -> Iterator[None]:
    kept = sys.argv
    sys.argv = ["grpo", *arguments]
    try:
        yield
    finally:
        sys.argv = kept


@contextmanager
def _spared() -> Iterator[None]:
    """Without what a process does once and would undo what pytest needs: signals, memory."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    settle, memory.settle = memory.settle, lambda: np.seterr(all="ignore")
    try:
        yield
    finally:
        memory.settle = settle
        for number, handler in kept.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _timed() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TooLongError

    kept = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, kept)


def _reset_peak() -> float:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0.0
    return _peak()


def _peak(process: int | str = "self") -> float:
    try:
        with open(f"/proc/{process}/status", "rb") as status:  # noqa: PTH123 - often; it is faster
            text = status.read()
    except OSError:
        return 0.0
    at = text.find(b"VmHWM:")
    return int(text[at + 6 : text.find(b"kB", at)]) / 1024 if at >= 0 else 0.0


class Watched(NamedTuple):
    """What became of a real process: the peak of its resident memory, exit code, standard error."""

    megabytes: float
    code: int
    err: bytes


def watched(arguments: Sequence[str], limit: float, seconds: float = 300) -> Watched:
    """Runs a real process in the current folder; ends it when it takes more memory, or longer."""
    ends = time.monotonic() + seconds
    with tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [*COMMAND, *arguments], env=environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=err,
        )  # fmt: skip
        peak = 0.0
        while child.poll() is None:
            peak = max(peak, _peak(child.pid))
            if peak > limit or time.monotonic() > ends:
                child.kill()
            time.sleep(0.003)
        err.seek(0)
        return Watched(peak, child.returncode, err.read())
