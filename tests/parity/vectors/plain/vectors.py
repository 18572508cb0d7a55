"""The plain loss through the plugin, in each precision: ``pytest plain/vectors.py --grpo-vectors``.

Each fixture is what an author writes; ``test_frameworks.py`` runs them.
"""

from __future__ import annotations

import pytest
import torch

from grpo_cli.vectors import Loss

from . import Plain, claims_of


@pytest.fixture
def grpo_vectors_float64() -> Loss:
    return Loss(Plain(torch.float64), claims_of("float64"))


@pytest.fixture
def grpo_vectors_float32() -> Loss:
    return Loss(Plain(torch.float32), claims_of("float32"))


@pytest.fixture
def grpo_vectors_bfloat16() -> Loss:
    return Loss(Plain(torch.bfloat16), claims_of("bfloat16"))
