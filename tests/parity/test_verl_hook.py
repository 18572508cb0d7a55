"""verl's released policy losses, recorded by the hook, and judged by ``grpo verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verl.trainer.ppo import core_algos

from grpo_cli.hooks.verl import record, record_policy_loss
from parity.test_trl_hook import lines, verify

from .batches import Ragged, far, ragged
from .test_verl import LOSSES, MODES
from .verl_functions import actor_config, tensor

VERIFIED = [name for name in LOSSES if name != "clip_cov"]
"""clip_cov takes tokens out at random, which nobody can repeat."""


def call(loss: Any, batch: Ragged, mode: str, dtype: torch.dtype, **settings: Any) -> Any:
    """The loss as verl's workers call it; also the leaf of its graph."""
    mask = tensor(batch, "mask").bool()
    new = tensor(batch, "log_probs_new").to(dtype).requires_grad_()
    result, metrics = loss(
        old_log_prob=tensor(batch, "log_probs_old").to(dtype),
        log_prob=new,
        advantages=(torch.tensor(batch.advantages)[:, None] * mask).to(dtype),
        response_mask=mask,
        loss_agg_mode=mode,
        config=actor_config(mode, settings),
    )
    return result, metrics, new


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """verl's own, whose changes are undone."""
    copy = dict(core_algos.POLICY_LOSS_REGISTRY)
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", copy)
    return copy


def test_what_the_loss_returns_is_untouched(tmp_path: Path) -> None:
    plain, metrics, new = call(
        core_algos.compute_policy_loss_vanilla, ragged(5), "token-mean", torch.float32
    )
    plain.backward()
    loss = record_policy_loss(core_algos.compute_policy_loss_vanilla, tmp_path / "r.jsonl")
    recorded, same, again = call(loss, ragged(5), "token-mean", torch.float32)
    before = recorded.item()
    recorded -= 1.0  # verl adds the KL and the entropy in place
    recorded.backward()
    loss.recorder.close()
    assert before == plain.item()
    assert same == metrics
    assert torch.equal(new.grad, again.grad)
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["expected"]["policy_loss"] == before
    batch = ragged(5)
    for row, gradient in zip(line["expected"]["loss_gradient"], new.grad.tolist(), strict=True):
        assert row == gradient[: len(row)]
    assert line["mask"] == [m[: m.nonzero()[0].max(initial=-1) + 1].tolist() for m in batch.mask]


def test_nothing_is_opened_before_a_loss_is_computed(
    registry: dict[str, Any], tmp_path: Path
) -> None:
    record(tmp_path / "r.jsonl").close()
    assert not [*tmp_path.iterdir()]


def test_ppo_kl_is_bounded_where_verl_bounds_it(registry: dict[str, Any], tmp_path: Path) -> None:
    recorder = record(tmp_path / "r.jsonl")
    for name in VERIFIED:
        loss = core_algos.get_policy_loss_fn(name)
        call(loss, far(9), "token-mean", torch.float64, **LOSSES[name])
    recorder.close()
    code, document = verify(tmp_path / "r.jsonl", "--rtol", "1e-6")
    for row in document["records"]:
        assert "metrics.actor/ppo_kl" not in row["also"], row["variant"]
        assert (row["first"] or {}).get("key") != "metrics.actor/ppo_kl", row["variant"]
    assert code == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_of_no_token_is_not_compared(mode: str, tmp_path: Path) -> None:
    """verl divides 0 by 0; that is neither our 0 nor a wrong loss."""
    loss = record_policy_loss(core_algos.compute_policy_loss_gspo, tmp_path / "r.jsonl")
    empty = ragged(3)
    for row in empty.mask:
        row[:] = 0
    call(loss, empty, mode, torch.float64)
    call(loss, ragged(3), mode, torch.float64)
    loss.recorder.close()
    undefined = mode != "token-sum"
    assert (lines(tmp_path / "r.jsonl")[0]["expected"]["policy_loss"] == 0.0) != undefined
    code, document = verify(tmp_path / "r.jsonl")
    assert (code, document["undefined"]) == (0, int(undefined))
    assert document["verified"] == 2 - undefined
