"""The soak in a small size: some commands, and the hooks' writer, under a fenced allocator."""

from __future__ import annotations

from pathlib import Path

import soak


def test_nothing_is_written_past_a_buffer(tmp_path: Path) -> None:
    """With orjson 3.12.0 and 3.13.0 the writer aborts; the large size shows it of ``eval`` too."""
    soak.files(tmp_path, records=60, tokens=40, seed=1)
    wanted = ("token -f jsonl", "token -f json ", "token -f csv", "compare few", "convert in.jsonl")
    few = [one for one in soak.commands() if any(part in " ".join(one) + " " for part in wanted)]
    assert len(few) > 5
    assert soak.soak(tmp_path, few, sizes=60) == []


def test_numbers_take_24_characters() -> None:
    """The data are what provokes the fault: as many characters as a double can take."""
    import random

    import orjson

    draw = random.Random(1)
    for scale in soak.SCALES:
        sizes = {len(orjson.dumps(soak.long_number(draw, scale))) for _ in range(200)}
        assert max(sizes) == 24
