"""TRL 1.16's GRPO loss, step by step, with its gradient; each step can be replaced by a wrong one.

Written from the formulas, not from the code. With d = θ − o, n_i the tokens of response i, B
responses, and all of it divided by the accumulation steps but for dapo and cispo:

    ρ = e^d, at the sequence level e^(Σ d / n_i) for all tokens of a response
    grpo, bnpo, dr_grpo, dapo:  p = −min(ρ·A, clip(ρ, 1 − ε_low, 1 + ε_high)·A)
    cispo:                      p = −sg[min(ρ, ε_high)]·A·θ
    k = e^(f − θ) − (f − θ) − 1, times ρ with use_bias_correction_kl
    grpo: mean_i Σ_t (p + β·k)/n_i;  bnpo: Σ/N;  dr_grpo: Σ/(B·L);  dapo, cispo: Σ/N_gen
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trials import tape
from trials.simulate.policy import F64
from trials.tape import Var
from trials.trl.data import Data


@dataclass(frozen=True)
class Steps:
    """The loss as its steps; a wrong implementation is one of these with a step replaced.

    Attributes:
        advantage: data → [N] advantages.
        log_ratio: data, θ → [N].
        policy: data, θ, ρ, A → [N] p.
        kl: data, θ, ρ → [N] β·k; None without KL.
        reduce: data, p, β·k → the loss, before accumulation.
        finish: data, loss → the loss as it is logged and differentiated.
    """

    advantage: Callable[[Data], F64]
    log_ratio: Callable[[Data, Var], Var]
    policy: Callable[[Data, Var, Var, F64], Var]
    kl: Callable[[Data, Var, Var], Var]
    reduce: Callable[[Data, Var, Var], Var]
    finish: Callable[[Data, Var], Var]


def advantage(data: Data) -> F64:
    return data.advantages[data.index]


def log_ratio(data: Data, new: Var) -> Var:
    change = new - data.old
    if data.framework["importance_sampling_level"] == "token":
        return change
    return tape.spread(tape.rows(change, data.index, data.count) / data.lengths, data.index)


def bounds(data: Data) -> tuple[float, float]:
    return 1.0 - data.hyper["epsilon_low"], 1.0 + data.hyper["epsilon_high"]


def policy(data: Data, new: Var, ratio: Var, advantage: F64) -> Var:
    if data.framework["loss_type"] == "cispo":
        return -(tape.stop(tape.clamp(ratio, 0.0, data.hyper["epsilon_high"])) * advantage * new)
    return -tape.least(ratio * advantage, tape.clamp(ratio, *bounds(data)) * advantage)


def kl(data: Data, new: Var, ratio: Var) -> Var:
    weighted = data.framework.get("use_bias_correction_kl")
    return data.hyper["beta"] * k3(data, new) * (ratio if weighted else 1.0)


def k3(data: Data, new: Var) -> Var:
    change = data.ref - new
    return np.exp(change) - change - 1.0


def reduce(data: Data, policy: Var, kl: Var) -> Var:
    return summed(data, policy + kl, data.framework["loss_type"])


def summed(data: Data, loss: Var, kind: str) -> Var:
    """The reduction of a loss type, before accumulation."""
    if kind == "grpo":
        return (loss / data.lengths[data.index]).sum() / data.count
    return loss.sum() / denominator(data, kind)


def denominator(data: Data, kind: str) -> float:
    if kind == "dr_grpo":
        return float(data.count * data.hyper["max_completion_length"])
    if kind == "bnpo":
        return float(max(len(data.new), 1))
    return float(max(data.hyper["num_items_in_batch"], 1))


def accumulated(data: Data) -> float:
    """What the loss is divided by; dapo and cispo have it in their denominator."""
    whole = data.framework["loss_type"] in ("dapo", "cispo")
    return 1.0 if whole else float(data.hyper.get("gradient_accumulation_steps", 1))


def finish(data: Data, loss: Var) -> Var:
    return loss / accumulated(data)


RIGHT = Steps(advantage, log_ratio, policy, kl, reduce, finish)


def evaluate(data: Data, steps: Steps = RIGHT) -> tuple[float, F64]:
    """The loss, and its gradient by each token's log-prob [N]."""
    new = Var(data.new)
    ratio = np.exp(steps.log_ratio(data, new))
    judged = steps.advantage(data)
    loss = steps.finish(
        data, steps.reduce(data, steps.policy(data, new, ratio, judged), steps.kl(data, new, ratio))
    )
    loss.backward()
    return float(loss.value), new.slope


def expected(data: Data, loss: float, gradient: F64, *, single: bool = True) -> dict[str, Any]:
    """What a trainer would have written: float32 numbers, a gradient of 0 at masked tokens."""
    whole = [0.0] * len(data.kept)
    kept = [at for at, one in enumerate(data.kept) if one]
    for at, value in zip(kept, gradient.tolist(), strict=True):
        whole[at] = float(np.float32(value)) if single else value
    rows, start = [], 0
    for length in data.written.tolist():
        rows.append(whole[start : start + length])
        start += length
    return {"loss": float(np.float32(loss)) if single else loss, "loss_gradient": rows}
