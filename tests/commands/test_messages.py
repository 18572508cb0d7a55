"""What is no record, or nearly one: each message says what it is and what to do."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from command import run

ROWS = [[-0.5, -0.3], [-0.2]]


def packed(kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("folder/records.jsonl", "{}")
    elif kind == "tar":
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("records.jsonl"))
    else:
        stream.write(pickle.dumps({"log_probs": ROWS}, protocol=4))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed("zip"), "this is a zip archive: unzip it"),
        (
            packed("tar"),
            ("this is a tar archive; to read the files in it: tar -xOf FILE | grpo eval"),
        ),
        (packed("pickle"), "this is a Python pickle, which can run any code"),
        (b"id,log_probs,reward\n1,-0.5,1\n", "this looks like CSV"),
        (b"step;loss;kl\n1;0.5;2\n", "this is a trainer's log, which has no tokens"),
        (b"<!DOCTYPE html>\n<p>", "this is an HTML page, which a browser opens"),
        (
            b"log_probs:\n  - [-0.5]\n",
            ("this looks like YAML, but records are JSON; to convert it: yq -o json"),
        ),
        (b"---\nid: 3\n", "this looks like YAML"),
        (b"- id: 3\n", "this looks like YAML"),
        (b"PAR1....", "Parquet, Arrow and npz are read from files, not from pipes"),
    ],
)
@pytest.mark.parametrize("piped", [False, True])
def test_what_is_no_json(tmp_path, content, said, piped):
    path = tmp_path / "data"
    path.write_bytes(content)
    if content.startswith(b"PAR1") and not piped:
        pytest.skip("that file is damaged Parquet")
    words, stdin = (["eval"], content) if piped else (["eval", str(path)], None)
    result = run(*words, stdin=stdin)
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 3
    assert line.startswith(f"grpo: {'<stdin>' if piped else path}: {said}")


@pytest.mark.parametrize("text", ["1,2", "nothing", '"a": 1', "[1, 2]", "{,}"])
def test_what_may_be_json_is_told_by_its_place(tmp_path, text):
    path = tmp_path / "data"
    path.write_text(text)
    error = run("eval", path).stderr
    assert "looks like" not in error
    assert "expected" in error


REFERENCE = (
    "sft_lp: log_probs_ref is missing, but grpo needs it; grpo does not read this key: --map "
)
REFERENCE += "log_probs_ref=sft_lp reads it (--beta 0 works without a reference)"
GOOD = {"log_probs_new": ROWS, "log_probs_ref": ROWS, "rewards": [1.0, 0.0]}
LOW = [[0.5, 0.3, 0.7, 0.1], [0.2, 0.9]]
HIGH = [[0.5, 1.3, 0.1, 7.0], [2.0, 1.0]]
WORDS = [[[5.1, -3.2, 8.8], [2.0, 3.2, -7.5]]] * 2
MANY = [[5.1, -3.2, 8.8, 2.0], [3.2, -7.5]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"log_probs_new": "tensor([[-0.5000, -0.3000]])"},
            'expected a list of numbers, got "tensor([[-0.5000, -0.3000]])" '
            "(a tensor as it is printed; dump its .tolist())",
        ),
        ({"log_probs_new": str(ROWS)}, "(a list in a string; dump the list itself)"),
        ({"log_probs_new": "[-0.5, -0.3"}, 'expected a list of numbers, got "[-0.5, -0.3"'),
        ({"log_probs_new": ["tensor([-0.5])", [-0.2]]}, "dump its .tolist())"),
        (
            {"log_probs_new": [-0.5, -0.3, -0.2], "log_probs_ref": [-0.5, -0.3, -0.2]},
            "rewards: expected 3 rewards (one per response), got 2; log_probs_new is a flat list "
            "with one number per response: write values per token as [[…]]",
        ),
        ({"log_probs_new": MANY, "log_probs_ref": MANY}, "; these look like logits: take log_soft"),
        (
            {"log_probs_new": WORDS, "log_probs_ref": None},
            "rewards: expected 4 rewards (one per response), got 2; the 3 numbers in each list of "
            "log_probs_new look like logits: take log_softmax and select the sampled token",
        ),
        (
            {"log_probs_new": WORDS, "log_probs_ref": [[-1.0, -1.0], [-1.0, -1.0]]},
            "log_probs_ref[0][0]: expected 3 numbers (as log_probs_new[0][0] has), got -1; the 3 "
            "numbers in each list of log_probs_new look like logits: take log_softmax and select "
            "the sampled token",
        ),
        (
            {"log_probs_new": [[-1.0, -1.0], [-1.0, -1.0]], "log_probs_ref": WORDS},
            "log_probs_ref[0][0]: expected a number, got a list; the 3 numbers in each list of "
            "log_probs_ref look like logits: take log_softmax and select the sampled token",
        ),
        (
            {"log_probs_new": [[[-1.0, -2.0], [-3.0, -1.0]]] * 2, "log_probs_ref": None},
            "got 2; log_probs_new is nested like several groups: if each of its lists of 2 numbers "
            "covers the vocabulary, dump the log-prob of the sampled token only",
        ),
        (
            {"log_probs_new": [[5.0, -3.0] * 500] * 3, "log_probs_ref": None, "rewards": 1.0},
            "rewards: expected 3 rewards (one per response), got 1; the 1,000 numbers in each "
            "list of log_probs_new look like logits: take log_softmax and select the sampled token",
        ),
        (  # two groups of two responses, of which one reward each is missing: no vocabulary
            {"log_probs_new": [[[-1.0], [-3.0, -1.0]]] * 2, "log_probs_ref": None},
            "rewards: expected 4 rewards (one per response), got 2",
        ),
        (
            {"log_probs_new": LOW, "log_probs_ref": LOW},
            "; these look like probabilities: take their nat",
        ),
        (
            {"log_probs_new": HIGH, "log_probs_ref": HIGH},
            "; these look like −log p (as losses are): negate",
        ),
        ({"log_probs_ref": None, "sft_lp": ROWS, "note": "x", "beta": 0.04}, REFERENCE),
        (
            {"rewards": None, "token_level_scores": [[0.0, 1.0], [0.0]]},
            "; ignored keys: token_level_scores (--map rewards=token_level_scores)",
        ),
        ({"log_probs_new": None, "my_logp": ROWS}, "my_logp (--map log_probs_new=my_logp)"),
        ({"rewards": None, "framework": {"name": "x"}}, "needs one reward per response"),
    ],
)
def test_what_is_nearly_a_record(grpo, dump, change, said):
    record = {name: value for name, value in (GOOD | change).items() if value is not None}
    result = grpo("eval", str(dump(json.dumps(record))))
    (line,) = [one for one in result.stderr.splitlines() if "note:" not in one]
    assert result.exit_code == 3
    assert said in line
    assert line.endswith(said) or "looks" in said or "these look" in said


def test_the_mapping_that_is_proposed_works(grpo, dump):
    scores = [[0.25, 0.75], [0.25]]
    one = json.dumps({"log_probs_new": ROWS, "token_level_scores": scores})
    other = json.dumps({"log_probs_new": ROWS, "rewards": [1.0, 0.25]})
    mapped = grpo("eval", str(dump(one)), "--map", "rewards=token_level_scores", *BARE)
    assert mapped.stdout == grpo("eval", str(dump(other)), *BARE).stdout
    assert mapped.exit_code == 0


BARE = ("--beta", "0", "--level", "response", "--only", "reward,advantage", "-q")


def test_a_line_that_is_cut_off(grpo, dump):
    whole = json.dumps({"prompt": "x" * 200} | GOOD)
    for cut in (whole[:150], whole[:-1], whole[: whole.index("rewards") + 3]):
        result = grpo("eval", str(dump(whole, cut)))
        assert ":2: malformed JSON" in result.stderr
        assert "the line is incomplete (was it still being written?)\n" in result.stderr
    result = grpo("eval", str(dump(whole, whole.replace(":", "", 1))))
    assert "cut off" not in result.stderr


def test_groups_that_are_grouped_again(grpo, dump):
    rows = [json.dumps(GOOD | {"uid": uid}) for uid in "ab"]
    result = grpo("eval", str(dump(*rows)), "--group-by", "uid")
    assert result.exit_code == 3
    assert result.stderr.rstrip().endswith(
        ":1: log_probs_new: the 2 responses in this row are already a group; leave out --group-by"
    )
    assert grpo("eval", str(dump(*rows))).exit_code == 0


@pytest.mark.parametrize("command", ["eval", "explain", "split", "show"])
@pytest.mark.parametrize(
    ("framework", "beta"),
    [
        (None, 0.04),
        ({"name": "trl", "loss_type": "dapo"}, 0.04),
        ({"name": "verl", "policy_loss": "vanilla"}, 0.1),
        ({"name": "nobody", "loss_type": "x"}, 0.1),
    ],
)
def test_without_a_reference_the_error_names_a_flag_that_works(
    grpo, dump, command, framework, beta
):
    record = {"log_probs_new": ROWS, "log_probs_old": ROWS, "rewards": [1.0, 0.0]}
    record |= {} if framework is None else {"framework": framework}
    record |= {"beta": beta}
    path = str(dump(json.dumps(record)))
    extra = ["-n", "1"] if command == "split" else []
    result = grpo(command, path, *extra)
    assert result.exit_code == 3
    line = result.stderr.splitlines()[-1]
    assert "log_probs_ref: missing; the kl stage (k3) needs log-probs under the refer" in line
    assert "--beta 0" in line
    assert grpo(command, path, *extra, "--beta", "0").exit_code == 0


def test_an_inverted_mask_is_found(grpo, dump):
    draw = np.random.default_rng(0)
    widths = (5, 9, 7, 12)
    rows = [[*(-draw.exponential(size=n) - 0.01), *[0.0] * (20 - n)] for n in widths]
    mask = [[1] * n + [0] * (20 - n) for n in widths]
    record = {"log_probs_new": rows, "rewards": [1, 0, 0, 1]}
    inverted = [[1 - one for one in row] for row in mask]
    right = grpo("check", str(dump(json.dumps(record | {"mask": mask}))), "--json")
    wrong = grpo("check", str(dump(json.dumps(record | {"mask": inverted}))), "--json")
    assert "inverted-mask" not in json.loads(right.stdout)["counts"]
    assert json.loads(wrong.stdout)["counts"]["inverted-mask"] == 1
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["severities"]["error"] == 1
