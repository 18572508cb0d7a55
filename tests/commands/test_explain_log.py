"""``grpo explain`` of a trainer's log, and of a choice: what is said when, and how it looks."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command import answer
from files import each

ZERO = "near 0 at {} while grad_norm is {}. At ratio 1"
BOTH = "loss changes its sign: it is not a distance and need not fall"
STILL = "grad_norm is 0: the policy learns nothing"
TOGETHER = "loss and reward rise together. With centred advantages"


def explain_log(tmp_path: Path, **series: Sequence[float]) -> Any:
    """What is said of a log whose steps are from 3 on, written out of order."""
    steps = range(max(map(len, series.values())))
    rows = [
        {"step": at + 3} | {name: values[at] for name, values in series.items() if at < len(values)}
        for at in reversed(steps)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    return answer("explain", path)


FLAT = [0.5] * 6


@each(
    ("series", "said"),
    [
        # a loss of 1 % of the gradient's median, 2, is near 0; so is one of 1e-6 beside less
        (
            {"loss": [0.02] * 4 + [0.021] * 2, "grad_norm": [1, 2, 3, 2, 2, 2]},
            [("4 of 6 steps", "2")],
        ),
        ({"loss": [0.02] * 3 + [0.021] * 3, "grad_norm": [2.0] * 6}, []),
        ({"loss": [9e-7, 1.1e-6, 9e-7], "grad_norm": [1e-5] * 3}, [("2 of 3 steps", "1e-05")]),
        ({"loss": [1e-8] * 3, "grad_norm": [9e-7] * 3}, [STILL]),
        ({"loss": [1e-8] * 3, "grad_norm": [9e-7, 1.1e-6, 1.1e-6]}, [("3 of 3 steps", "1.1e-06")]),
        (
            {"loss": [1e-9] * 6, "grad_norm": [1, 1, 2, 2, 3, 3]},
            ["while grad_norm is 2, and grad_norm grows. At ratio 1"],
        ),
        ({"loss": [-2e-6, 2e-6, 1.0], "grad_norm": [1e-5] * 3}, [BOTH]),
        ({"loss": [-9e-7, 2e-6, 1.0], "grad_norm": [1e-5] * 3}, []),
        ({"loss": [-2e-6, 9e-7, -1.0], "grad_norm": [1e-5] * 3}, []),
        # the last third's median against the first's, beside the median of the steps between
        ({"loss": [0, 0, 0.25, 0.25, 0.5, 0.5], "reward": [0, 1, 1, 2, 3, 3]}, [TOGETHER]),
        ({"loss": [0, 0, 0.25, 0.25, 0.5], "reward": [0, 1, 1, 2, 3]}, []),
        ({"loss": [0, 4, 0, 4, 3, 5], "reward": [0, 1, 1, 2, 3, 3]}, []),
        ({"loss": [0, 0, 0.25, 0.25, 0.5, 0.5], "reward": [3, 1, 1, 2, 3, 1]}, []),
        ({"loss": [9, 0, 0, 0, 1, 1, 1, 2], "reward": [0, 0, 0, 0, 1, 1, 1, 1]}, []),
        # other series
        ({"frac_reward_zero_std": [0.5, 1.0, 0.0]}, ["frac_reward_zero_std is 1 at 1 of 3 steps"]),
        ({"frac_reward_zero_std": [0.5, 0.9, 0.0]}, []),
        ({"clip_ratio": [0.0, 0.0]}, ["clip_ratio is always 0"]),
        ({"clip_ratio": [0.0, 0.1]}, []),
        ({"actor/kl_loss": [0.0, 0.0]}, ["actor/kl_loss is always 0"]),
        ({"kl": [0.0, 0.1]}, []),
        (
            {"loss": [0.0] * 3, "grad_norm": [0.0, 1.0, 0.0]},
            ["grad_norm is 0 at 2 of 3 steps: the policy learns nothing there"],
        ),
    ],
)
def test_what_a_log_says_and_when(
    tmp_path: Path, series: dict[str, list[float]], said: list[Any]
) -> None:
    document = explain_log(tmp_path, **series)
    wanted = [ZERO.format(*one) if isinstance(one, tuple) else one for one in said]
    assert len(document["meaning"]) == len(wanted)
    for part, sentence in zip(wanted, document["meaning"], strict=True):
        assert part in sentence
    counts = (len(next(iter(series.values()))), 3, 2 + len(next(iter(series.values()))))
    assert (document["steps"], document["first"], document["last"]) == counts
    assert document["series"] == [*series]


NAN, INF = math.nan, math.inf
REST = "; all sentences below ignore these values"


@each(
    ("series", "said"),
    [
        # steps begin at 3; what would be 0 throughout is not said to be
        ({"kl": [0.0, NAN, 0.0]}, [f"kl is NaN at step 4{REST}"]),
        ({"clip_ratio": [0.0, -INF]}, [f"clip_ratio is −inf at step 4{REST}"]),
        ({"loss": [NAN] * 2}, [f"loss is NaN at 2 of 2 steps, first at step 3{REST}"]),
        (
            {"kl": [1.0, 1.0, NAN, INF], "loss": [1.0, NAN, 2.0, NAN]},
            [
                "loss is NaN at 2 of 4 steps, first at step 4",
                f"kl is NaN or inf at 2 of 4 steps, first at step 5{REST}",
            ],
        ),
        (
            {name: [NAN] for name in "abcdefg"},
            [
                *(f"{name} is NaN at step 3" for name in "abcde"),
                f"2 other series are not finite at some steps: f, g{REST}",
            ],
        ),
    ],
)
def test_where_a_log_is_not_finite_is_said(
    tmp_path: Path, series: dict[str, list[float]], said: list[str]
) -> None:
    document = explain_log(tmp_path, **series)
    assert document["meaning"] == said
    assert {*document["series"]} == {*series}


def test_a_log_that_another_command_is_given_is_explained_as_it_says(
    grpo: Any, tmp_path: Path
) -> None:
    """The command in the error of `eval` is run: it used to print the same error again."""
    logs = {
        "trainer_state.json": '{"log_history": [{"step": 1, "loss": 0.1, "kl": NaN}]}',
        "a log.jsonl": '{"step": 1, "data": {"loss": 0.1, "kl": NaN}}\n',
        "state.json": '{\n "log_history": [\n {"step": 1, "loss": 0.1, "kl": NaN}]}\n',
    }
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
        error = grpo("eval", str(tmp_path / name)).stderr
        (command,) = re.findall(r"grpo (explain .*) reads it", error)
        answer = grpo(*shlex.split(command))
        assert answer.exit_code == 0, answer.stderr
        assert "kl is NaN at step 1" in answer.stdout


def lines_of(text: str) -> list[str]:
    """The lines, those that go on joined to the one that they belong to."""
    return re.sub(r"(?<=[^\n ])\n +(?=\S)", " ", text).splitlines()


def test_a_log_on_the_screen(grpo: Any, tmp_path: Path) -> None:
    level = [0.1, -0.1, 0.2, 0.0] * 5
    reward = [*level, *(one + 5.0 for one in level)]
    rows = [{"step": at, "reward": one, "kl": 0.0} for at, one in enumerate(reward, 1)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    document = json.loads(grpo("explain", str(path), "--json").stdout)
    (onset,) = document["onsets"]
    assert (onset["series"], onset["step"]) == ("reward", 21)
    every = answer("trend", path)["findings"]
    (found,) = (one for one in every if one["severity"] == "warning")
    assert (onset["kind"], onset["text"]) == (found["kind"], found["sentence"])
    shown = grpo("explain", str(path)).stdout
    assert max(map(len, shown.splitlines())) <= 80
    advice = (
        "record(trainer, path) from grpo_cli.hooks.trl records the tokens. Then run: grpo trend"
    )
    assert "".join(" ".join(lines_of(shown)).split()) == "".join(
        " ".join(
            [
                "a log of 40 steps, 1 to 40",
                "reward, kl",
                *document["meaning"],
                f"step 21  {onset['kind']}  {onset['text']}",
                "a log does not show",
                *document["unknown"],
                f"{advice} RUN --log LOG",
            ]
        ).split()
    )
    blank = [at for at, line in enumerate(shown.splitlines()) if not line]
    assert [shown.splitlines()[at + 1][:5] for at in blank] == ["kl is", "step ", "a log"]
