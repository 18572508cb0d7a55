"""Writes tests/golden/others.json: what OpenRLHF, slime, NeMo-RL, AReaL, prime-rl and open-instruct compute.

Run ``python -m tests.parity.other_frameworks OWNER/NAME=CLONE...`` with a git clone of each of
``framework_sources.COMMITS``. Each case names the row, stages and hyperparameters that should give the
same. Where a framework reduces in code that needs its engine (slime, open-instruct), the reduction
is written out here, and said so in ``reduced``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from .batches import Ragged, ragged
from .framework_sources import COMMITS, Clones, in_float64

GOLDEN = Path(__file__).parent.parent / "golden" / "others.json"
Loss = Callable[["Inputs"], torch.Tensor]


class Inputs:
    """A batch as the frameworks hold it: padded [R, T] in float64; ``new`` takes the gradient."""

    def __init__(self, batch: Ragged) -> None:
        def column(name: str) -> torch.Tensor:
            return torch.tensor(batch.padded(name), dtype=torch.float64)

        self.batch = batch
        self.mask = column("mask")
        self.new = column("log_probs_new").requires_grad_()
        self.old, self.ref = column("log_probs_old"), column("log_probs_ref")
        self.gen = column("log_probs_rollout")
        self.advantages = torch.tensor(batch.advantages)[:, None].expand(self.mask.shape)
        self.lengths = self.mask.sum(-1)

    def token_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Σ over tokens / number of tokens."""
        return (values * self.mask).sum() / self.mask.sum()

    def response_mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean over responses of token means; one without tokens counts."""
        return ((values * self.mask).sum(-1) / self.lengths.clamp(min=1)).mean()

    def packed(self, table: torch.Tensor) -> list[torch.Tensor]:
        """One tensor per response."""
        return [row[: len(m)] for row, m in zip(table, self.batch.mask, strict=True)]


Case = tuple[str, str, dict[str, str], dict[str, Any], Loss]
"""Framework, variant, stages, hyperparameters, loss."""


def openrlhf(clones: Clones) -> Iterator[Case]:
    """PolicyLoss and compute_approx_kl."""
    name = "OpenRLHF/OpenRLHF"
    utils = clones.load(name, "openrlhf/models/utils.py", ["compute_approx_kl", "masked_mean"])
    loss = clones.load(
        name,
        "openrlhf/models/loss.py",
        ["PolicyLoss", "aggregate_loss"],
        masked_mean=utils.masked_mean,
    )

    def run(kl: str | None = None, beta: float = 0.0, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            policy = loss.PolicyLoss(**settings)(x.new, x.old, x.advantages, x.mask, x.gen)[0]
            if kl is None:
                return policy
            return policy + beta * loss.aggregate_loss(
                utils.compute_approx_kl(x.new, x.ref, kl), x.mask
            )

        return value

    yield name, "openrlhf/ppo", {}, {}, run()
    yield name, "openrlhf/ppo", {}, {"epsilon_high": 0.28, "dual_clip": 3.0}, run(
        clip_eps_high=0.28, dual_clip=3.0
    )
    yield name, "openrlhf/gspo", {}, {}, run(policy_loss_type="gspo")
    for kl in ("k1", "k2", "k3"):
        stages, values = {"kl": kl}, {"beta": 0.1, "kl_output_clamp": 10.0}
        yield name, "openrlhf/ppo", stages, values, run(kl, 0.1)
        yield name, "openrlhf/gspo", stages, values, run(kl, 0.1, policy_loss_type="gspo")
    corrected = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.5, 5.0]}
    yield name, "openrlhf/gspo-is", {}, {}, run(policy_loss_type="gspo", **corrected)
    for kind in ("tis", "icepop", "seq-mask-tis"):
        yield name, f"openrlhf/{kind}", {}, {}, run(vllm_is_correction_type=kind, **corrected)
    tight = {**corrected, "vllm_is_truncated_threshold": [0.95, 1.05]}
    for kind in ("tis", "icepop", "seq-mask-tis"):
        yield name, f"openrlhf/{kind}", {}, {"is_low": 0.95, "is_high": 1.05}, run(
            vllm_is_correction_type=kind, **tight
        )


def slime(clones: Clones) -> Iterator[Case]:
    """compute_policy_loss, compute_cispo_loss, compute_gspo_kl, compute_approx_kl, OPSM."""
    name = "THUDM/slime"
    own = clones.load(
        name,
        "slime/utils/ppo_utils.py",
        [
            "compute_approx_kl",
            "compute_cispo_loss",
            "compute_gspo_kl",
            "compute_opsm_mask",
            "compute_policy_loss",
        ],
    )

    def ppo(x: Inputs, low: float, high: float, c: float | None = None) -> torch.Tensor:
        return own.compute_policy_loss(x.old - x.new, x.advantages, low, high, c)[0]

    def gspo(x: Inputs) -> torch.Tensor:
        rows = [list(table) for table in (x.new, x.old, x.new, x.mask)]
        kl = own.compute_gspo_kl(*rows).reshape(x.mask.shape)
        return own.compute_policy_loss(kl, x.advantages, 0.2, 0.2, None)[0]

    def cispo(x: Inputs, low: float, high: float) -> torch.Tensor:
        return own.compute_cispo_loss(x.old - x.new, x.new, x.advantages, low, high)[0]

    def opsm(x: Inputs) -> torch.Tensor:
        args = SimpleNamespace(opsm_delta=1e-4)
        rows = [list(table) for table in (x.new, x.old, x.advantages, x.mask)]
        return own.compute_opsm_mask(args, *rows)[0].reshape(x.mask.shape) * ppo(x, 0.2, 0.2)

    def kl(x: Inputs, kind: str, *, unbiased: bool) -> torch.Tensor:
        ratio = (x.new - x.old).exp() if unbiased else None
        return ppo(x, 0.2, 0.2) + 0.1 * own.compute_approx_kl(x.new, x.ref, kind, ratio)

    tables: list[tuple[str, dict[str, str], dict[str, Any], Loss]] = [
        ("slime/grpo", {}, {}, lambda x: ppo(x, 0.2, 0.2)),
        (
            "slime/grpo",
            {},
            {"epsilon_high": 0.28, "dual_clip": 3.0},
            lambda x: ppo(x, 0.2, 0.28, 3.0),
        ),
        ("slime/gspo", {}, {}, gspo),
        ("slime/cispo", {}, {}, lambda x: cispo(x, 0.2, 0.2)),
        ("slime/cispo", {}, {"epsilon_low": 1.0, "epsilon_high": 4.0}, lambda x: cispo(x, 1.0, 4.0)),
        ("slime/opsm", {}, {}, opsm),
    ]
    for kind in ("k1", "k2", "k3", "low_var_kl"):
        ours = "slime/low_var_kl" if kind == "low_var_kl" else kind
        for unbiased in (False, True):
            weight = {"kl_weight": "ratio" if unbiased else "none"}
            tables.append(
                (
                    "slime/grpo",
                    {"kl": ours},
                    {"beta": 0.1, **weight},
                    lambda x, kind=kind, unbiased=unbiased: kl(x, kind, unbiased=unbiased),
                )
            )
    for variant, stages, values, table in tables:
        yield name, variant, stages, values, lambda x, table=table: x.response_mean(table(x))
        by_token = {**stages, "aggregate": "slime/token-mean"}

        def per_token(x: Inputs, table: Loss = table) -> torch.Tensor:
            return (table(x) * x.mask).sum() / x.lengths.clamp(min=1).sum()

        yield name, variant, by_token, values, per_token


def nemo_rl(clones: Clones) -> Iterator[Case]:
    """ClippedPGLossFn."""
    name = "NVIDIA-NeMo/RL"
    utils = clones.load(name, "nemo_rl/algorithms/utils.py", ["calculate_kl", "masked_mean"])
    own = clones.load(
        name,
        "nemo_rl/algorithms/loss/loss_functions.py",
        ["ClippedPGLossConfig", "ClippedPGLossFn"],
        calculate_kl=utils.calculate_kl,
        masked_mean=utils.masked_mean,
    )

    def shifted(table: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(table[:, :1]), table], dim=1)

    def run(**settings: Any) -> Loss:
        config = own.ClippedPGLossConfig(**settings)

        def value(x: Inputs) -> torch.Tensor:
            data = {
                "token_mask": shifted(x.mask),
                "sample_mask": torch.ones(len(x.mask)),
                "advantages": shifted(x.advantages),
                "prev_logprobs": shifted(x.old),
                "generation_logprobs": shifted(x.gen),
                "reference_policy_logprobs": shifted(x.ref),
            }
            count = torch.tensor(float(len(x.mask)))
            return own.ClippedPGLossFn(config)(x.new, data, count, x.mask.sum())[0]

        return value

    sequence = {"sequence_level_importance_ratios": True, "token_level_loss": False}
    weighted = {"use_importance_sampling_correction": True}

    def truncated(kind: str, low: float | None, high: float) -> dict[str, Any]:
        return {
            **weighted,
            "truncated_importance_sampling_type": kind,
            "truncated_importance_sampling_ratio": high,
            "truncated_importance_sampling_ratio_min": low,
        }

    yield name, "nemo-rl/grpo", {}, {}, run()
    yield name, "nemo-rl/grpo", {}, {"beta": 0.5}, run(reference_policy_kl_penalty=0.5)
    for kind in ("k1", "k2", "k3"):
        kl = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": kind}
        yield name, "nemo-rl/grpo", {"kl": f"nemo-rl/{kind}"}, {"beta": 0.1}, run(**kl)
        approximate = run(**kl, use_on_policy_kl_approximation=True)
        yield name, "nemo-rl/grpo", {"kl": f"nemo-rl/{kind}-rollout"}, {"beta": 0.1}, approximate
    yield name, "nemo-rl/grpo", {"aggregate": "response-mean"}, {}, run(token_level_loss=False)
    yield name, "nemo-rl/dapo", {}, {}, run(
        ratio_clip_max=0.28, ratio_clip_c=10, reference_policy_kl_penalty=0.0
    )
    yield name, "nemo-rl/gspo", {}, {}, run(**sequence)
    yield name, "nemo-rl/gspo-is", {}, {}, run(**sequence, **weighted)
    yield name, "nemo-rl/gspo-is", {}, {"is_high": 2.0}, run(**sequence, **truncated("tis", None, 2))
    yield name, "nemo-rl/cispo", {}, {}, run(use_cispo=True)
    yield name, "nemo-rl/cispo", {}, {"epsilon_low": 1.0, "epsilon_high": 5.0}, run(
        use_cispo=True, ratio_clip_min=1.0, ratio_clip_max=5.0
    )
    yield name, "nemo-rl/reinforce", {}, {}, run(disable_ppo_ratio=True)
    yield name, "nemo-rl/on-policy", {}, {}, run(force_on_policy_ratio=True)
    yield name, "nemo-rl/grpo-is", {}, {}, run(**weighted)
    yield name, "nemo-rl/grpo-is", {}, {"is_high": 1.05}, run(**truncated("tis", None, 1.05))
    yield name, "nemo-rl/icepop", {}, {}, run(**truncated("icepop", 0.5, 5.0))
    yield name, "nemo-rl/seq-mask-tis", {}, {}, run(**truncated("seq-mask-tis", 0.999, 1.002))
    yield name, "nemo-rl/seq-mask-tis", {}, {"is_low": 0.9, "is_high": 1.1}, run(
        **truncated("seq-mask-tis", 0.9, 1.1)
    )


def areal(clones: Clones) -> Iterator[Case]:
    """ppo_actor_loss_fn with its rejection sampling, sapo_loss_fn, the M2PO mask."""
    name = "inclusionAI/AReaL"
    own = clones.load(
        name,
        "areal/utils/functional/functional.py",
        [
            "RejectionSamplingResult",
            "_check_bounds",
            "_compute_sequence_level_ratio_and_advantages",
            "apply_rejection_sampling",
            "ppo_actor_loss_fn",
            "sapo_loss_fn",
        ],
    )
    actor = clones.load(
        name, "areal/trainer/ppo/actor.py", ["_apply_m2po_masking", "_get_m2po_loss_mask"]
    )

    def rejection(level: str = "token", action: str = "mask", **bounds: Any) -> SimpleNamespace:
        return SimpleNamespace(
            level=level, action=action, metric="ratio", agg="mean", **{"lower": None, **bounds}
        )

    def run(m2: float | None = None, clip: float = 0.4, **settings: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            mask = x.mask.bool()
            if m2 is not None:
                mask = actor._apply_m2po_masking(x.gen, x.old, mask, m2)
            tables = (x.new, x.old, x.gen, x.advantages)
            return own.ppo_actor_loss_fn(*tables, eps_clip=clip, loss_mask=mask, **settings)[0]

        return value

    def sapo(x: Inputs) -> torch.Tensor:
        return own.sapo_loss_fn(x.new, x.old, x.advantages, 1.0, 1.05, x.mask.bool())[0]

    example = {"rejection_sampling": rejection(upper=5.0)}
    yield name, "areal/grpo", {}, {}, run(**example)
    yield name, "areal/grpo", {"correction": "none"}, {}, run()
    yield name, "areal/grpo", {}, {"is_low": 0.9, "is_high": 1.1}, run(
        rejection_sampling=rejection(lower=0.9, upper=1.1)
    )
    yield name, "areal/grpo", {"correction": "token-truncate"}, {"is_high": 1.1}, run(
        rejection_sampling=rejection(action="clamp", upper=1.1)
    )
    yield name, "areal/grpo", {"correction": "areal/sequence-mask"}, {
        "is_low": 0.9,
        "is_high": 1.1,
    }, run(rejection_sampling=rejection("sequence", lower=0.9, upper=1.1))
    yield name, "areal/dapo", {}, {"dual_clip": 3.0}, run(
        clip=0.2, eps_clip_higher=0.28, c_clip=3.0, **example
    )
    yield name, "areal/gspo", {}, {}, run(importance_sampling_level="sequence", **example)
    yield name, "areal/gspo", {}, {"is_low": 0.9, "is_high": 1.1, "epsilon": 0.02}, run(
        clip=0.02,
        importance_sampling_level="sequence",
        rejection_sampling=rejection(lower=0.9, upper=1.1),
    )
    yield name, "areal/sapo", {}, {}, sapo
    yield name, "areal/m2po", {}, {}, run(0.04, 0.0, **example)
    yield name, "areal/m2po", {}, {"m2_threshold": 0.001, "epsilon": 0.2, "is_high": 1.1}, run(
        0.001, 0.2, rejection_sampling=rejection(upper=1.1)
    )
    yield name, "areal/m2po", {"correction": "areal/m2po"}, {}, run(0.04, 0.0)


def prime_rl(clones: Clones) -> Iterator[Case]:
    """default_loss_fn, ipo_loss_fn and ref_kl_loss_fn, summed and scaled by compute_loss."""
    name = "PrimeIntellect-ai/prime-rl"
    own = clones.load(
        name,
        "src/prime_rl/trainer/rl/loss.py",
        [
            "LossInputs",
            "LossOutputs",
            "_safe_mean",
            "compute_importance_ratio_and_mismatch_kl",
            "compute_loss",
            "default_loss_fn",
            "ipo_loss_fn",
            "ref_kl_loss_fn",
        ],
        field=field,
    )
    default = {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "adv_tau": 1.0, "kl_tau": 1e-3}

    def run(function: Any, *, distil: bool = False, **config: Any) -> Loss:
        def value(x: Inputs) -> torch.Tensor:
            columns = [x.packed(table) for table in (x.new, x.gen, x.ref, x.advantages, x.mask.bool())]
            ones = [mask.double() for mask in columns[-1]]
            weights = ([torch.zeros_like(one) for one in ones], None, ones)
            tokens = int(x.mask.sum())
            return own.compute_loss(
                *columns,
                *(weights if distil else (None, None, None)),
                rl_loss_fn=lambda inputs: function(inputs, SimpleNamespace(**config)),
                rl_scale=tokens,
                ce_scale=1,
                ref_kl_scale=tokens,
            )[0]

        return value

    yield name, "prime-rl/grpo", {}, {}, run(own.default_loss_fn, **default)
    yield name, "prime-rl/grpo", {}, {
        "divergence_low": 0.02,
        "divergence_high": 0.05,
        "beta": 0.1,
    }, run(own.default_loss_fn, dppo_mask_low=0.02, dppo_mask_high=0.05, adv_tau=1.0, kl_tau=0.1)
    yield name, "prime-rl/ipo", {}, {}, run(
        own.ipo_loss_fn, ipo_threshold=0.1, adv_tau=1.0, kl_tau=1e-3
    )
    yield name, "prime-rl/ref_kl", {}, {}, run(own.default_loss_fn, distil=True, **default)


def open_instruct(clones: Clones) -> Iterator[Case]:
    """compute_grpo_loss with compute_rho_correction; the token mean is ours."""
    name = "allenai/open-instruct"
    utils = clones.load(name, "open_instruct/model_utils.py", ["estimate_kl"])
    own = clones.load(
        name,
        "open_instruct/grpo_utils.py",
        [
            "RhoCorrection",
            "_rho_drop_masks",
            "_sequence_level_mean",
            "compute_grpo_loss",
            "compute_rho_correction",
        ],
        model_utils=utils,
        GRPOLossType=SimpleNamespace(dapo="dapo", cispo="cispo"),
        field=field,
    )
    defaults = {
        "loss_fn": "dapo",
        "clip_lower": 0.2,
        "clip_higher": 0.272,
        "kl_estimator": 2,
        "use_rho_correction": True,
        "rho_clamp_lower_bound": 0.0,
        "rho_clamp_upper_bound": 2.0,
        "rho_mask_lower_bound": 0.0,
        "rho_mask_upper_bound": 0.0,
        "rho_mask_sequence_level": False,
        "rho_mask_tv_divergence": False,
    }

    def run(**changed: Any) -> Loss:
        config = SimpleNamespace(**{**defaults, **changed})

        def value(x: Inputs) -> torch.Tensor:
            mask = x.mask.bool()
            rho = own.compute_rho_correction(x.old, x.gen, mask, x.advantages, config)
            tables = (x.new, (x.new - x.old).exp(), x.advantages.clone(), x.ref, config, rho.weights)
            policy, _, kl = own.compute_grpo_loss(*tables)
            return x.token_mean(policy + 0.05 * kl)

        return value

    yield name, "open-instruct/grpo", {}, {}, run()
    yield name, "open-instruct/grpo", {"correction": "none"}, {}, run(use_rho_correction=False)
    for index, kl in enumerate(("k1", "k2", "k3", "k1")):
        weight = {"kl_weight": "ratio" if index == 3 else "none"}
        yield name, "open-instruct/grpo", {"kl": kl}, weight, run(kl_estimator=index)
    yield name, "open-instruct/cispo", {}, {}, run(loss_fn="cispo")
    mask = {"rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.1}
    ours = {"rho_mask_low": 0.9, "rho_mask_high": 1.1}
    yield name, "open-instruct/grpo", {}, ours, run(**mask)
    yield name, "open-instruct/grpo", {}, {**ours, "is_low": 0.95, "is_high": 1.05}, run(
        **mask, rho_clamp_lower_bound=0.95, rho_clamp_upper_bound=1.05
    )
    sequence = {"correction": "open-instruct/rho-sequence"}
    yield name, "open-instruct/grpo", sequence, ours, run(**mask, rho_mask_sequence_level=True)
    variation = {"correction": "open-instruct/rho-divergence"}
    yield name, "open-instruct/grpo", variation, {"rho_mask_high": 0.05}, run(
        rho_mask_upper_bound=0.05, rho_mask_tv_divergence=True
    )


def cases(clones: Clones) -> Iterator[Case]:
    """Every case of every framework."""
    for framework in (openrlhf, slime, nemo_rl, areal, prime_rl, open_instruct):
        yield from framework(clones)


def evaluated(batch: Ragged, loss: Loss) -> dict[str, Any]:
    """The loss, and ∂(−loss)/∂log π_θ per response, of the tokens that count."""
    inputs = Inputs(batch)
    value = loss(inputs)
    value.backward()
    gradient = batch.counted(-inputs.new.grad)
    return {"loss": value.item(), "gradient": [row.tolist() for row in gradient]}


BATCHES = {kind: ragged(5, kind) for kind in ("usual", "near", "extreme", "hollow")}


def golden(clones: Clones) -> dict[str, Any]:
    """The whole document."""
    found = [
        {
            "framework": framework,
            "batch": kind,
            "variant": variant,
            "stages": stages,
            "hyperparameters": values,
            **evaluated(batch, loss),
        }
        for framework, variant, stages, values, loss in cases(clones)
        for kind, batch in BATCHES.items()
    ]
    return {
        "provenance": "tests/parity/other_frameworks.py: the frameworks' own functions, executed in "
        f"float64 with torch {torch.__version__}",
        "commits": COMMITS,
        "reduced": "slime's and open-instruct's denominators are written out in the script",
        "batches": {kind: batch.record() for kind, batch in BATCHES.items()},
        "cases": found,
    }


if __name__ == "__main__":
    in_float64()
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    document = golden(Clones({name: Path(path) for name, path in given.items()}))
    GOLDEN.write_text(json.dumps(document, separators=(",", ":")).replace("},{", "},\n{") + "\n")
