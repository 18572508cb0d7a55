"""More of them: the KL, the weights of a correction, entropy, denominators, masks, advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import trainer as right
from .bugs import Bug, only, rolled
from .trainer import Batch

Reduce = Callable[[Batch, Tensor], Tensor]


# ---- the KL --------------------------------------------------------------------------------------


def _kl(change: Callable[[Batch], Tensor]) -> dict[str, Any]:
    return {"kl": change}


def _after_all(b: Batch, loss: Tensor, penalty: Tensor, reduce: Reduce) -> Tensor:
    return reduce(b, loss) + penalty.mean()


def _k3(gap: Tensor) -> Tensor:
    return gap.exp() - gap - 1


def _reversed(b: Batch) -> Tensor:
    return {"k1": b.ref - b.new, "k2": right.kl(b), "k3": _k3(b.new - b.ref)}[b.kind["kl"]]


KLS = (
    Bug(
        "the KL's log-ratio the other way round",
        "walkinglabs/hands-on-modern-rl/issues/27",
        "kl-reversed",
        _kl(_reversed),
    ),
    Bug(
        "every estimator falls through to k3",
        "areal-project/AReaL/pull/408",
        "kl-estimator",
        _kl(lambda b: _k3(b.ref - b.new)),
    ),
    Bug(
        "the squared log-ratio, not half of it",
        "one-covenant/grail/pull/42",
        "kl-square",
        _kl(lambda b: (b.ref - b.new) ** 2),
    ),
    Bug(
        "the KL is subtracted from the loss",
        "marin-community/marin/issues/1708",
        "kl-sign",
        _kl(lambda b: -right.kl(b)),
    ),
    Bug(
        "the KL is averaged apart, over padding too",
        "allenai/open-instruct/pull/535",
        "kl-aggregate",
        {"add_kl": _after_all},
    ),
    Bug(
        "the KL's coefficient is not read",
        "Jiayi-Pan/TinyZero/issues/67",
        "kl-dropped",
        _kl(lambda b: 0 * b.new),
    ),
    Bug(
        "the KL's log-ratio is clamped to ±10, and so is the estimate",
        "verl-project/verl/pull/1779",
        "kl-clamp",
        _kl(lambda b: right.kl(b).clamp(-10, 10)),
    ),
    Bug(
        "the KL's log-ratio is clamped to ±5",
        "huggingface/trl/pull/6637",
        "kl-clamp",
        _kl(lambda b: right.kl(_with(b, ref=b.new + (b.ref - b.new).clamp(-5, 5)))),
    ),
    Bug(
        "the KL has a value and no gradient",
        "OpenRLHF/OpenRLHF/pull/1309",
        "kl-detached",
        _kl(lambda b: right.kl(b).detach()),
    ),
)


def _with(b: Batch, **changed: Any) -> Batch:
    return Batch(**(vars(b) | changed))


# ---- the weights of a correction -----------------------------------------------------------------


def _weighed(gap: Callable[[Batch], Tensor], *, held: bool = True) -> dict[str, Any]:
    """The right weights of another gap between the trainer and the engine."""

    def weights(b: Batch) -> Tensor:
        if b.kind["correction"] == "none":
            return torch.ones_like(b.mask)
        level, _, how = b.kind["correction"].partition("-")
        of = gap(b) * b.mask
        of = of.sum(1, keepdim=True).expand_as(of) if level == "sequence" else of
        weight, low, high = of.exp(), b.cfg.get("is_low", 0.0), b.cfg.get("is_high", torch.inf)
        if how == "truncate":
            weight = weight.clamp(low, high)
        else:
            weight = torch.where((weight >= low) & (weight <= high), weight, 0.0)
        return weight.detach() if held else weight

    return {"weights": weights}


def _mean_weight(b: Batch) -> Tensor:
    if not b.kind["correction"].startswith("sequence"):
        return right.weights(b)
    shared = (b.old - b.roll) / right.lengths(b)
    return right.weights(_with(b, old=shared, roll=torch.zeros_like(shared)))


def _untruncated(b: Batch) -> Tensor:
    if not b.kind["correction"].endswith("truncate"):
        return right.weights(b)
    return right.weights(_with(b, cfg={}))


CORRECTIONS = (
    Bug(
        "the weights keep their gradient, and are of the current policy",
        "verl-project/verl/pull/4105",
        "correction-gradient",
        _weighed(lambda b: b.new - b.roll, held=False),
    ),
    Bug(
        "the weights are of the current policy",
        "THUDM/slime/pull/179",
        "correction-of-new",
        _weighed(lambda b: b.new - b.roll),
    ),
    Bug(
        "a sequence's weight is of its mean log-ratio",
        "huggingface/trl/pull/5815",
        "correction-product-or-mean",
        {"weights": _mean_weight},
    ),
    Bug(
        "weights are not truncated", "OpenRLHF/OpenRLHF/issues/1295", "", {"weights": _untruncated}
    ),
    Bug(
        "the weights never reach a sequence-level loss",
        "arcee-ai/NeMo-RL/pull/24",
        "correction-dropped",
        {
            "weights": lambda b: (
                torch.ones_like(b.mask)
                if b.kind["aggregate"] == "response-mean"
                else right.weights(b)
            )
        },
    ),
    Bug(
        "the weights are not applied",
        "linkedin/Liger-Kernel/issues/1082",
        "correction-dropped",
        {"weights": lambda b: torch.ones_like(b.mask)},
    ),
)


# ---- entropy -------------------------------------------------------------------------------------


def _unmasked_entropy(b: Batch, loss: Tensor, penalty: Tensor, reduce: Reduce) -> Tensor:
    total = reduce(b, loss + penalty)
    if "entropy_coef" not in b.cfg:
        return total
    return total - b.cfg["entropy_coef"] * (b.raw.sum() - b.entropies.sum()) / b.mask.sum()


def _keep_entropies(b: Batch) -> None:
    b.raw = b.entropies
    right.prepare(b)


ENTROPIES = (
    Bug(
        "the bonus is added to the loss",
        "NovaSky-AI/SkyRL/pull/622",
        "entropy-sign",
        {"entropy": lambda b: -b.entropies},
    ),
    Bug(
        "the entropies of padding count",
        "huggingface/trl/pull/6121",
        "entropy-masked",
        {"prepare": _keep_entropies, "add_kl": _unmasked_entropy},
    ),
    Bug(
        "the bonus is never added",
        "Toni-SM/skrl/pull/357",
        "entropy-dropped",
        {"entropy": lambda b: 0 * b.new},
    ),
)


# ---- denominators and masks ----------------------------------------------------------------------


def _mode(mode: str, reduce: Reduce) -> dict[str, Any]:
    return only("aggregate", mode, "aggregate", reduce)


def _local_tokens(b: Batch, loss: Tensor) -> Tensor:
    share = len(b.mask) / b.step.responses * b.step.ranks
    return (loss * b.mask).sum() / b.mask.sum().clamp(min=1) * share


def _local_mean(b: Batch, loss: Tensor) -> Tensor:
    return (loss * b.mask).sum() / b.mask.sum().clamp(min=1) / b.step.micro_batches


def _unclamped(b: Batch, loss: Tensor) -> Tensor:
    rows = (loss * b.mask).sum(1) / b.mask.sum(1)
    return rows.sum() / b.step.responses * b.step.ranks


def _unmasked_sum(b: Batch, loss: Tensor) -> Tensor:
    return loss.sum() / max(b.step.tokens, 1) * b.step.ranks


def _raw_inputs(b: Batch) -> None:
    """Nothing is taken out of the columns."""


def _written(b: Batch, loss: Tensor) -> Tensor:
    return (loss * b.mask).sum() / b.written.sum() * b.step.ranks * _part(b)


def _part(b: Batch) -> float:
    """The share of this micro-batch, by responses."""
    return len(b.mask) / b.step.responses


def _scaled(factor: Callable[[Batch], float], *modes: str) -> dict[str, Any]:
    def aggregate(b: Batch, loss: Tensor) -> Tensor:
        told = not modes or b.kind["aggregate"] in modes
        return right.aggregate(b, loss) * (factor(b) if told else 1.0)

    return {"aggregate": aggregate}


REDUCTIONS = (
    Bug(
        "the mean is over all positions of the padded batch",
        "Tencent-Hunyuan/UniRL/pull/448",
        "padded-length",
        _mode("token-mean", lambda b, loss: (loss * b.mask).mean() * b.step.ranks * _part(b)),
    ),
    Bug(
        "the sequence mean is a token mean",
        "hiyouga/EasyR1/issues/212",
        "token-for-response-mean",
        _mode(
            "response-mean",
            lambda b, loss: (loss * b.mask).sum() / max(b.step.tokens, 1) * b.step.ranks,
        ),
    ),
    Bug(
        "the token mean averages the responses' means",
        "huggingface/trl/issues/3187",
        "token-for-response-mean",
        _mode(
            "token-mean",
            lambda b, loss: (
                ((loss * b.mask).sum(1, keepdim=True) / right.lengths(b)).sum()
                / b.step.responses
                * b.step.ranks
            ),
        ),
    ),
    Bug(
        "the token mean's numerator is not masked",
        "alibaba/ROLL/pull/444",
        "mask-ignored",
        {"prepare": _raw_inputs, **_mode("token-mean", _unmasked_sum)},
    ),
    Bug(
        "masked tokens stay in the denominator",
        "huggingface/trl/pull/6439",
        "truncated-in-denominator",
        _mode("token-mean", _written),
    ),
    Bug(
        "the step's token mean is divided by the accumulation steps again",
        "modelscope/ms-swift/pull/10116",
        "accumulation-twice",
        _scaled(lambda b: 1 / b.step.micro_batches),
    ),
    Bug(
        "each micro-batch divides by its own tokens",
        "allenai/open-instruct/pull/1161",
        "mean-of-means",
        _mode("token-mean", _local_mean),
    ),
    Bug(
        "micro-batches' token means are weighted by their responses",
        "verl-project/verl/issues/5625",
        "mean-of-means",
        _mode("token-mean", _local_tokens),
    ),
    Bug(
        "the ranks' average is not undone",
        "meta-pytorch/torchtune/pull/2172",
        "",
        _scaled(lambda b: 1 / b.step.ranks),
    ),
    Bug(
        "sequence means are divided by the ranks twice",
        "verl-project/verl/pull/5798",
        "",
        _scaled(lambda b: 1 / b.step.ranks**2, "response-mean", "token-sum"),
    ),
    Bug(
        "the constant length alone divides, not the responses",
        "verl-project/verl/pull/4510",
        "norm-without-responses",
        _scaled(lambda b: b.step.responses, "token-sum-norm"),
    ),
    Bug(
        "the batch's width for the constant length",
        "verl-project/verl/issues/3741",
        "padded-length",
        _scaled(
            lambda b: b.cfg.get("max_completion_length", 1) / b.mask.shape[1], "token-sum-norm"
        ),
    ),
    Bug(
        "each row is multiplied by its length once more",
        "huggingface/trl/pull/6654",
        "length-squared",
        _mode(
            "token-sum",
            lambda b, loss: right.aggregate(b, loss * b.mask.sum(1, keepdim=True)),
        ),
    ),
    Bug(
        "a response without tokens divides by 0",
        "unslothai/unsloth-zoo/pull/1286",
        "all-masked",
        _mode("response-mean", _unclamped),
    ),
    Bug(
        "a constant number of tokens divides",
        "PrimeIntellect-ai/prime-rl/pull/580",
        "constant-length",
        _mode("token-mean", lambda b, loss: (loss * b.mask).sum() / 8.0 * b.step.ranks),
    ),
    Bug(
        "the mask is one position late",
        "Goekdeniz-Guelmez/mlx-lm-lora/issues/80",
        "mask-shifted",
        {"prepare": rolled},
    ),
)


# ---- advantages ----------------------------------------------------------------------------------


def _advantages(change: Callable[[Batch], Tensor]) -> dict[str, Any]:
    return {"advantages": change}


def _one_group(b: Batch) -> Tensor:
    return right.advantages(_with(b, groups=torch.zeros_like(b.groups)))


def _whitened(b: Batch) -> Tensor:
    a = right.advantages(b)
    return (a - a.mean()) / (a.std() + 1e-8)


def _batch_std(b: Batch) -> Tensor:
    kind = {**b.kind}
    if kind["advantage"] == "group-std":
        kind["advantage"] = "batch-std"
    return right.advantages(_with(b, kind=kind))


def _in_the_root(b: Batch) -> Tensor:
    if b.kind["advantage"] != "group-std":
        return right.advantages(b)
    centred = right.advantages(_with(b, kind={**b.kind, "advantage": "group-mean"}))
    return centred / (right.spread(b) ** 2 + b.cfg["std_eps"]).sqrt()


def _population(b: Batch) -> Tensor:
    return right.advantages(_with(b, cfg={**b.cfg, "std_ddof": 0}))


def _own_reward(b: Batch) -> Tensor:
    if b.kind["advantage"] != "leave-one-out":
        return right.advantages(b)
    return right.advantages(_with(b, kind={**b.kind, "advantage": "group-mean"}))


def _strided(b: Batch) -> Tensor:
    size = int((b.groups == b.groups[0]).sum())
    return right.advantages(_with(b, groups=torch.arange(len(b.groups)) // size))


ADVANTAGES = (
    Bug(
        "mean and std are over the batch",
        "XU-YIJIE/grpo-flat/issues/2",
        "batch-as-one-group",
        _advantages(_one_group),
    ),
    Bug(
        "the batch's std for the group's",
        "langfengQ/verl-agent/issues/138",
        "std-level",
        _advantages(_batch_std),
    ),
    Bug(
        "normalised by group, then by batch",
        "axon-rl/gem/pull/113",
        "advantage-twice",
        _advantages(_whitened),
    ),
    Bug(
        "the epsilon is inside the root",
        "verl-project/verl/pull/3635",
        "std-eps",
        _advantages(_in_the_root),
    ),
    Bug(
        "the population's std",
        "NVIDIA-NeMo/labs-molt/pull/8",
        "std-ddof",
        _advantages(_population),
    ),
    Bug(
        "the leave-one-out mean has the response in it",
        "redai-studio/Relax/pull/205",
        "leave-one-out",
        _advantages(_own_reward),
    ),
    Bug(
        "groups are every so many rows",
        "areal-project/AReaL/issues/1419",
        "group-stride",
        _advantages(_strided),
    ),
    Bug(
        "not divided by the std",
        "thinking-machines-lab/tinker-cookbook/issues/579",
        "std-or-not",
        _advantages(
            lambda b: right.advantages(
                _with(
                    b,
                    kind={
                        **b.kind,
                        "advantage": b.kind["advantage"].replace("group-std", "group-mean"),
                    },
                )
            )
        ),
    ),
)
