"""What ships beside the package: samples, and the action for GitHub."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import run

from grpo_cli import evaluate

# ---- every seed objective's sample against its documented answer, or a few lines written apart ---


SAMPLES = Path(__file__).parent.parent / "samples"


def load(name: str) -> list[dict]:
    text = (SAMPLES / name).read_text()
    return (
        [json.loads(line) for line in text.splitlines()] if "jsonl" in name else [json.loads(text)]
    )


def test_dr_grpo():
    # documented: -0.074929, from the worked example of the Dr. GRPO objective
    (record,) = load("dr_grpo.json")
    assert round(evaluate(record, variant="dr").objective, 6) == -0.074929


def test_unbiased_kl():
    # documented: 1.03277, from the GRPO objective with an importance-weighted KL
    (record,) = load("unbiased_kl.json")
    assert round(evaluate(record, variant="grpo-unbiased-kl").objective, 5) == 1.03277


def test_dr_grpo_cases():
    # documented: (0.0 by a wrong sum; the formula gives) -0.074929, 0.0 and 0.0
    objectives = [
        evaluate(record, variant="dr").objective for record in load("dr_grpo_cases.jsonl")
    ]
    assert [round(value, 6) for value in objectives] == [-0.074929, 0.0, 0.0]


def test_grpo_k1():
    (record,) = load("grpo_k1.json")
    new, old, ref, rewards = (
        np.array(record[key]) for key in ("log_probs", "log_probs_old", "ref_log_probs", "rewards")
    )
    advantages = (rewards - rewards.mean()) / rewards.std()
    ratio = np.exp(new - old)
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages)
    loss = -(surrogate.mean() - 0.04 * (new - ref).mean())
    assert evaluate(record, variant="grpo-k1").loss == pytest.approx(loss, rel=1e-14)


def test_grpo_batch():
    (record,) = load("grpo_batch.json")
    new, old, ref = (np.array(record[f"{name}logp_per_token"]) for name in ("", "old_", "ref_"))
    rewards = np.array(record["rewards"])
    std = rewards.std(axis=-1, ddof=1, keepdims=True)
    advantages = ((rewards - rewards.mean(axis=-1, keepdims=True)) / (std + 1e-8))[..., None]
    ratio = np.exp(new - old)
    surrogate = np.minimum(ratio * advantages, np.clip(ratio, 0.75, 1.25) * advantages)
    kl = np.exp(ref - new) - (ref - new) - 1
    loss = 0.01 * kl.mean() - surrogate.mean()
    assert evaluate(record).loss == pytest.approx(loss, rel=1e-13)


def test_trl_slice():
    # expected.loss is what trl 1.16.0's own GRPOTrainer returned, in float32
    for record in load("trl_grpo.jsonl"):
        found = evaluate(record, stages={"aggregate": "trl/grpo"}, kl_weight="ratio")
        assert found.loss == pytest.approx(record["expected"]["loss"], rel=2e-5)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json*")), ids=lambda path: path.name)
def test_every_sample_runs(path):
    variant = "dr" if path.name.startswith("dr_") else "grpo"
    result = run("eval", path, "--json", "-v", variant)
    bad = path.name.startswith("bad_")
    assert result.exit_code == (3 if bad else 0)
    if bad:
        (line,) = [one for one in result.stderr.strip().splitlines() if "note:" not in one]
        assert json.loads(line)["error"]["kind"] == "input"
    else:
        assert json.loads(result.stdout)["total"]["records"] > 0


def test_agents() -> None:
    """A dump of 25 turns of 8 trajectories: the unit decides on the sign of the loss."""
    path = SAMPLES / "agents.jsonl"
    wanted = {
        "verl/vanilla": (-1, 82),
        "skyrl/step_wise": (1, 82),
        "agent-lightning/per_rollout_mean": (1, 25),
    }
    for row, (sign, denominator) in wanted.items():
        total = evaluate(path, row, beta=0.0).total
        assert (np.sign(total["loss"]), total["denominator"]) == (sign, denominator)
    by_rollout = evaluate(path, "agent-lightning/per_rollout_mean").loss
    by_trajectory = evaluate(
        path, "verl/multi_trajectories", stages={"aggregate": "trajectory-mean"}
    )
    assert by_rollout == pytest.approx(by_trajectory.loss * 8 / 25, rel=1e-14)


# ---- the action of .github: what it runs, what the job summary says, and how it ends -------------


ROOT = Path(__file__).parent.parent
ACTION = ROOT / ".github" / "actions" / "grpo"


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        ({"DUMP": "trl_grpo.jsonl"}, 0, ["grpo check: exit code 0", "grpo verify: exit code 0"]),
        ({"DUMP": "temperature.jsonl", "VERIFY": "false"}, 1, ["grpo check: exit code 1"]),
        ({"DUMP": "trl_*.jsonl", "VARIANT": "trl/dapo"}, 1, ["verify: exit code 1", "differ"]),
        ({"DUMP": "nothing.jsonl", "OPTIONS": "--from canonical"}, 3, ["no such file"]),
    ],
)
def test_the_action(tmp_path, quick, inputs, code, said):
    summary, outputs = tmp_path / "summary", tmp_path / "outputs"
    done = subprocess.run(
        [ACTION / "run.sh"],
        cwd=ROOT / "samples",
        env={
            **os.environ,
            "PATH": f"{quick}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_OUTPUT": str(outputs),
            **inputs,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert outputs.read_text() == f"exit-code={code}\n"
    text = summary.read_text()
    assert all(one in text for one in said)
    assert text.count("```") == 2 * text.count("### ")
    assert "\x1b" not in text
    assert ("grpo verify" in text) == (inputs.get("VERIFY") != "false")


def test_a_dump_says_nothing_to_the_runner(tmp_path, quick):
    evil = "\\n::error::x ##[error]y ```"
    (tmp_path / "a.jsonl").write_text(
        f'{{"id": "{evil}", "log_probs_new": [[-1.0], [-1.0]], "rewards": [1.0, 1.0]}}\n' * 2
    )
    environment = {**os.environ, "PATH": f"{quick}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"DUMP": "a.jsonl", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    done = subprocess.run(
        [ACTION / "run.sh"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    begins = [at for at, line in enumerate(lines) if line.startswith("::stop-commands::")]
    ends = [lines.index(f"::{lines[at].rpartition('::')[2]}::", at) for at in begins[:1]]
    assert (begins[0], len(begins), ends[0] < begins[1]) == (0, 2, True)
    text = (tmp_path / "summary").read_text()
    assert "y " in text
    assert "##[" not in done.stdout + text
    assert text.count("```") == 2 * text.count("### ")


def test_every_input_reaches_the_script():
    text, script = (ACTION / "action.yml").read_text(), (ACTION / "run.sh").read_text()
    for name in ("dump", "options", "variant", "verify"):
        assert f"{name.upper()}: ${{{{ inputs.{name} }}}}" in text
        assert f"${name.upper()}" in script or f"${{{name.upper()}" in script


def test_the_action_installs_its_own_repository():
    text = (ACTION / "action.yml").read_text()
    (folder,) = re.findall(r"working-directory: \$\{\{ github.action_path \}\}(\S+)", text)
    assert re.search(r"\n  install:\n.*\n    default: \.\n", text)
    assert (ACTION / folder.lstrip("/") / "pyproject.toml").exists()
