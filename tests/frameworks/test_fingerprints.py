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
# And that the modules there fit together, which only runs with clones at hand would show else.


KEPT = kept()
PLAIN = "def loss(ratio, advantage):\n    return -min(ratio * advantage, 2.0)"


def _of(text: str) -> str:
    return fingerprint(ast.parse(text).body[0])


@pytest.mark.parametrize(
    "same",
    [
        PLAIN + "  # PPO",
        'def loss(ratio, advantage):\n    """The loss."""\n    return -min(ratio * advantage, 2.0)',
        "def loss(\n    ratio,\n    advantage,\n):\n\n    return -(min((ratio * advantage), 2.0))",
    ],
)
def test_words_and_line_breaks_do_not_count(same: str) -> None:
    assert _of(same) == _of(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("min", "max"),
        PLAIN.replace("-", ""),
        PLAIN.replace("2.0", "2.1"),
        PLAIN.replace("advantage)", "advantage=1.0)", 1),
    ],
)
def test_arithmetic_and_defaults_do(other: str) -> None:
    assert _of(other) != _of(PLAIN)


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


PARITY = Path(__file__).parent.parent / "parity"


@pytest.mark.more
@each("file", sorted(PARITY.rglob("*.py")), ids=lambda file: str(file.relative_to(PARITY)))
def test_what_a_parity_module_imports_of_another_is_there(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            wanted = {alias.name for alias in node.names}
            assert wanted <= _names(home), f"{file.name}: {node.module}"


def _names(home: Path) -> set[str]:
    """What a module defines or imports; of a package its modules too."""
    within = {path.stem for path in home.glob("*.py")} | {path.name for path in home.glob("*/")}
    source = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    body = ast.parse(source.read_text(encoding="utf-8")).body
    stored = (n.id for n in ast.walk(ast.Module(body, [])) if isinstance(n, ast.Name))
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = (n for n in body if isinstance(n, ast.Import | ast.ImportFrom))
    names = {alias.asname or alias.name for node in imported for alias in node.names}
    return within | {*stored} | defined | names


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


def test_prime_rl_s_threshold_has_two_names() -> None:
    for name in ("eps", "ipo_threshold"):
        chosen = choose({"name": "prime-rl", "loss_type": "ipo", name: 0.02, "kl_tau": 0.1})
        assert chosen.row == "prime-rl/ipo"
        assert chosen.hyperparameters == {"ipo_threshold": 0.02, "beta": 0.1}
    chosen = choose({"name": "prime-rl", "loss_type": "default", "dppo_mask_low": 0.1})
    assert chosen.hyperparameters == {"divergence_low": 0.1}


def test_prime_rl_s_algorithm_and_loss_are_two_settings() -> None:
    settings = {"name": "prime-rl", "algorithm": "max_rl", "loss_type": "ipo"}
    chosen = choose(settings)
    assert (chosen.row, chosen.stages) == ("prime-rl/ipo", {"advantage": "max-rl"})
    with pytest.raises(InputError, match=r"adv_tau 2.0: multiply the advantages by it"):
        choose({**settings, "adv_tau": 2.0})


@pytest.mark.parametrize("name", ["algorithm", "loss_type"])
def test_a_paper_s_row_does_not_stand_for_prime_rl_s(name: str) -> None:
    with pytest.raises(InputError, match=r"no variant reproduces prime-rl's 'cispo'") as told:
        choose({"name": "prime-rl", name: "cispo"})  # which it has since, by another formula
    assert told.value.path == f"framework.{name}"


def test_a_loss_that_once_aggregated_itself_leaves_the_mode_to_its_kl() -> None:
    settings = {"name": "verl", "policy_loss": "gspo", "loss_agg_mode": "token-mean"}
    before = choose({**settings, "version": "0.9.0"}).stages
    assert before == {
        "kl_aggregate": "verl/token-mean",
        "entropy_aggregate": "verl/token-mean",
    }
    assert choose({**settings, "version": "0.9.1"}).stages == {"aggregate": "verl/token-mean"}


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
