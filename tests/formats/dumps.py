"""Small files shaped as frameworks write them: ``dumps.json`` has them, and where each is from.

All of them hold the same two groups of two responses, so that what is read can be compared with
one record under canonical names.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

Object = dict[str, Any]

NEW = [[-0.5, -1.25], [-0.75, -0.125, -2.0], [-0.25], [-1.5, -0.5]]
OLD = [[-0.625, -1.0], [-0.75, -0.25, -1.75], [-0.5], [-1.25, -0.625]]
REF = [[-0.5, -1.0], [-1.0, -0.25, -2.5], [-0.125], [-1.25, -0.75]]
REWARDS = [1.0, 0.0, 0.5, 0.25]
ADVANTAGES = [0.5, -0.5, 1.0, -1.0]
IDS = [[11, 12], [11, 13, 14], [15], [16, 17]]
WORDS = [["a", "b"], ["a", "c", "d"], ["e"], ["f", "g"]]
PROMPTS = [[1, 2], [1, 2], [3], [3]]
GROUPS = [0, 0, 1, 1]

DUMPS = {one["name"]: one for one in json.loads(Path(__file__).with_suffix(".json").read_bytes())}
"""Name → its source, and its objects; with ``texts`` those that have no log-probs."""


def of(name: str) -> list[Object]:
    """The objects of a dump, which may be changed."""
    return deepcopy(DUMPS[name]["objects"])


def lines(objects: list[Object]) -> bytes:
    """JSONL as Python's json writes it, NaN included."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)
