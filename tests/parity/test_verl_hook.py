"""verl's released policy losses, recorded by the hook, and judged by ``grpo verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos

from grpo_cli import evaluate
from grpo_cli.hooks.verl import record, record_policy_loss
from parity.test_trl_hook import lines, verify

from .batches import Ragged, far, ragged
from .test_verl import LOSSES, MODES, OWN_MODE
from .verl_functions import actor_config, tensor

VERIFIED = [name for name in LOSSES if name != "clip_cov"]
"""clip_cov takes tokens out at random, which nobody can repeat."""

SINGLE = 2e-6


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


@pytest.mark.parametrize("mode", MODES)
def test_every_registered_loss_verifies(
    mode: str, registry: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "rollouts.jsonl"
    recorder = record(path)
    batch = ragged(3, "usual")
    for name in VERIFIED:
        call(core_algos.get_policy_loss_fn(name), batch, mode, torch.float32, **LOSSES[name])
    recorder.close()
    for one, name in zip(lines(path), VERIFIED, strict=True):
        where = "kl_aggregate" if name in OWN_MODE else "aggregate"
        ours = evaluate(one, f"verl/{name}", stages={where: f"verl/{mode}"})
        theirs = one["expected"]
        scale = np.abs(ours.breakdown.contribution).sum()
        assert abs(ours.loss - theirs["policy_loss"]) <= SINGLE * scale, name
    code, document = verify(path)
    assert code == 0, document["records"]
    assert document["verified"] == len(VERIFIED)
    for row in document["records"]:
        assert {"policy_loss", "loss_gradient"} <= set(row["compared"])
    assert verify(path, "-v", "verl/vanilla", "--epsilon", "0.01")[0] == 1


def test_a_batch_over_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    loss = record_policy_loss(core_algos.compute_policy_loss_vanilla, path)
    whole = {"dp_size": 2, "batch_num_tokens": torch.tensor(120), "global_batch_size": 24}
    for mode in MODES:
        call(loss, ragged(4), mode, torch.float64, clip_ratio_low=0.1, **whole)
    loss.recorder.close()
    assert [one["framework"]["loss_agg_mode"] for one in lines(path)] == list(MODES)
    # verl adds 1e-8 to a response's count of tokens, which rounds away beside a mask of integers.
    assert verify(path, "--rtol", "1e-7")[0] == 0


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


def test_weights_that_the_record_cannot_explain_are_not_expected(tmp_path: Path) -> None:
    """verl hands the loss finished rollout weights: they are written, and the loss under a name
    that nothing is compared with."""
    path = tmp_path / "rollouts.jsonl"
    loss = record_policy_loss(core_algos.compute_policy_loss_vanilla, path)
    batch = ragged(6)
    weights = torch.full(batch.padded("mask").shape, 0.5, dtype=torch.float64)
    mask = tensor(batch, "mask")
    value, _ = loss(
        tensor(batch, "log_probs_old"),
        tensor(batch, "log_probs_new").requires_grad_(),
        torch.tensor(batch.advantages)[:, None] * mask,
        mask,
        config=actor_config("token-mean", {}),
        rollout_is_weights=weights,
    )
    loss.recorder.close()
    (line,) = lines(path)
    assert line["expected"]["metrics"]["weighted_policy_loss"] == value.item()
    assert {"policy_loss", "loss_gradient"}.isdisjoint(line["expected"])
    assert {weight for row in line["rollout_is_weights"] for weight in row} == {0.5}
    assert verify(path)[0] == 0


def test_clip_cov_is_written_too(registry: dict[str, Any], tmp_path: Path) -> None:
    recorder = record(tmp_path / "r.jsonl", gradient=False)
    loss = core_algos.get_policy_loss_fn("clip_cov")
    value, _, _ = call(loss, ragged(7), "token-mean", torch.float64, **LOSSES["clip_cov"])
    recorder.close()
    line = json.loads((tmp_path / "r.jsonl").read_text())
    assert line["framework"]["policy_loss"] == "clip_cov"
    assert line["expected"]["policy_loss"] == value.item()
    assert "loss_gradient" not in line["expected"]


def test_nothing_is_opened_before_a_loss_is_computed(
    registry: dict[str, Any], tmp_path: Path
) -> None:
    record(tmp_path / "r.jsonl").close()
    assert not [*tmp_path.iterdir()]


CORRECTIONS = (
    {"loss_type": "ppo_clip", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.7_1.3"},
    {"loss_type": "ppo_clip"},
    {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True},
    {"loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": "0.5_2.0"},
    {"loss_type": "reinforce", "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.05},
)


@pytest.mark.parametrize("mode", MODES)
def test_bypass_mode_verifies(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    loss = record_policy_loss(core_algos.compute_policy_loss_bypass_mode, path)
    for correction in CORRECTIONS:
        settings = {"clip_ratio_low": 0.1}
        config = actor_config(mode, settings)
        object.__setattr__(config.policy_loss, "rollout_correction", correction)
        batch = ragged(8)
        mask = tensor(batch, "mask").bool()
        loss(
            tensor(batch, "log_probs_old"),
            tensor(batch, "log_probs_new").requires_grad_(),
            torch.tensor(batch.advantages)[:, None] * mask,
            mask,
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=torch.full(mask.shape, 0.5),  # which bypass mode ignores
        )
    loss.recorder.close()
    code, document = verify(path, "--rtol", "1e-7")
    assert code == 0, document["records"]
    assert [row["variant"] for row in document["records"]] == [
        *["verl/bypass_ppo_clip"] * 2,
        *["verl/bypass_pg_is"] * 3,
    ]
    for row in document["records"]:
        assert {"policy_loss", "loss_gradient", "metrics.actor/ppo_kl"} <= set(row["compared"])


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
