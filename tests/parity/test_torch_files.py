"""``torch.save``'s files as torch itself reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cli import read

KINDS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


@pytest.mark.parametrize("kind", [*KINDS, "bool"])
def test_every_kind_of_number(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = (100 * torch.rand(4, 6)).to(getattr(torch, kind))
    value = {
        "whole": whole,
        "transposed": whole.T,
        "part": whole[1:3, ::2],
        "repeated": whole[:1].expand(3, 6),
        "none": whole[:0],
        "one": whole[0, 0],
        "list": [whole[0], None, "text", 1.5, True, (1, 2)],
    }
    path = tmp_path / "a.pt"
    torch.save(value | {"log_probs_new": [[-1.0]], "rewards": [1.0]}, path)
    (found,) = read(path)
    assert found == plain(torch.load(path, weights_only=True))


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
