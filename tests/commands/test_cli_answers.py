"""``grpo compare``, ``match``, ``split`` and ``explain`` as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DUMPS = Path(__file__).parent.parent / "data" / "rollouts"
GSPO = str(DUMPS / "trl-1.16.0-gspo.jsonl")
UNEQUAL = {
    "log_probs_new": [[-0.9, -0.2, -1.3], [-1.1], [-0.4, -2.0]],
    "log_probs_old": [[-1.0, -0.25, -1.6], [-1.0], [-0.9, -1.9]],
    "log_probs_ref": [[-1.0, -0.3, -1.5], [-1.0], [-0.7, -1.7]],
    "rewards": [1.0, 0.0, 0.3],
}


def test_compare_json(grpo, dump):
    result = grpo(
        "compare", str(dump(UNEQUAL, UNEQUAL)), "--variants", "grpo,dr_grpo,tis", "--json"
    )
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [row["variant"] for row in document["variants"]] == ["grpo", "dr"]
    wanted = {"variant", "signature", "objective", "loss", "policy", "kl", "clip_fraction"}
    wanted |= {"gradient_norm", "cosine"}
    assert all(wanted <= row.keys() for row in document["variants"])
    (skipped,) = document["skipped"]
    assert skipped["variant"] == "tis"
    assert "log_probs_rollout" in skipped["reason"]
    alone = json.loads(grpo("eval", str(dump(UNEQUAL, UNEQUAL)), "--json").stdout)["total"]
    assert document["variants"][0]["loss"] == alone["loss"]


def test_compare_table(grpo):
    result = grpo("compare", GSPO, "--variants", "all")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.startswith("trl/gspo") for line in lines)
    assert "not served by this data" in result.stdout
    assert not any(line != line.rstrip() for line in lines)


def test_compare_reads_standard_input_more_than_once(shell):
    result = shell(f"cat {GSPO} | grpo compare - --variants lite-ppo,grpo --json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    direct = json.loads(shell(f"grpo compare {GSPO} --variants lite-ppo,grpo --json").stdout)
    assert [row["loss"] for row in rows["variants"]] == [row["loss"] for row in direct["variants"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", GSPO, "--variants", "gpro"], "unknown variant 'gpro'; did you mean"),
        (["compare", GSPO, "--variants", "xyz/*"], "no variant matches"),
        (["compare", GSPO, "--variants", "dr,dapo", "--beta", "1"], "beta: none of the variants"),
        (["match", GSPO], "--loss X or --objective X"),
        (["match", GSPO, "--loss", "1", "--objective", "1"], "one of them"),
        (["match", GSPO, "--loss", "nan"], "expected a finite number"),
        (["match", GSPO, "--loss", "1", "--rtol", "-1"], "--rtol"),
        (["split", GSPO], "--micro-batch"),
        (["split", GSPO, "--micro-batch", "0"], "--micro-batch"),
        (["explain", "gpro"], "unknown variant 'gpro'; did you mean"),
        (["explain", "grpo", "--record", "1"], "are for files"),
        (["explain", GSPO, "--response", "9"], "responses 0 to 7"),
    ],
)
def test_usage(grpo, arguments, said):
    result = grpo(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["compare"],
        ["match", "--loss", "1", "--kl", "none", "--aggregate", "token-mean"],
        ["split", "-n", "1"],
    ],
)
def test_bad_input(grpo, dump, command):
    path = dump({}, '{"log_probs_new": [[-1.0], [0.5]], "rewards": [1, 0]}')
    result = grpo(*command, str(path))
    assert result.exit_code == 3
    assert "dump.jsonl:2: log_probs_new[1][0]" in result.stderr
    result = grpo(*command, str(path), "--json")
    assert json.loads(result.stderr.splitlines()[-1])["error"]["line"] == 2
    skipped = grpo(*command, str(path), "--on-error", "skip")
    assert skipped.exit_code == 3
    assert skipped.stdout


def test_nothing_can_be_served(grpo, dump):
    path = dump('{"log_probs_new": [[-1.0], [-2.0]], "rewards": [1, 0]}')
    result = grpo("compare", str(path), "--variants", "rloo", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert document["variants"] == []
    assert "log_probs_ref" in document["skipped"][0]["reason"]


def test_match_json_and_its_commands(grpo, shell, dump):
    path = dump(UNEQUAL, UNEQUAL | {"rewards": [0.5, 0.0, 2.0]})
    loss = float(grpo("eval", str(path), "-v", "dapo", "--level", "batch", "--only", "loss").stdout)
    for target in (loss, loss / 4, -loss):
        result = grpo("match", str(path), "--loss", repr(target), "--json")
        document = json.loads(result.stdout)
        assert document["target"] == target
        assert isinstance(document["ambiguous"], bool)
        found = document["matches"] or document["nearest"]
        assert result.exit_code == (0 if document["matches"] else 1)
        assert all(abs(one["difference"]) <= 1e-6 + document["tolerance"] for one in found)
        for one in found[:3]:
            assert one.keys() >= {"signature", "value", "difference", "command", "variants"}
            again = shell(one["command"])
            assert float(again.stdout) == pytest.approx(one["value"], rel=1e-9), one["command"]
    nothing = grpo("match", str(path), "--loss", "0.0")
    assert nothing.exit_code == 2
    assert "--loss 0 tells no conventions apart" in nothing.stderr


def test_match_commands_of_every_axis(grpo, shell, dump):
    path = dump(UNEQUAL, UNEQUAL | {"rewards": [0.5, 0.0, 2.0], "advantages": [0.1, -0.2, 0.4]})
    path = dump(UNEQUAL | {"advantages": [0.1, -0.2, 0.4]}, name="it's here.jsonl")
    flags = ["--advantage", "group-std", "-p", "std_ddof=0", "--kl", "k1", "--beta", "0.01"]
    flags += ["-p", "kl_weight=ratio", "--aggregate", "token-sum", "--batch", "record"]
    loss = grpo("eval", str(path), *flags, "--level", "batch", "--only", "loss").stdout.strip()
    result = grpo(
        "match", str(path), "--loss", loss, "--betas", "0.01", "--batch", "record", "--json"
    )
    document = json.loads(result.stdout)
    assert document["matches"], document["nearest"]
    for one in document["matches"][:3]:
        assert float(shell(one["command"]).stdout) == pytest.approx(float(loss), rel=1e-5)


def test_match_table(grpo, dump):
    path = dump(UNEQUAL)
    loss = grpo(
        "eval", str(path), "-v", "dapo", "--level", "batch", "--only", "loss"
    ).stdout.strip()
    few = ("--aggregate", "token-mean", "--kl", "none", "--surrogate", "clip")  # else it takes long
    found = grpo("match", str(path), "--loss", loss, *few).stdout
    assert "dapo" in found
    assert "grpo eval" in found
    nothing = grpo("match", str(path), "--loss", "77.123456", *few)
    assert nothing.exit_code == 1
    assert "nothing reproduces" in nothing.stdout
    assert "the nearest" in nothing.stdout
    assert "would fit if" in nothing.stdout
    assert "by chance" in grpo("match", str(path), "--loss", "0.77", *few).stdout


def test_split_json(grpo):
    result = grpo("split", GSPO, "--micro-batch", "8", "--json", "-q")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    for row in document["splits"]:
        assert row.keys() >= {"aggregate", "reported", "global", "invariant", "factor"}
    found = {row["aggregate"]: row for row in document["splits"]}
    assert found["response-mean"]["invariant"]
    assert not found["token-mean"]["invariant"]
    total = json.loads(grpo("eval", GSPO, "--json", "--level", "batch").stdout)["total"]
    assert found["response-mean"]["global"] == pytest.approx(total["loss"])


def test_split_table_of_one_aggregation(grpo):
    result = grpo("split", GSPO, "-n", "16", "--ranks", "2", "--aggregate", "token-mean", "-q")
    assert result.exit_code == 0
    assert "token-mean" in result.stdout
    assert "response-mean" not in result.stdout
    assert "4 micro-batches of 16, 2 accumulated on 2 ranks" in result.stdout


def test_explain_a_variant(grpo):
    result = grpo("explain", "dr_grpo")
    assert result.exit_code == 0
    assert "A = r − r̄" in result.stdout
    assert "2503.20783" in result.stdout
    document = json.loads(grpo("explain", "trl/dapo", "--json").stdout)
    assert document["version"].startswith("trl ")
    assert {"formula", "stages", "hyperparameters", "note", "same", "near"} <= document.keys()


def test_a_path_that_exists_is_a_file(grpo, dump, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trl").mkdir()
    dump({}, name="trl/dapo")
    dump({}, name="dapo")
    assert "evaluated alone" in grpo("explain", "trl/dapo").stdout
    assert "Decoupled Clip" in grpo("explain", "dapo").stdout
    assert "evaluated alone" in grpo("explain", "./dapo").stdout


def test_explain_the_first_seed(grpo, dump):
    seed = {
        "log_probs_new": [[-0.2, -0.3], [-0.1, -0.4]],
        "log_probs_old": [[-0.5, -0.6], [-0.4, -0.7]],
        "rewards": [1.0, 0.0],
        "epsilon": 0.2,
    }
    text = grpo("explain", str(dump(json.dumps(seed))), "-v", "dr").stdout
    assert "(1 + 0) / 2 = 0.5" in text
    assert "J = 0.600000 + (-0.674929) = -0.074929" in text
    assert "the gradient is not zero" in text
    assert "denominator 2: responses" in text


def test_match_commands_read_the_same_records(grpo, shell, dump):
    path = dump(UNEQUAL | {"id": "a"}, UNEQUAL | {"id": "b", "rewards": [0.5, 0.0, 2.0]})
    flags = [str(path), "--record", "b"]
    loss = grpo("eval", *flags, "--level", "batch", "--only", "loss").stdout.strip()
    document = json.loads(grpo("match", *flags, "--loss", loss, "--json").stdout)
    assert "--record b" in document["matches"][0]["command"]
    assert float(shell(document["matches"][0]["command"]).stdout) == float(loss)
