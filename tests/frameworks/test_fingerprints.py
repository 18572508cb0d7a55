"""Versions of rows, and the fingerprints of the functions that they reproduce."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from files import each
from parity.drift import fingerprint, fingerprints, kept
from rows import EARLIER, FRAMEWORKS, NAMES, as_of, choose, framework, named_row

from grpo_cli import VARIANTS, InputError, evaluate

# ---- the fingerprints of what the rows reproduce, which tests/parity/drift.py compares -----------


KEPT = kept()
PLAIN = "def loss(ratio, advantage):\n    return -min(ratio * advantage, 2.0)"


def _of(text: str) -> str:
    return fingerprint(ast.parse(text).body[0])


@each(
    ("text", "counts"),
    [
        (PLAIN + "  # PPO", False),
        (PLAIN.replace(":\n", ':\n    """The loss."""\n'), False),
        (PLAIN.replace("(ratio, advantage)", "(\n    ratio,\n    advantage,\n)"), False),
        (PLAIN.replace("min(ratio * advantage, 2.0)", "(min((ratio * advantage), 2.0))"), False),
        (PLAIN.replace("min", "max"), True),
        (PLAIN.replace("-", ""), True),
        (PLAIN.replace("2.0", "2.1"), True),
        (PLAIN.replace("advantage)", "advantage=1.0)", 1), True),
    ],
)
def test_arithmetic_and_defaults_count_words_and_line_breaks_do_not(
    text: str, counts: bool
) -> None:
    assert (_of(text) != _of(PLAIN)) == counts


def test_a_function_that_is_not_there_any_more_is_gone() -> None:
    text = "class Trainer:\n    def loss(self):\n        return 1.0\n"
    found = fingerprints(["a.py:Trainer.loss", "a.py:loss", "a.py:other"], lambda _: text)
    assert found["a.py:Trainer.loss"] == found["a.py:loss"] != "gone"
    assert found["a.py:other"] == "gone"


@each("source", KEPT)
def test_each_row_has_the_functions_of_the_version_that_it_states(source: str) -> None:
    known = KEPT[source]
    assert "gone" not in known.functions.values()
    for row, functions in known.rows.items():
        assert functions, row
        assert set(functions) <= set(known.functions), row
        if "/" in row and not row.endswith(" advantage"):
            assert known.is_of(VARIANTS[row].version), row


def test_each_row_that_ran_has_fingerprints() -> None:
    ran = {name for name, row in VARIANTS.items() if row.checked == "executed"}
    assert ran - {row for known in KEPT.values() for row in known.rows} == set()


def test_each_row_of_a_framework_has_fingerprints() -> None:
    """``parity.drift`` looks at them alone. Tinker's servers compute its rows: none can be read."""
    named = {name for name in VARIANTS if "/" in name and not name.startswith("tinker/")}
    assert named <= {row for known in KEPT.values() for row in known.rows}


def test_the_weekly_run_looks_at_every_source_that_is_new() -> None:
    """All but those whose name has the release that they stay at."""
    workflow = Path(__file__).parents[2] / ".github" / "workflows" / "drift.yml"
    words = workflow.read_text(encoding="utf-8").partition("- name: Compare")[2].split()
    assert {source for source in KEPT if "@" not in source} <= {word.rstrip(";") for word in words}


# ---- rows of earlier releases: how they are found, and which a record's version picks ------------
# What changed when was read off the releases themselves: trl 1.8.0, 1.9.0, 1.9.1, 1.9.2 and 1.10.0,
# ms-swift 4.5.3 and 4.6.0, unsloth-zoo 2026.9.1, .3, .7 and .9, prime-rl 559b447 (before 0.9.0) and
# 349283d (after it). Their numbers are in others.json.


CHANGED = [(room, change) for room in FRAMEWORKS for change in framework(room).changes]


def test_earlier_rows_are_found_by_name_and_not_listed() -> None:
    assert "trl/dapo@1.9.2" in VARIANTS
    assert NAMES["trl/dapo@1.9.2"] == "trl/dapo@1.9.2"
    assert not [name for name in (*VARIANTS, *NAMES) if "@" in name]
    assert len(EARLIER) == sum(len(framework(room).earlier) for room in FRAMEWORKS)
    assert "trl/dapo@0.1" not in VARIANTS


@pytest.mark.parametrize(("room", "change"), CHANGED)
def test_each_change_has_its_rows(room: str, change: Any) -> None:
    for row in change.rows:
        assert row in VARIANTS
        assert f"{row}@{change.before}" in EARLIER
        assert VARIANTS[f"{row}@{change.before}"].version


@each("name", EARLIER)
def test_each_earlier_row_is_reached_by_a_version(name: str) -> None:
    row, _, tag = name.partition("@")
    assert as_of(framework(name.partition("/")[0]).changes, row, tag) == name


VERSIONS = json.loads(Path(__file__).with_name("versions.json").read_bytes())
"""What a record says, and the row that its version picks."""


@each(("settings", "row"), VERSIONS)
def test_a_record_s_version_picks_the_row(settings: dict[str, object], row: str) -> None:
    """As it does after the @ of a name."""
    assert choose(settings).row == row
    assert NAMES.get(f"{row.partition('@')[0]}@{settings.get('version')}", row) == row


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "trl", "loss_type": "gfpo", "version": "1.16.0"},
            "trl 1.16.0 no longer has gfpo: trl 1.7.1 was the last release with it; "
            "choose a variant with -v",
        ),
        (
            {"name": "prime-rl", "loss_type": "default", "version": "0.9.1"},
            "prime-rl 0.9.1 no longer has dppo: prime-rl 0.9.0 was the last release with it; "
            "choose a variant with -v",
        ),
    ],
)
def test_a_release_that_no_longer_has_the_loss_is_told(
    settings: dict[str, object], message: str
) -> None:
    # trl's wheels 1.7.1 and 1.8.0; prime-rl's pull request 3418
    with pytest.raises(InputError) as told:
        choose(settings)
    assert (told.value.path, told.value.message) == ("framework.version", message)


def test_another_variant_of_such_a_record_is_evaluated() -> None:
    settings = {"name": "prime-rl", "loss_type": "dppo", "version": "0.9.1"}
    assert named_row({"framework": settings}) == "prime-rl/dppo"


def test_a_row_says_until_when_it_was_there() -> None:
    until = {name: row.until for name, row in VARIANTS.items() if row.until}
    gone = {"prime-rl/dppo": "prime-rl 0.9.0", "rllm/per_step": "rllm 0.2.1"}
    assert until == {"gfpo": "trl 1.7.1", **gone}


def test_prime_rl_s_advantages_are_not_divided() -> None:
    settings = {"name": "prime-rl", "algorithm": "max_rl", "loss_type": "ipo", "adv_tau": 2.0}
    with pytest.raises(InputError, match=r"adv_tau 2.0: multiply the advantages by it"):
        choose(settings)


@pytest.mark.parametrize("name", ["algorithm", "loss_type"])
def test_a_paper_s_row_does_not_stand_for_prime_rl_s(name: str) -> None:
    with pytest.raises(InputError, match=r"no variant reproduces prime-rl's 'cispo'") as told:
        choose({"name": "prime-rl", name: "cispo"})  # which it has since, by another formula
    assert told.value.path == f"framework.{name}"


def test_top_entropy_is_compared_in_single_precision() -> None:
    # TRL 1.16.0's get_high_entropy_mask keeps two of them: its entropies are float32
    record = {
        "log_probs_new": [[-1.0, -1.0, -1.0]],
        "entropies": [[0.1, 0.2, 0.3]],
        "advantages": [1.0],
    }
    for row in ("trl/bnpo", "ms-swift/bnpo"):
        found = evaluate(record, row, top_entropy_quantile=0.5, beta=0.0)
        assert found.loss == pytest.approx(-2.0 / 3.0, rel=1e-15)
