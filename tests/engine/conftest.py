"""Where the work is done, and how the input is cut for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mixed import Played

from grpo_cli.engine import Reader
from grpo_cli.engine.cluster import run


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many bytes are read at once (``block``) and go to a task of a cluster (``task``).

    Commands with ``--on ray`` work on a played cluster, with room for so many tasks at once.
    """

    def sizes(block: int = 1 << 20, task: int | None = None, room: int = 3, seed: int = 0) -> None:
        monkeypatch.setitem(Reader.__init__.__kwdefaults__, "block_bytes", block)
        monkeypatch.setitem(Reader.__init__.__kwdefaults__, "task_bytes", task)
        monkeypatch.setattr(run, "session", lambda on, jobs: Played(room, seed))

    return sizes
