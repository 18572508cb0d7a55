"""The soak in its smallest: the hooks' writer and a few commands; ``.ci/run`` tries them all."""

from __future__ import annotations

from pathlib import Path

import soak


def test_nothing_is_written_past_a_buffer(tmp_path: Path) -> None:
    """With orjson 3.12.0 and 3.13.0 the writer aborts; the large size shows it of ``eval`` too."""
    soak.files(tmp_path, records=60, tokens=40, seed=1)
    wanted = (
        "eval in.jsonl -v dr --level token -f json ",
        "eval in.npz -v dr --level token -f jsonl ",
    )
    few = [one for one in soak.commands() if " ".join(one).startswith(wanted)]
    assert len(few) >= 3
    assert soak.soak(tmp_path, few, sizes=60) == []


def test_numbers_take_24_characters() -> None:
    """The data are what provokes the fault: as many characters as a double can take."""
    import random

    import orjson

    draw = random.Random(1)
    for scale in soak.SCALES:
        sizes = {len(orjson.dumps(soak.long_number(draw, scale))) for _ in range(200)}
        assert max(sizes) == 24
