"""The loss of an optimiser step, as TRL's trainers log it and as verl's engines make it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from command import run
from tensordict import TensorDict
from trl import GRPOTrainer, RLOOTrainer
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.utils.metric import Metric

from grpo_cli.hooks.trl import record
from grpo_cli.hooks.verl import Recorder
from parity.test_trl_hook import lines

from . import tiny
from .batches import Ragged, ragged
from .verl_functions import actor_config, tensor
from .verl_pairwise import ppo_loss

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own

SINGLE = 2e-6
"""Relative to 1: losses of some tenths in float32, of which TRL rounds no digit here."""


def batches(path: Path, variant: str, *flags: str) -> list[dict[str, Any]]:
    words = ("eval", path, "-v", variant, "-f", "jsonl", "--batch", "step", "--level", "batch")
    done = run(*words, *flags)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


TRL = {
    "grpo": (GRPOTrainer, "sum", {"loss_type": "grpo", "beta": 0.04}),
    "bnpo": (GRPOTrainer, "sum", {"loss_type": "bnpo"}),
    "dapo": (GRPOTrainer, "sum", {"loss_type": "dapo", "beta": 0.02}),
    "rloo": (RLOOTrainer, "mean", {}),
}


@pytest.mark.parametrize("case", TRL)
def test_what_trl_logs_for_a_step(case: str, tmp_path: Path) -> None:
    kind, rule, settings = TRL[case]
    torch.set_num_threads(1)
    trainer = tiny.trainer(tmp_path, kind, **settings)
    with record(trainer, tmp_path / "rollouts.jsonl"):
        trainer.train()
    rows = batches(tmp_path / "rollouts.jsonl", f"trl/{case}")
    logged = tiny.losses(trainer)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row, loss in zip(rows, logged, strict=True):
        assert (row["micro_batches"], row["accumulation"]) == (2, rule)
        assert row["accumulated_loss"] == pytest.approx(loss, rel=SINGLE, abs=SINGLE)
    if case == "grpo":  # the mean of the records' own losses is another number
        assert any(abs(row["loss"] - loss) > 1e-3 for row, loss in zip(rows, logged, strict=True))


def as_verl_has_it(batch: Ragged, rows: slice, info: dict[str, Any]) -> tuple[Any, TensorDict]:
    """What an engine's forward pass returns for some rows, and their data: prompts of one token."""
    mask = tensor(batch, "mask")[rows]
    count, width = mask.shape
    written = batch.columns["log_probs_new"][rows]
    attended = torch.zeros(count, 1 + width, dtype=torch.long)
    for row, values in enumerate(written):
        attended[row, : 1 + len(values)] = 1
    # log-probs stand one token to the left of what they are of, behind each other
    log_probs = [torch.tensor([*values, 0.0], dtype=torch.float64) for values in written]
    data = TensorDict(
        {
            "prompts": torch.zeros(count, 1, dtype=torch.long),
            "responses": torch.zeros(count, width, dtype=torch.long),
            "attention_mask": attended,
            "response_mask": mask.long(),
            "old_log_probs": tensor(batch, "log_probs_old")[rows],
            "advantages": (torch.tensor(batch.advantages)[:, None] * tensor(batch, "mask"))[rows],
        },
        batch_size=count,
    )
    tensordict_utils.assign_non_tensor(data, **info)
    return {"log_probs": torch.cat(log_probs).requires_grad_()}, data


@pytest.mark.parametrize("loss", ["vanilla", "geo_mean"])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_what_verl_reports_of_a_step(
    loss: str,
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two micro-batches on each of two ranks, of several sizes, through verl's own ``ppo_loss``."""
    batch = ragged(11)
    count = batch.count
    bounds = [0, count // 5, count // 2, count // 2 + 2, count]
    cuts = [slice(*pair) for pair in pairwise(bounds)]
    recorder = Recorder(tmp_path / "calls.jsonl", gradient=False)
    registry = dict(core_algos.POLICY_LOSS_REGISTRY)
    registry[loss] = recorder.of(registry[loss], loss)
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", registry)
    config = actor_config(mode, {})
    object.__setattr__(config.policy_loss, "loss_mode", loss)  # frozen
    info = {
        "dp_size": 2,
        "batch_num_tokens": int(tensor(batch, "mask").sum()),
        "global_batch_size": count,
    }
    ranks = []
    for rank in range(2):
        reported = Metric(aggregation="sum")
        for cut in cuts[2 * rank : 2 * rank + 2]:
            value, metrics = ppo_loss()(config, *as_verl_has_it(batch, cut, info))
            assert metrics["actor/pg_loss"].aggregation == reported.aggregation
            reported.append(value.item())
        ranks.append(reported)
    recorder.close()
    places = [{"step": 0, "dp_rank": at // 2, "micro_batch": at % 2} for at in range(4)]
    path = tmp_path / "rollouts.jsonl"
    named = zip(lines(tmp_path / "calls.jsonl"), places, strict=True)
    path.write_text("".join(json.dumps(call | place) + "\n" for call, place in named))
    stage = [] if loss == "geo_mean" else ["--aggregate", f"verl/{mode}"]
    (row,) = batches(path, f"verl/{loss}", *stage)
    assert (row["micro_batches"], row["accumulation"]) == (4, "sum")
    assert row["accumulated_loss"] == pytest.approx(Metric.aggregate_dp(ranks), rel=1e-7)
