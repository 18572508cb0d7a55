"""The row that records name: told by every command that evaluates another."""

from __future__ import annotations

import pytest
from fuzz import product

DAPO = {"step": 1, "framework": {"name": "trl", "loss_type": "dapo"}}
COMPUTED = "the trainer used trl/dapo"
SAID = f"grpo: note: evaluated as grpo; {COMPUTED}: use -v trl/dapo"
OF_SEVERAL = f"grpo: note: {COMPUTED}, which is not among these variants"
EVALUATING = ["eval", "explain", "compare", "show", "split", "trend", "report"]
FLAGS = {"split": ["-n", "1"]}


def run(grpo, tmp_path, command, *words, **more):
    flags = ["-o", str(tmp_path / "page.html")] if command == "report" else FLAGS.get(command, [])
    return grpo(command, *words, *flags, **more)


@pytest.mark.parametrize("command", EVALUATING)
def test_that_records_name_another_row_is_told_once_in_one_sentence(grpo, dump, tmp_path, command):
    path = str(dump(DAPO, DAPO | {"step": 2}))
    result = run(grpo, tmp_path, command, path)
    assert result.exit_code == 0
    notes = result.stderr.splitlines()
    assert notes.count(OF_SEVERAL if command == "compare" else SAID) == 1
    quiet = run(grpo, tmp_path, command, path, "-q")
    own = run(grpo, tmp_path, command, path, "-v", "trl/dapo")
    nothing = run(grpo, tmp_path, command, str(dump({"step": 1})))
    assert "computed as" not in quiet.stderr + own.stderr + nothing.stderr


def test_a_run_that_is_followed_says_it_once(grpo, dump):
    path = dump(DAPO, DAPO | {"step": 2})
    ends = ("--every", "0.01", "--fail-on", "nll>0")
    result = grpo("trend", str(path), "-v", "dr", "--follow", *ends)
    assert result.exit_code == 1
    assert result.stderr.splitlines().count(SAID.replace("grpo;", "dr;")) == 1


def test_the_row_is_the_one_of_the_records_release(grpo, dump):
    framework = {"name": "trl", "loss_type": "dapo", "version": "1.9.2"}
    said = grpo("eval", str(dump({"framework": framework}))).stderr
    assert "the trainer used trl/dapo@1.9.2: use -v trl/dapo@1.9.2" in said


@pytest.mark.parametrize("size", [3000, 1 << 20])
@pytest.mark.parametrize("named", ["trl", None])
def test_only_the_first_object_is_heard_wherever_pieces_are_cut(dump, size, named):
    other = {"framework": {"name": "verl", "policy_loss": "vanilla"}}
    first = DAPO if named else {"step": 1}
    path = dump(first, *[DAPO | other] * 700)
    with product.blocks_of(size):
        said = SAID.replace("grpo;", "dr;")
        notes = product.run(["eval", str(path), "-v", "dr"]).err.decode().splitlines()
    assert [note for note in notes if "the trainer used" in note] == ([said] if named else [])
