"""What shows on standard error, on a terminal, while long work goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from grpo_cli.terminal.display import colored
from grpo_cli.terminal.numbers import counted

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE = 1.0  # seconds without a bar


class Bar:
    """Shows bytes, tokens per second and the time left; appears after a second, gone when done.

    Args:
        paths: the input; its size is known where all of it are plain files.
        wanted: whether to show anything at all.
        nodes: how many machines of a cluster work on it.
    """

    def __init__(
        self, paths: Sequence[str], *, wanted: bool, nodes: Callable[[], int] = lambda: 0
    ) -> None:
        self._nodes = nodes
        self._wanted = wanted and sys.stderr is not None and sys.stderr.isatty()
        self._size = _size(paths)
        self._began = time.monotonic()
        self._bytes = self._tokens = 0
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, size: int, tokens: int) -> None:
        """Counts a block that is done."""
        if not self._wanted:
            return
        self._bytes += size
        self._tokens += tokens
        seconds = time.monotonic() - self._began
        if self._progress is None and seconds > _PATIENCE:
            self._progress = _started(self._size)
        if self._progress is not None:
            rate = f"{self._tokens / seconds / 1e6:.1f} Mtoken/s"
            if nodes := self._nodes():
                rate += f" on {counted(nodes, 'node')}"
            self._progress.update(
                self._progress.task_ids[0], completed=self._bytes, rate=rate, refresh=True
            )


@contextmanager
def waiting(text: str, *, wanted: bool) -> Iterator[None]:
    """Shows a line on a terminal's standard error while work goes on, and removes it."""
    shown = wanted and sys.stderr is not None and sys.stderr.isatty()
    if shown:
        sys.stderr.write(f"grpo: {text}")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _size(paths: Sequence[str]) -> int | None:
    packed = (".gz", ".zst")
    size = 0
    for path in paths:
        version = getattr(path, "version", None)  # of a file in a store, which was asked for it
        if path.endswith(packed) or (version is None and not Path(path).is_file()):
            return None
        size += int(version.size) if version is not None else Path(path).stat().st_size
    return size


def _started(size: int | None) -> Progress:
    # Imported here: most runs are over before a bar would show.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color=not colored(terminal=True)),
        transient=True,
        auto_refresh=False,  # no thread in addition to the worker processes
    )
    progress.add_task("", total=size, rate="")
    progress.start()
    return progress
