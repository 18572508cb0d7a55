"""The fuzzer in a small size: what was kept, and some inputs that follow from a seed."""

from __future__ import annotations

import random
from functools import cache

import pytest

from fuzz import plain, tables, templates
from fuzz.case import Case, Kept, corpus, made
from fuzz.differential import campaign
from fuzz.examine import examine, sandbox
from fuzz.oracle import Finding
from fuzz.product import BLOCK, blocks_of

KEPT = corpus()
KNOWN = {kept.finding for kept in KEPT if kept.known}
READ_NO_FILES = {"formats", "variants", "vectors", "help"}
SEED = 20
"""Another one than those by which the corpus was found."""
INPUTS = 40
"""In each of the four parts; .ci/run tries 100,000 of another seed with ``run.py``."""


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(
            kept,
            id=kept.slug,
            # What a command takes beside what its process holds depends on what ran before.
            marks=pytest.mark.xfail(strict="memory" not in kept.finding, reason=kept.known)
            if kept.known
            else (),
        )
        for kept in KEPT
    ],
)
def test_what_was_kept(kept: Kept) -> None:
    """Nothing is wrong with an input that once broke the product; match takes its time."""
    found = examined(kept.case)
    assert not [one for one in found if one.kind == kept.finding or one.kind not in KNOWN]


@cache
def examined(case: Case) -> list[Finding]:
    """What is wrong with a case; some broke the product in two ways."""
    with sandbox() as folder:
        return examine(case, folder, thorough=None if case.command == "match" else True)


@pytest.mark.parametrize("chunk", range(4))
def test_inputs(chunk: int) -> None:
    """Nothing is wrong with these inputs, but for what the corpus says is known."""
    with sandbox() as folder:
        for number in range(chunk * INPUTS, (chunk + 1) * INPUTS):
            found = examine(made(SEED, number), folder, number)
            assert not [one for one in found if one.kind not in KNOWN], number


def test_every_format_and_command_has_its_inputs() -> None:
    """A format or command that is added is fuzzed from then on."""
    text = " ".join([*templates.objects(), *tables.KINDS])
    assert not [name for name in templates.names()["formats"][1:] if name not in text]
    from fuzz.flags import COMMANDS
    from grpo_cli.commands.main import COMMANDS as KNOWN_COMMANDS

    assert KNOWN_COMMANDS.keys() - READ_NO_FILES == {*COMMANDS}


def test_a_case_follows_from_its_number() -> None:
    random.seed(1)
    first = made(5, 77)
    random.seed(2)
    assert made(5, 77) == first != made(6, 77)


def test_blocks_of_another_size_reach_the_reader() -> None:
    """The defaults that say how large a block is are found wherever they stand."""
    with blocks_of(1) as changed:
        assert changed
    assert BLOCK > 1


def test_six_objectives_in_plain_python() -> None:
    """Every number of some hundred records agrees with an evaluator that shares nothing."""
    assert campaign(SEED, range(6), 60)[2] == []


@pytest.mark.parametrize("variant", plain.RULES)
def test_the_differential_notices(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is a millionth wider is told."""
    rule = plain.RULES[variant]
    monkeypatch.setitem(plain.RULES, variant, rule._replace(high=rule.high + 1e-6))
    number = [*plain.RULES].index(variant)
    assert campaign(SEED, range(number, number + 1), 60)[2]
