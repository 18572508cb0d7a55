"""A trainer's log explained: what its numbers mean, and what they cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from grpo_cli.batch import F64
from grpo_cli.commands.trend.findings import findings
from grpo_cli.commands.trend.logs import not_finite, read_log, steps_of
from grpo_cli.commands.trend.onsets import IMPOSSIBLE
from grpo_cli.commands.trend.step import WARNING, Steps
from grpo_cli.records import Source
from grpo_cli.terminal.numbers import counted, shown, visible
from grpo_cli.terminal.prose import wrapped
from grpo_cli.terminal.screen import Screen

_LOSS = ("loss", "train/loss", "actor/pg_loss", "actor/loss", "train/pg_loss")
_GRADIENT = ("grad_norm", "train/grad_norm", "actor/grad_norm", "optim/grad_norm")
_DEAD = ("frac_reward_zero_std", "train/frac_reward_zero_std")
_CLIPPED = ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac", "train/pg_clipfrac")
_KL = ("kl", "actor/kl_loss", "train/kl_loss")
_REWARD = ("reward", "critic/score/mean", "reward/all/mean", "rollout/raw_reward")
_NOTHING = 1e-6
_SMALL = 0.01

UNKNOWN = (
    "which responses and tokens cause the loss and the gradient",
    "whether log-probs, masks and groups are correct (grpo check RECORDS)",
    "what the loss would be under another convention, and which convention this is (grpo match "
    "RECORDS --loss X)",
    "whether trainer and engine agree, unless the log has a metric of it",
)
"""Questions that no log answers."""


def explain_log(source: Source, most: int | None) -> dict[str, Any]:
    """The explanation of a log, as a document; its changes are what ``grpo trend`` finds."""
    steps = steps_of([read_log(source, most)])
    if bad := not_finite(steps):
        bad = [*bad[:-1], f"{bad[-1]}; all sentences below ignore these values"]
    return {
        "steps": len(steps),
        "first": steps.numbers[0],
        "last": steps.numbers[-1],
        "series": [*steps.metrics],
        "meaning": [*bad, *_meaning(steps)],
        "onsets": [
            {"series": one.metric, "step": one.onset, "kind": one.kind, "text": one.sentence}
            for one in findings(steps)
            if one.severity == WARNING and one.kind != IMPOSSIBLE
        ],
        "unknown": list(UNKNOWN),
    }


def _series(steps: Steps, names: tuple[str, ...]) -> tuple[str, F64] | None:
    """The first of the names that has values, and these."""
    for name in names:
        column = steps.metrics.get(name, np.zeros(0))
        if len(values := column[~np.isnan(column)]):
            return name, values
    return None


def _meaning(steps: Steps) -> Iterator[str]:
    loss, gradient = _series(steps, _LOSS), _series(steps, _GRADIENT)
    if loss is not None and gradient is not None:
        yield from _loss(*loss, *gradient)
    dead, reward = _series(steps, _DEAD), _series(steps, _REWARD)
    if dead is not None and (dead[1] >= 1.0).any():
        count = int((dead[1] >= 1.0).sum())
        yield (
            f"{dead[0]} is 1 at {_of(count, dead[1])}: rewards within a group are equal, all "
            "advantages are 0, and only a KL or an entropy bonus changes the policy"
        )
    clipped = _zero_throughout(steps, _CLIPPED)
    if clipped is not None:
        yield (
            f"{clipped} is always 0: each generation is used for one update, so every ratio is "
            "1, or no ratio leaves the clip range"
        )
    kl = _zero_throughout(steps, _KL)
    if kl is not None:
        yield (
            f"{kl} is always 0: there is no reference (β = 0), or the reference is the "
            "policy itself"
        )
    if loss is not None and reward is not None and _rises(loss[1]) and _rises(reward[1]):
        yield (
            "loss and reward rise together. With centred advantages the policy term stays near "
            "0, so the loss is β·KL or reflects the weights of long responses; grpo explain "
            "RECORDS shows which"
        )


def _zero_throughout(steps: Steps, names: tuple[str, ...]) -> str | None:
    """The first of the names in a log, if it is 0 at every step."""
    found = _series(steps, names)
    if found is None or found[1].any() or found[0] in steps.not_finite:
        return None
    return found[0]


def _loss(loss_name: str, loss: F64, gradient_name: str, gradient: F64) -> Iterator[str]:
    scale = float(np.median(np.abs(gradient)))
    small = np.abs(loss) <= max(_NOTHING, _SMALL * scale)
    moving = float(np.median(gradient)) > _NOTHING
    if moving and small.mean() > 0.5:
        grows = f", and {gradient_name} grows" if _rises(gradient) else ""
        yield (
            f"{loss_name} is near 0 at {_of(int(small.sum()), loss)} while {gradient_name} is "
            f"{shown(float(np.median(gradient)))}{grows}. At ratio 1 the loss is the mean of the "
            "advantages, which are centred in each group, so it is 0 although its gradient is "
            "not. The loss does not measure progress: watch the reward"
        )
    if not moving:
        still = int((gradient <= _NOTHING).sum())
        where, there = (
            (f" at {_of(still, gradient)}", " there") if still < len(gradient) else ("", "")
        )
        yield f"{gradient_name} is 0{where}: the policy learns nothing{there}"
    if (loss < -_NOTHING).any() and (loss > _NOTHING).any():
        yield f"{loss_name} changes its sign: it is not a distance and need not fall"


def _rises(values: F64) -> bool:
    """Whether the last third is clearly above the first."""
    third = max(len(values) // 3, 1)
    first, last = values[:third], values[-third:]
    noise = float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0.0
    return len(values) >= 6 and float(np.median(last) - np.median(first)) > noise


def _of(count: int, values: F64) -> str:
    return f"{count} of {len(values)} steps"


def print_log(console: Console, screen: Screen, document: Mapping[str, Any]) -> None:
    """Prints what the log says, and what it cannot."""
    span = f"{document['first']} to {document['last']}"
    lines = [
        Text(f"a log of {counted(document['steps'], 'step')}, {span}", "bold"),
        Text(", ".join(map(visible, document["series"])), "dim"),
    ]
    for sentence in document["meaning"]:
        lines += [Text(), Text(sentence)]
    for one in document["onsets"]:
        head = (f"step {one['step']}", "bold magenta")
        lines += [Text(), Text.assemble(head, f"  {one['kind']}  {visible(one['text'])}")]
    lines += [Text(), Text("a log does not show", "bold")]
    lines += [Text(f"  {sentence}") for sentence in document["unknown"]]
    for line in lines:
        console.print(wrapped(line, screen.reading, 4 if line.plain[:1] == " " else 2))
    advice = (
        "  record(trainer, path) from grpo_cli.hooks.trl records the tokens. Then run: grpo "
        "trend RUN --log LOG"
    )
    console.print(wrapped(Text(advice, "dim"), screen.reading, 4))
