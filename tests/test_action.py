"""The action of .github: what it runs, what the job summary says, and how it ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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
