"""Folds, clusters and how they end."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mixed
import pytest
from command import run as grpo
from mixed import Played

from grpo_cli.engine.cluster import run, tasks
from grpo_cli.engine.cluster.tasks import Files, Job, portions
from grpo_cli.records import PLAIN, Source
from grpo_cli.records.open import blocks

# ---- what a cluster is given and when: memory here does not grow, nothing that differs is mixed --


WORDS = ("-v", "dr", "--on", "ray", "--on-error", "skip", "--level", "batch")


def test_a_file_that_changes_is_an_error(
    tmp_path: Path, cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = mixed.files(tmp_path)
    cut(task=900, room=2)
    look = blocks.look
    seen = []

    def changing(wanted: Any) -> Any:
        seen.append(wanted)
        if len(seen) == 5:
            with Path(files[0]).open("ab") as stream:
                stream.write(b"\n")
        return look(wanted)

    monkeypatch.setattr(blocks, "look", changing)
    told = grpo("eval", *files, *WORDS).stderr.splitlines()[-1]
    assert told == (
        f"grpo: {files[0]}: the file changed while grpo read it; start again when it is complete"
    )


def test_versions_that_differ_are_an_error(
    tmp_path: Path, cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(task=900)
    monkeypatch.setattr(run, "versions", lambda: {**tasks.versions(), "numpy": "1.26.4"})
    result = grpo("eval", *mixed.files(tmp_path), *WORDS)
    assert result.exit_code == 70
    assert "numpy is 2" in result.stderr
    assert " on a worker and 1.26.4 here" in result.stderr


class MadeUp(Played):
    """Results that nobody has worked for."""

    def evaluate(self, job: Any, number: int, portion: Any, *before: Any) -> int:
        return self.later(lambda: [(1, None)])


def made_up(count: int) -> Iterator[Files]:
    for number in range(count):
        yield Files((Source(f"{number}", f"{number}"),), 1)


@pytest.fixture
def usual_collections() -> Iterator[None]:
    """Garbage is collected as Python does it: commands that ran in this process put that off."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.more
@pytest.mark.usefixtures("usual_collections")
def test_what_is_held_here_does_not_grow() -> None:
    # The least of two: what other threads of the process hold meanwhile is none of ours.
    short = min(held(1_500), held(1_500))
    assert any(held(4_500) < 1.5 * short for _ in range(2))


def held(count: int) -> int:
    """The most bytes that so many portions take at once."""
    gc.collect()
    tracemalloc.start()
    played = MadeUp(8, 1_016)
    results = run.Flow(played, Job(None, {}), made_up(count))  # type: ignore[arg-type]
    assert sum(size for size, _ in results) == count  # type: ignore[misc]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not played.work
    assert not played.values
    assert played.most <= 40
    return most


def test_small_files_share_a_task_and_large_ones_are_cut(tmp_path: Path) -> None:
    sources = [Source.of(path) for path in mixed.files(tmp_path)]
    assert [len(one.sources) for one in portions(sources, PLAIN, 1 << 20)] == [5]
    assert len(list(portions(sources, PLAIN, 9_000))) == 10
