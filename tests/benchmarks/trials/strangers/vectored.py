"""The conformance vectors on the list: each mistake as somebody's loss, under ``pytest``.

    python -m trials.strangers.vectored     # from tests/benchmarks; some minutes

How many of the mistakes that the vectors' claims cover fail a case that the right loss passes, and
for how many the first bug that the summary names is the mistake.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from trials.strangers.plain import Case, Recipe, Rows, evaluated
from trials.strangers.verifying import MISTAKES

FOLDER = str(Path(__file__).parents[2])
_TEST = """\
import sys
sys.path.insert(0, {folder!r})
import pytest
from grpo_cli.vectors import Claims, Loss
from trials.strangers.vectored import computed

@pytest.fixture
def grpo_vectors():
    claims = Claims(
        surrogate={surrogate!r},
        ratio=["token", "sequence"],
        kl=["none", "k3"],
        correction=["none", "token-truncate", "sequence-truncate"],
        advantage=["given", "group-mean", "group-std"],
        aggregate=["token-mean", "response-mean", "token-sum", "token-sum-norm"],
        options=["delta", "dual_clip", "kl_weight"],
    )
    return Loss(computed({name!r}, {at}), claims)
"""
_REDUCTIONS = {
    "token-mean": "token",
    "response-mean": "response",
    "token-sum": "constant",
    "token-sum-norm": "constant",
}


def computed(name: str, at: int) -> Any:
    """A loss with a mistake (none for ""), as the fixture takes it."""
    mistake = MISTAKES.get(name)

    def compute(vector: Any) -> dict[str, Any]:
        case = _case(vector)
        judged = vector.choices.get("advantage", "given") == "given"
        if mistake is not None and not (judged and mistake.wish.judged is False):
            case = mistake.planted(case, mistake.strengths[at] if mistake.strengths else None)
        if "surrogate" not in vector.choices:
            return {"advantages": case.step("advantages")(case.rows, case.recipe)}
        loss, slopes = evaluated(case)
        lengths = [len(row) for row in vector.input["mask"]]
        return {"loss": loss, "gradient": [row[:n] for row, n in zip(slopes, lengths, strict=True)]}

    return compute


def _case(vector: Any) -> Case:
    x, how, choices = vector.arrays(np.array, dtype=float), vector.hyperparameters, vector.choices
    mask = x.mask
    lengths = np.array([len(row) for row in vector.input["mask"]])
    written = (np.arange(mask.shape[1]) < lengths[:, None]).astype(float)

    def column(values: Any, other: Any) -> Any:
        return np.where(mask > 0, other if values is None else values, 0.0)

    new = column(x.log_probs_new, 0.0)
    old = column(x.log_probs_old, new)
    rewards = np.zeros(len(mask)) if x.rewards is None else x.rewards
    rows = Rows(
        new=new,
        old=old,
        ref=column(x.log_probs_ref, new),
        rollout=column(x.log_probs_rollout, old),
        mask=mask,
        written=written,
        rewards=rewards if rewards.ndim == 1 else rewards.sum(axis=1),
        given=x.advantages if choices.get("advantage", "given") == "given" else None,
        groups=np.unique(x.group_ids or [0] * len(mask), return_inverse=True)[1],
        finished=np.ones(len(mask), dtype=bool),
    )
    correction = str(choices.get("correction", "none")).partition("-")[0]
    recipe = Recipe(
        "paper",
        _REDUCTIONS.get(choices.get("aggregate", ""), "token"),
        low=how.get("epsilon_low", 0.2),
        high=how.get("epsilon_high", 0.2) + (1.0 if choices.get("surrogate") == "cispo" else 0.0),
        beta=how.get("beta", 0.0) if choices.get("kl") == "k3" else 0.0,
        sequence=choices.get("ratio") == "sequence",
        weighted_kl=how.get("kl_weight", "none") == "ratio",
        eps=how.get("std_eps", 0.0),
        std=choices.get("advantage") == "group-std",
        length=how.get("max_completion_length"),
        delta=how.get("delta"),
        dual=how.get("dual_clip"),
        cispo=choices.get("surrogate") == "cispo",
        correction="" if correction == "none" else correction,
        cap=how.get("is_high", np.inf),
    )
    return Case(rows, recipe)


def asked() -> list[tuple[str, int]]:
    """The mistakes, at each strength, that the claims can cover."""
    found: list[tuple[str, int]] = []
    for mistake in MISTAKES.values():
        if mistake.wish.reductions == ("items",):
            continue
        if mistake.wish.families == ("trl",) and (1 not in mistake.wish.steps):
            continue
        found += [(mistake.name, at) for at in range(len(mistake.strengths) or 1)]
    return found


def run(name: str, at: int) -> tuple[set[str], list[str]]:
    """The cases that a loss fails, and the bugs that the summary names, in their order."""
    with tempfile.TemporaryDirectory() as made:
        surrogate = "cispo" if name.startswith("cispo") else "clip"
        text = _TEST.format(folder=FOLDER, name=name, at=at, surrogate=surrogate)
        (Path(made) / "test_loss.py").write_text(text)
        words = ["-q", "-n0", "-p", "no:cacheprovider", "--grpo-vectors", "--tb=no", "-rf"]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *words, "."],
            cwd=made,
            capture_output=True,
            text=True,
            check=False,
        )
    failed = set(re.findall(r"FAILED \S*::grpo_vectors::(\S+)", ended.stdout))
    said = ended.stdout.partition("grpo vectors")[2].partition("short test summary")[0]
    return failed, re.findall(r"(?m)^  (\S+: .*; https?://\S+)", said)


def _names(name: str, bug: str) -> bool:
    """Whether a bug is the mistake; that splits matter is said of nearly every denominator."""
    general = bug.startswith("order-dependence") and "micro-batch" not in name
    return not general and MISTAKES[name].named_by(bug)


def main() -> None:
    right, at_first = run("", 0)
    print(f"the right loss fails {len(right)}: {sorted(right)}")
    seen = first = of = 0
    for name, at in asked():
        failed, bugs = run(name, at)
        bugs = [bug for bug in bugs if bug not in at_first]
        named = [_names(name, bug) for bug in bugs]
        hit, listed = bool(named) and named[0], any(named)
        seen, first, of = seen + bool(failed - right), first + hit, of + 1
        how = "first" if hit else "listed" if listed else ""
        print(f"{len(failed - right):4} {how:6} {name}/{at}: {bugs[:1]}", flush=True)
    print(f"{seen} of {of} fail a case; the first bug named is the mistake for {first}")


if __name__ == "__main__":
    main()
