"""What a record says of the trainer that made it → the row and the stages that reproduce it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_cli.errors import InputError
from grpo_cli.objective.objective import STAGES
from grpo_cli.variants import NAMES, VARIANTS
from grpo_cli.variants.plan import OWN_AGGREGATES, Plan, plan

Framework = Mapping[str, Any]


@dataclass
class Chosen:
    """A variant, the stages swapped in it, and the hyperparameters that the trainer fixes."""

    variant: str
    stages: dict[str, str] = field(default_factory=dict)
    hyperparameters: dict[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The choice as the flags that would make it."""
        stages = [f"--{stage} {name}" for stage, name in self.stages.items() if stage in STAGES]
        values = [f"-p {name}={value}" for name, value in self.hyperparameters.items()]
        own = self.stages.get("kl_aggregate")
        also = [] if own is None else [f"(the KL by {own})"]
        return " ".join(["-v", self.variant, *stages, *values, *also])


def choose(framework: Framework) -> Chosen:
    """The row that a record's ``framework`` names.

    Args:
        framework: the record's own words: ``name`` and, for TRL, ``loss_type``,
            ``importance_sampling_level``, ``use_bias_correction_kl`` and, with vLLM's correction,
            ``vllm_importance_sampling_mode``; for verl, ``policy_loss``, ``loss_agg_mode``,
            ``adv_estimator``, ``kl_loss_type``.

    Raises:
        InputError: where no row reproduces it.
    """
    reader = _READERS.get(str(framework.get("name", "")).lower(), _by_variant)
    return reader(framework)


def completed(
    chosen: Chosen,
    *,
    advantages_given: bool,
    stages: Mapping[str, str],
    hyperparameters: Mapping[str, object],
) -> Plan:
    """The plan of a choice, with the flags on top of it, each record a batch of its own.

    Given advantages are used as they are, so the trainer's estimator is left out then.
    """
    kept = dict(chosen.stages)
    if advantages_given:
        kept.pop("advantage", None)
    made = plan(chosen.variant, stages={**kept, **stages}, batch="record")
    taken = {n: v for n, v in chosen.hyperparameters.items() if n in made.takes()}
    return plan(
        chosen.variant,
        stages={**kept, **stages},
        hyperparameters={**taken, **hyperparameters},
        batch="record",
    )


def _row(framework: Framework, name: object) -> str:
    for wanted in (f"{framework['name']}/{name}".lower(), str(name)):
        if wanted in NAMES:
            return NAMES[wanted]
    raise InputError(
        f"no variant reproduces {framework['name']}'s {name!r}; name one with -v",
        path="framework",
    )


def _trl(framework: Framework) -> Chosen:
    chosen = Chosen(_row(framework, framework.get("loss_type", "grpo")))
    level = framework.get("importance_sampling_level")
    if level is not None:
        chosen.stages["ratio"] = _choice("ratio", str(level))
    weighted = framework.get("use_bias_correction_kl")
    if weighted is not None:
        chosen.hyperparameters["kl_weight"] = "ratio" if weighted else "none"
    mode = framework.get("vllm_importance_sampling_mode")
    if mode is not None:
        chosen.stages |= _trl_correction(chosen.variant, f"trl/{mode}".replace("_", "-"))
    return chosen


def _trl_correction(variant: str, mode: str) -> dict[str, str]:
    """The engine's weight is a correction, but with vespo, which has it in its surrogate."""
    if variant == "trl/vespo":
        return {"surrogate": _choice("surrogate", mode.replace("trl/", "trl/vespo-"))}
    return {"correction": _choice("correction", mode)}


_VERL = {"advantage": "adv_estimator", "kl": "kl_loss_type"}


def _verl(framework: Framework) -> Chosen:
    """A loss with an aggregation of its own leaves ``loss_agg_mode`` to the KL and the entropy."""
    chosen = Chosen(_row(framework, framework.get("policy_loss", "vanilla")))
    for stage, key in _VERL.items():
        if framework.get(key) is not None:
            chosen.stages[stage] = _choice(stage, str(framework[key]), "verl/")
    if framework.get("loss_agg_mode") is not None:
        mode = _choice("aggregate", str(framework["loss_agg_mode"]), "verl/")
        own = VARIANTS[chosen.variant].kl_aggregate is not None
        stages = OWN_AGGREGATES if own else ("aggregate",)
        chosen.stages |= dict.fromkeys(stages, mode)
    return chosen


def _by_variant(framework: Framework) -> Chosen:
    name = framework.get("variant") or framework.get("loss_type") or framework.get("name")
    if name in NAMES:
        return Chosen(NAMES[str(name)])
    raise InputError(f"no variant reproduces {name!r}; name one with -v", path="framework")


def _choice(stage: str, name: str, prefix: str = "") -> str:
    """The choice at a stage that a framework's word means: its own one first."""
    known = STAGES[stage]
    for wanted in (prefix + name, known.aliases.get(prefix + name), name, known.aliases.get(name)):
        if wanted in known.choices:
            return str(wanted)
    raise InputError(f"no {stage} is called {name!r}; name one with --{stage}", path="framework")


_READERS = {"trl": _trl, "verl": _verl}
