"""The plain loss through the plugin, in each precision: ``pytest plain/vectors.py --grpo-vectors``.

Each fixture is what an author writes; ``test_frameworks.py`` runs them.
"""

from __future__ import annotations

import pytest
import torch

from grpo_cli.vectors import Loss

from . import Plain, claims


@pytest.fixture
def grpo_vectors_float64() -> Loss:
    return Loss(Plain(torch.float64), claims("float64"))


@pytest.fixture
def grpo_vectors_float32() -> Loss:
    return Loss(Plain(torch.float32), claims("float32"))


@pytest.fixture
def grpo_vectors_bfloat16() -> Loss:
    return Loss(Plain(torch.bfloat16), claims("bfloat16"))
