"""A logged number finds its convention again, and says so when it is not the only one."""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import answer, run
from files import each, expressions, some
from planted import DUMPS, record, telling, write

from grpo_cli import UsageError, compare, evaluate, match

KNOWN = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.04}
KNOWN |= {"gradient_accumulation_steps": 4, "max_completion_length": 64}
"""What logs say of hyperparameters: it is not searched for."""
NARROW = {"kl": "none", "aggregate": "token-mean", "surrogate": "clip"}
"""Stages that stay: a hundredth of the conventions, for what is the same however many there are."""
FLAGS = ("--kl", "none", "--aggregate", "token-mean", "--surrogate", "clip")
FEW = (*FLAGS, "--epsilon", "0.2")
USUAL = {"ratio": "token", "surrogate": "clip", "advantage": "group-std"}
"""Stages of the GRPO paper's row, where other rows are not what is asked about."""
PENALISED = USUAL | {"kl": "k3"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("match") / "telling", telling()))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = telling(hyperparameters=KNOWN)
    return str(write(tmp_path_factory.mktemp("match") / "known", made))


@pytest.fixture(scope="module")
def losses(known: str) -> dict[str, float]:
    """Each row's loss on the records whose hyperparameters are known."""
    return {row.variant: row.loss for row in compare(known, "all").variants}


# ---- the conventions of cases/match*.txt ---------------------------------------------------

SAMPLES = str(Path(__file__).parents[2] / "samples")
BATCH_STD = {"advantage": "batch-std", **NARROW, "ratio": "token"}
PROMPTS = {"advantage": "leave-one-out", "aggregate": "prompt-mean", "surrogate": "clip"}
PROMPTS |= {"ratio": "token"}
CISPO = {"kl": "none", "advantage": "group-std", "aggregate": "token-mean", "ratio": "token"}
OTHER = [{**one, "advantages": [r - math.pi / 8 for r in one["rewards"]]} for one in telling()]
BAPO = [record(at, [6, 9, 5, 7], [1.0, 0.0, 0.4, 0.1], hyperparameters=KNOWN) for at in (1, 2)]
ENTROPIES = record(3, [4, 6, 5], [1.0, 0.0, 0.5])
ENTROPIES["entropies"] = [[0.5 + 0.1 * at for at in range(n)] for n in (4, 6, 5)]
LOGGED = {
    name: json.loads((DUMPS / f"trl-1.16.0-{name}.jsonl").read_text().splitlines()[-1])
    for name in ("grpo", "cispo")
}


def padded(width: int) -> list[dict[str, Any]]:
    rows = telling(hyperparameters={"epsilon": 0.2, "beta": 0.04})
    for one in rows:
        one["mask"] = [[1] * len(row) + [0] * (width - len(row)) for row in one["log_probs_new"]]
        for column in (name for name in one if name.startswith("log_probs")):
            one[column] = [row + [0.0] * (width - len(row)) for row in one[column]]
    return rows


def dropping(beta: float) -> list[dict[str, Any]]:
    """Records some of whose tokens the engine found far more or less likely."""
    records = telling(hyperparameters=KNOWN | {"beta": beta})
    for one in records:
        one["log_probs_rollout"] = [
            [x + (0.9 if at % 3 else -0.9) if x < -1.0 else x for at, x in enumerate(row)]
            for row in one["log_probs_old"]
        ]
    return records


def found_in(rows: list[dict[str, Any]], loss: float, digits: int, **asked: Any) -> Any:
    write(Path("rows"), rows)
    return match("rows", loss=f"{loss:.{digits}g}", **asked)


def given(
    rows: list[dict[str, Any]], loss: float, digits: int = 17, *, within: float = 0.0, **asked: Any
) -> list[str]:
    """The first convention, and the names of others that are the same.

    Sure where fewer than 0.0001 are expected by chance.
    """
    found = found_in(rows, loss, digits, **asked)
    if not found.matches:
        return ["none"]
    one = found.matches[0]
    words = one.command.partition(" -v ")[2].partition(" --level ")[0]
    words += "" if one.factor == 1.0 else f" {one.factor_meaning}"
    words += "" if math.isclose(one.value, loss, rel_tol=within) else ", nearly"
    words += "" if found.reproduced else ", by chance"
    return [f"{words}{', sure' * (one.hits_expected < 1e-4)}", *one.variants[1:]]


def made(
    rows: list[dict[str, Any]], row: str, settings: dict[str, Any], digits: int = 17, **asked: Any
) -> list[str]:
    """The same of the loss that a row gives of the records."""
    return given(rows, evaluate(rows, row, **settings).loss, digits, **asked)


def tried(
    rows: list[dict[str, Any]], words: str, row: str, settings: dict[str, Any], **asked: Any
) -> bool:
    """Whether a convention with these words gives the loss; there is one in any case."""
    found = found_in(rows, evaluate(rows, row, **settings).loss, 17, **asked)
    assert found.match_count
    return any(words in one.signature for one in found.matches)


@pytest.mark.parametrize(
    "name",
    ["match", *(pytest.param(f"match_{of}", marks=pytest.mark.more) for of in ("more", "solved"))],
)
@pytest.mark.usefixtures("folder")
def test_conventions_are_named(name: str) -> None:
    expressions(Path(__file__).parent / f"cases/{name}.txt", globals())


# ---- rows, changes, numbers ---------------------------------------------------------------------


def test_rows_find_themselves(known, losses) -> None:
    """Also with four digits, which put the published row first; and where a record is a batch."""
    names = some([("dapo", ".17g"), ("gspo", ".4g"), ("skyrl/regular", ".4g")], 1)
    for name, text in names:
        found = match(known, loss=f"{losses[name]:{text}}")
        assert name in found.matches[0].variants, name
        assert found.matches[0].value == losses[name], name
        assert found.matches[0].hits_expected <= found.chance_hits
    loss = evaluate(known, "rloo", batch="record").loss
    found = match(known, loss=loss, batch="record")
    assert "rloo" in found.matches[0].variants
    assert found.matches[0].value == loss


@pytest.mark.more
def test_the_nearest_row_is_named_with_the_flags_that_it_has(path) -> None:
    """If it is within 0.1 % of the number."""
    flags = (*FEW, "--advantage", "batch-std", "--rtol", "1e-9")
    found = json.loads(run("match", path, "--loss=0.155", *flags, "--json").stdout)
    nearest = found["released"]["nearest"]["value"]
    far, shown = (
        " ".join(run("match", path, f"--loss={nearest * times!r}", *flags).stdout.split())
        for times in (1.01, 1.0005)
    )
    assert "the nearest is" not in far
    name, _, rest = shown.partition("the nearest is ")[2].partition(" with ")
    assert " --advantage batch-std" in name
    own = run("eval", path, "-v", *name.split(), "--level", "batch", "--only", "loss").stdout
    assert float(own) == pytest.approx(float(rest.split()[0]), rel=1e-5)


def test_of_rows_that_differ_by_an_eps_the_one_with_the_digits_is_named(tmp_path) -> None:
    """Where float32 might hide the eps."""
    row = record(438, [6, 9, 5, 8, 7, 11], [1.0, 0.0, 0.3, 0.0, 0.7, 0.25])
    loss = evaluate(row, "ms-swift/grpo", epsilon=0.2, beta=0.04).loss
    first = match(write(tmp_path / "a.jsonl", [row]), loss=f"{loss:.17g}").matches[0]
    assert abs(first.difference) < 1e-15
    assert first.variants[0] == "ms-swift/grpo"
    assert "grpo" in first.except_eps
    assert "trl/grpo@1.9.2 --beta 0.04" not in first.except_eps


@each("rtol", [1e-12, 0.0])
def test_a_given_tolerance_is_used_as_it_is(path, rtol) -> None:
    """Nothing is added for float32, in the search and in what is printed."""
    fixed: dict[str, Any] = {"stages": NARROW | PLAIN["advantage"], "epsilon": 0.2, "rtol": rtol}
    loss = evaluate(path, "dapo", stages=fixed["stages"], epsilon=0.2).loss
    found = match(path, loss=loss, **fixed)
    assert found.match_count
    assert found.tolerance < 1e-12
    assert not match(path, loss=loss * (1.0 + 1e-9), **fixed).match_count


PLAIN = {
    "advantage": {"advantage": "group-mean"},
    "pair": {"ratio": "token", "surrogate": "clip"},
    "kl": {"kl": "none"},
    "aggregate": {"aggregate": "response-mean"},
}
RATIO_WEIGHT = {"kl_weight": "ratio"}
AXES: list[tuple[str, dict[str, str], dict[str, Any], float]] = [
    *(("advantage", {"advantage": "group-std"}, {"std_ddof": ddof, "std_eps": eps, "std_min": 0.0},
       4.0 + bool(ddof or eps != 1e-8)) for ddof in (0, 1) for eps in (1e-8, 1e-6, 1e-4, 0.0)),
    ("advantage", {"advantage": "leave-one-out"}, {}, 4.0),
    ("advantage", {"advantage": "raw"}, {}, 7.0),
    *(("advantage", {"advantage": "batch-std"}, {"std_ddof": 1, "std_eps": eps}, 5.0)
      for eps in (1e-4, 1e-8)),
    ("pair", {"ratio": "sequence", "surrogate": "clip"}, {}, 4.0),
    ("pair", {"ratio": "product", "surrogate": "clip"}, {}, 7.0),
    ("pair", {"ratio": "token", "surrogate": "unclipped"}, {}, 4.0),
    ("pair", {"ratio": "token", "surrogate": "reinforce"}, {}, 5.0),
    ("pair", {"ratio": "token", "surrogate": "cispo"}, {}, 5.0),
    ("pair", {"ratio": "sequence", "surrogate": "unclipped"}, {}, 9.0),
    ("pair", {"ratio": "sequence", "surrogate": "cispo"}, {}, 10.0),
    *(("kl", {"kl": name}, {"beta": 0.04}, 4.0) for name in ("k1", "k2", "k3")),
    ("kl", {"kl": "abs"}, {"beta": 0.04}, 5.0),
    *(("kl", {"kl": name}, {"beta": 0.04} | RATIO_WEIGHT, 6.0) for name in ("k1", "k2", "k3")),
    *(("aggregate", {"aggregate": name}, {}, 4.0)
      for name in ("token-mean", "token-sum", "prompt-mean", "sum")),
    *(("aggregate", {"aggregate": "token-sum-norm"}, {"max_completion_length": length}, 7.0)
      for length in (128, 768, 32768)),
]  # fmt: skip
"""The axis, what is changed on it in a row of the plain choices, and its bits at most."""


@each(("axis", "changed", "flags", "bits"), some(AXES, 4))
def test_changes_of_every_axis_are_found(path, axis, changed, flags, bits) -> None:
    """What the search adds up of each is what eval gives of it: else it would not be found."""
    fixed = {k: v for name, some in PLAIN.items() if name != axis for k, v in some.items()}
    clips = (fixed | changed)["surrogate"] in ("clip", "cispo") if axis == "pair" else True
    own = {"epsilon": 0.2} if clips else {}
    loss = evaluate(path, stages=PLAIN["pair"] | fixed | changed, **own, **flags).loss
    found = match(path, loss=repr(loss), stages=fixed, epsilon=0.2)
    best = min((one.bits for one in found.matches if one.difference == 0.0), default=math.inf)
    assert best <= bits
    assert found.matches[0].difference == 0.0
    for given in ({}, flags):  # what is known of the truth never loses it
        narrowed = match(path, loss=repr(loss), stages=fixed | changed, epsilon=0.2, **given)
        assert narrowed.matches[0].difference == 0.0


def clipped_loss(
    rows: list[dict[str, Any]], low: float, high: float, *, sequence: bool = False
) -> float:
    """By definition: of DAPO, or of GSPO, whose ratio is a response's geometric mean."""
    terms = []
    for row in rows:
        for *columns, advantage in zip(
            row["log_probs_new"], row["log_probs_old"], row["advantages"], strict=True
        ):
            new, old = map(np.array, columns)
            ratio = np.exp([(new - old).mean()] if sequence else new - old)
            terms += np.minimum(
                ratio * advantage, ratio.clip(1 - low, 1 + high) * advantage
            ).tolist()
    return -math.fsum(terms) / len(terms)


@pytest.mark.more
def test_an_exact_epsilon_comes_before_what_float32_leaves() -> None:
    """Without its clip, of one token by a millionth, the loss is what float32 would leave."""
    rows = copy.deepcopy(OTHER)
    row = int(np.argmax(rows[0]["advantages"]))
    rows[0]["log_probs_old"][row][0] = rows[0]["log_probs_new"][row][0] - math.log(2.300001)
    loss = clipped_loss(rows, 1.3, 1.3)
    assert 0.0 < abs(loss - evaluate(rows, "dapo", stages={"surrogate": "unclipped"}).loss) < 3e-8
    found = match(rows, loss=repr(loss))
    assert found.matches[0].command.startswith("evaluate(data, 'dapo', epsilon_low=1.3")
    assert (found.matches[0].value, found.entry_count) == (pytest.approx(loss, rel=1e-12), 1)


def test_the_other_sign_the_objective_and_noise_of_float32(path) -> None:
    made = evaluate(path, "dapo", stages=NARROW, epsilon=0.2)
    flags: dict[str, Any] = {"stages": NARROW, "epsilon": 0.2}
    for asked, flipped in (
        ({"objective": made.objective}, False),
        ({"objective": made.loss}, True),
        ({"loss": float(np.float32(made.loss * (1 + 1e-7)))}, False),
    ):
        found = match(path, **asked, **flags)
        first = next(one for one in found.matches if abs(one.value) == abs(made.loss))
        assert first.sign_flipped is flipped
        assert all(abs(one.difference) < 1e-6 * abs(made.loss) for one in found.matches)


@pytest.mark.more
def test_a_variant_that_is_named_is_the_only_one_tried(tmp_path) -> None:
    """Where it does not give the number, a note says that others were not tried."""
    made = telling()
    loss = evaluate(made, "dr").loss
    every = match(made, loss=loss)
    only = match(made, loss=loss, variant="dr")
    assert only.matches[0].value == every.matches[0].value == loss
    assert {one.signature.partition("|")[0] for one in only.matches} == {"dr"}
    assert only.released.tried == 1 < every.released.tried
    assert not only.notices
    path = str(write(tmp_path / "a", made))
    other = run(
        "match", path, "--loss", "0.123456789", "-v", "grpo", "--kl", "none", "--epsilon", "0.2"
    )
    assert "only grpo was tried, with changes (-v); without -v, every variant is" in other.stderr
    found = match(made, loss="0.123456789", variant="grpo", stages={"kl": "none"}, epsilon=0.2)
    assert any("only grpo was tried" in one for one in found.notices)


def test_some_records_have_advantages_by_token(tmp_path) -> None:
    """And others rewards: such a file is matched where its first record has them by token."""
    first, *more = [{**one, "log_probs_rollout": None} for one in telling()]
    by_token = [[0.5 - at / 7 for at in range(len(row))] for row in first["log_probs_new"]]
    records = [{**first, "advantages": by_token, "rewards": None}, *more]
    path, flags = str(write(tmp_path / "first", records)), {"stages": NARROW, "epsilon": 0.2}
    loss = evaluate(path, **flags).loss
    assert match(path, loss=loss, **flags).matches[0].value == loss
    path = str(write(tmp_path / "last", records[::-1]))
    with pytest.raises(UsageError, match="put one of them first"):
        match(path, loss=loss, **flags)


@pytest.mark.more
def test_the_nearest_are_listed_where_nothing_fits(tmp_path) -> None:
    path = str(write(tmp_path / "a", telling()))
    found = match(path, loss=987654321.5, stages=PLAIN["advantage"])
    off = [abs(one.difference) for one in found.nearest]
    assert not found.matches
    assert 1 < len(off) <= 5
    assert off == sorted(off)
    for one in found.nearest:
        assert one.difference == one.value - 987654321.5
        assert float(run(*shlex.split(one.command)[1:]).stdout) == one.value
        assert one.bits <= 8


def test_the_nearest_say_what_would_make_them_match(tmp_path) -> None:
    """With that setting each gives the number; a factor is one that the records explain."""
    path = str(write(tmp_path / "a", telling(hyperparameters={"beta": 0.04, "epsilon": 0.2})))
    stages = PENALISED | {"aggregate": "response-mean"}
    loss, mean_length = evaluate(path, "grpo", stages=stages).loss, 37 / 8
    seen: list[str] = []
    cases = (
        (1.00231, "k3", {"epsilon": 0.2}),
        (0.97, "none", {}),
        (1.003 * mean_length, "none", {}),
    )
    for times, kl, flags in cases:
        number, kept = loss * times, stages | {"kl": kl}
        found = match(path, loss=f"{number:.10g}", variant="grpo", stages=kept, **flags)
        assert not found.matches
        for needs, one in ((one.needs, one) for one in found.nearest if one.needs):
            seen.append(needs.setting)
            assert needs.value != needs.instead
            if needs.meaning:
                assert needs.value == pytest.approx(number / one.value)
                continue
            names = ["epsilon_low", "epsilon_high"] if needs.setting == "epsilon" else []
            words = shlex.split(one.command)[1:]
            for name in names or [needs.setting]:
                flag = f"--{name.replace('_', '-')}"
                at = words.index(flag) if flag in words else len(words)
                words[at : at + 2] = [flag, repr(needs.value)]
            assert float(run(*words).stdout) == pytest.approx(number, rel=1e-9), words
        if seen[-1] == "beta":
            words = ["-v", "grpo", "--epsilon", "0.2", *_words(stages)]
            assert " instead of 0.04" in run("match", path, f"--loss={number:.10g}", *words).stdout
    assert {"beta", "epsilon", "factor"} <= {*seen}


def _words(stages: dict[str, str]) -> list[str]:
    return [word for stage, choice in stages.items() for word in (f"--{stage}", choice)]


# ---- digits and chance --------------------------------------------------------------------------


@pytest.mark.more
def test_chance_is_how_often_numbers_are_hit(path) -> None:
    """Of some numbers, and falls with their digits."""
    draw = np.random.default_rng(7)
    stages = PLAIN["pair"] | PLAIN["kl"]
    hits, chance = [], []
    for number in some(draw.uniform(0.05, 0.4, 12).tolist(), 4):
        found = match(path, loss=f"{number:.3f}", stages=stages, epsilon=0.2)
        hits.append(found.match_count)
        chance.append(found.chance_hits)
    assert sum(chance) / 2 < sum(hits) < 2 * sum(chance)
    loss = evaluate(path, "dapo", stages=NARROW, epsilon=0.2).loss
    by_digits = [
        match(path, loss=f"{loss:.{digits}g}", stages=NARROW, epsilon=0.2).matches[0].hits_expected
        for digits in (3, 5, 8)
    ]
    assert by_digits[0] > 10 * by_digits[1] > 100 * by_digits[2]


# ---- what would distinguish them ----------------------------------------------------------------


@pytest.mark.more
def test_values_that_few_digits_leave_are_distinguished_by_more(known, losses) -> None:
    words = ("match", known, f"--loss={losses['dapo']:.5g}", "--kl", "none")
    found = json.loads(run(*words, "--json").stdout)
    count = len({one["value"] for one in found["matches"]})
    assert (count > 1, found["reproduced"]) == (True, True)
    shown = " ".join(run(*words).stdout.split())
    assert f"to decide between the {found['entry_count']} values, give more digits" in shown


@pytest.mark.more
def test_names_that_are_equal_on_any_data_are_equal_in_every_eps(path) -> None:
    """Those that an eps tells from it are listed by themselves: their numbers differ here."""
    found = match(path, loss=f"{evaluate(path, 'dapo').loss:.5g}").matches[0]
    names = {
        name: float(run(*f"eval {path} -v {name} --level batch --only loss".split()).stdout)
        for name in (*found.variants, *found.also)
    }
    equal = {name for name, value in names.items() if abs(value - found.value) <= 1e-15}
    assert equal == {*names} - {*found.except_eps} > {"dapo"}
    assert "bnpo -p std_eps=1e-06 --epsilon-high 0.28 --beta 0" in found.except_eps
    words = ("match", path, f"--loss={evaluate(path, 'dapo').loss:.5g}", "--full")
    shown = " ".join(run(*words).stdout.split())
    listed = shown.partition("equal but for an eps: ")[2].partition(" equal on this data")[0]
    assert {*listed.split("; ")} == {*found.except_eps}


@pytest.mark.more
def test_what_separates_equal_conventions_is_what_the_data_lacks(path, tmp_path) -> None:
    """A two-sided clip differs from DAPO where a ratio exceeds δ = 4 and A < 0."""
    words = f"--loss={evaluate(path, 'dapo').loss:.5g}"
    shown = " ".join(run("match", path, words).stdout.split())
    assert "may differ on another step that has a ratio above 4 with A < 0 to decide" in shown
    rows = telling()
    rows[0]["log_probs_old"][1][0] = rows[0]["log_probs_new"][1][0] - math.log(5.0)
    over = str(write(tmp_path / "over", rows))
    found = match(over, loss=f"{evaluate(over, 'dapo').loss:.5g}")
    assert found.separating == ("a ratio above 10 with A < 0",)  # the dual clip of other rows
    assert not [one for one in found.matches if "delta=4" in one.signature and not one.entry]


@pytest.mark.more
def test_each_match_has_the_tolerance_of_its_own_sum(path) -> None:
    """That of the first is printed; a number beyond the digits is listed with its own."""
    loss = evaluate(path, "dr", stages={"aggregate": "token-mean"}, epsilon_high=0.3).loss
    text = f"{loss + 1.2e-8:.8g}"  # as a sum in float32 may be rounded
    found = match(path, loss=text)
    each_own = [one.tolerance for one in found.matches]
    assert found.tolerance == each_own[0] < max(each_own)
    assert all(abs(one.difference) <= one.tolerance for one in found.matches)
    shown = " ".join(run("match", path, f"--loss={text}", "--full").stdout.split())
    off = re.findall(r" off by (\S+)( \(float32: ±)?", shown)
    assert {bool(noted) for _, noted in off} == {True, False}
    assert all((abs(float(value)) > 5e-9) is bool(noted) for value, noted in off)


# ---- as users run it ----------------------------------------------------------------------------


def test_records_that_a_plan_cannot_evaluate_are_left_out(tmp_path) -> None:
    """With --on-error skip, as by eval; else a note says why nothing was found."""
    rows = telling(hyperparameters=KNOWN)
    path = write(tmp_path / "some", [*rows, {**rows[0], "rewards": None}])
    words = ("match", path, f"--loss={evaluate(rows, 'dapo').loss!r}", *FLAGS)
    result = run(*words, "--on-error", "skip", "-v", "grpo")
    assert result.stdout.startswith("grpo --kl none --aggregate token-mean gives the loss")
    assert "skipped 1 record" in result.stderr
    found = run(*words, "--ratio", "token", "--epsilon", "0.2")
    assert found.exit_code == 1
    assert "rewards: missing" in found.stderr
    assert "--on-error skip leaves such records out" in found.stderr


@pytest.mark.more
def test_the_headline_counts_what_is_listed(known, losses) -> None:
    """Conventions that are equal on the data, each once under all its names."""
    words = ("match", known, f"--loss={losses['grpo']!r}", "--full", *FLAGS[4:], "--kl", "k3")
    found = json.loads(run(*words, "--json").stdout)
    shown = " ".join(run(*words).stdout.split())
    listed = shown.partition("equal on this data: ")[2].partition(" to distinguish them")[0]
    assert found["match_count"] - 1 == len(listed.split("; ")) > 0
    count = found["match_count"] - 1
    others = "convention also gives" if count == 1 else "conventions also give"
    assert f"; {count} other {others} it on this data (" in shown


@pytest.mark.more
def test_the_printed_command_gives_the_printed_value(known, losses) -> None:
    for variant, times in some([("dapo", 0.25), ("openrlhf/ppo", -1.0)], 1):
        text = f"{times * losses[variant]:.9g}"
        first = answer("match", known, f"--loss={text}")["matches"][0]
        line, _, scale = first["command"].partition(" | awk ")
        printed = float(run(*shlex.split(line)[1:]).stdout)
        assert printed * first["factor"] == first["value"]
        assert scale in ("", "'{printf \"%.17g\\n\", $1 / 4}'", "'{printf \"%.17g\\n\", $1 * 4}'")


def test_a_command_says_nothing_that_its_row_and_the_records_say_anyway(tmp_path) -> None:
    made = record(5, [5, 9], [1.0, 0.0], hyperparameters={"beta": 0.04, "epsilon_low": 0.1})
    path = write(tmp_path / "a b.jsonl", [made])
    stages = {"ratio": "sequence", "aggregate": "token-mean", "advantage": "group-std", "kl": "k3"}
    flags = {"beta": 0.04, "epsilon_low": 0.2, "epsilon_high": 0.2, "std_eps": 1e-6}
    loss = evaluate(str(path), stages=stages, **flags).loss
    words = [word for name, choice in stages.items() for word in (f"--{name}", choice)]
    words += ["--epsilon-low", "0.2", "--epsilon-high", "0.2", "-p", "std_eps=1e-6", "-v", "grpo"]
    first = answer("match", path, f"--loss={loss!r}", *words)["matches"][0]
    assert first["command"].startswith(f"grpo eval {shlex.quote(str(path))} -v ")
    chosen = first["command"].partition(" -v ")[2].split()
    assert first["value"] == loss
    assert "--beta" not in chosen  # the record says it
    assert "k3" not in chosen or chosen[0] != "grpo"
    assert {"--epsilon-low", "std_eps=1e-06"} <= {*chosen}


@pytest.mark.more
def test_files_processes_and_streams_give_the_same_answer(tmp_path, monkeypatch) -> None:
    """Each file is a piece of work of its own; and there is a limit of what is read."""
    rows = [record(seed, [3, 7, 5], [1.0, 0.0, 0.3]) for seed in range(12)]
    whole = write(tmp_path / "all", rows)
    parts = [write(tmp_path / f"part{at}", rows[at : at + 4]) for at in (0, 4, 8)]
    loss = evaluate(str(whole), "lite-ppo", stages=NARROW, epsilon=0.2).loss
    words = (f"--loss={loss:.9g}", *FEW)

    def said(*files: object, **more: Any) -> Any:
        found = answer("match", *words, *files, **more)
        matches = [(one["signature"], one["value"], one["factor"]) for one in found["matches"]]
        return matches, found["tried"], found["not_tried"]

    base = said(whole)
    assert any(signature.startswith("lite-ppo|") for signature, _, _ in base[0])
    for jobs in (1, 2):
        assert said(*parts, "--jobs", jobs) == base
    assert said(stdin=whole.read_text()) == base
    monkeypatch.setattr("grpo_cli.commands.match.question._MOST", 100)
    assert "match reads at most 100 tokens; --where" in run("match", *words, whole).stderr


@pytest.mark.more
def test_large_inputs_are_searched_narrowly_first(losses, known, monkeypatch) -> None:
    monkeypatch.setattr("grpo_cli.commands.match.search._LARGE", 0)
    large, loss = match(known, loss=losses["dr"]), losses["dr"]
    assert (large.matches[0].value, "dr" in large.matches[0].variants) == (loss, True)
    with monkeypatch.context() as patch:
        patch.setattr("grpo_cli.commands.match.search._MOST_WORK", {0: math.inf, 1: 0, 2: 0})
        result = run("match", known, f"--loss={losses['dr']:.4g}1", *FEW)
        assert "large input: only the ratio and the surrogate of each variant" in result.stderr
    monkeypatch.undo()
    small = match(known, loss=loss)
    assert large.tried < small.tried


def logged(tmp_path: Path, rows: list[dict[str, Any]], *words: str) -> Any:
    return run("match", write(tmp_path / "run", rows), *words, *FEW, "--json")


def carrying(step: int | None, loss: Any, **more: Any) -> dict[str, Any]:
    made = record(1, [2, 3], [1.0, 0.0], metrics={"loss": loss}, **more)
    return made if step is None else made | {"step": step}


@pytest.mark.more
def test_numbers_that_the_records_carry(tmp_path) -> None:
    """A gradient norm besides leaves fewer; a wrong one, of any step, none."""
    rows = []
    for seed in (1, 2, 3):
        one = record(seed, [3, 7, 5, 2], [1.0, 0.0, 0.3, 0.6], step=seed)
        made = compare([one], "dapo", stages=NARROW, epsilon=0.2).variants[0]
        metrics = {"loss": float(f"{made.loss:.3g}"), "norm": float(f"{made.gradient_norm:.4g}")}
        rows.append(one | {"metrics": metrics})
    of_loss = ("--logged", "loss=metrics.loss")
    alone = json.loads(logged(tmp_path, rows, *of_loss).stdout)
    assert alone["questions"] == [3, 3]
    assert alone["chance_hits"] < 1e-3
    assert not alone["by_chance"]
    words = (*of_loss, "--logged", "gradient-norm=metrics.norm")
    both = json.loads(logged(tmp_path, rows, *words).stdout)
    assert both["questions"] == [6, 3]
    assert 0 < both["match_count"] <= alone["match_count"]
    assert " --where step==3 " in both["matches"][0]["command"]
    rows[0]["metrics"]["norm"] *= 1.5
    assert not json.loads(logged(tmp_path, rows, *words).stdout)["matches"]


def test_records_of_a_step_may_differ_in_what_they_say(tmp_path) -> None:
    """In their hyperparameters, and in the columns that they have: each is taken as it is."""
    first = record(1, [3, 7, 5, 2], [1.0, 0.0, 0.3, 0.6], hyperparameters={"beta": 0.5})
    second = record(2, [4, 4], [1.0, 0.0], hyperparameters={"beta": 0.0})
    del second["log_probs_ref"]
    loss = evaluate([first, second], "dapo", stages={"kl": "k3"}).loss
    rows = [one | {"step": 1, "metrics": {"loss": loss}} for one in (first, second)]
    words = ("-v", "dapo", "--kl", "k3", "--logged", "loss=metrics.loss")
    found = answer("match", write(tmp_path / "run", rows), *words)
    assert found["questions"] == [1, 1]
    assert found["matches"][0]["value"] == loss
    assert "dapo" in found["matches"][0]["command"]


@pytest.mark.more
def test_the_verdict_says_what_the_unmodified_rows_give(tmp_path) -> None:
    records = telling(hyperparameters=KNOWN | {"gradient_accumulation_steps": 1})
    for one in records:
        one["framework"] = {"name": "trl", "loss_type": "dr_grpo"}
    path = str(write(tmp_path / "named", records))
    values = {row.variant: row.loss for row in compare(path, "all").variants}
    number = values["trl/dr_grpo"]

    shown = run("match", path, f"--loss={number:.9g}").stdout
    assert "the records name trl/dr_grpo, which gives this number\n" in shown
    assert "  trl/dr_grpo, " in shown.partition("off by ")[2].partition("grpo eval")[0]
    flipped = " ".join(run("match", path, f"--loss={-number:.9g}").stdout.split())
    rest = flipped.partition("unmodified variants that give it with the other sign: ")[2]
    rows, _, gives = rest.partition("the records name trl/dr_grpo, which gives ")
    assert "trl/dr_grpo" in rows
    assert gives.split()[1] == "instead"
    same = ("--epsilon-low", 0.2, "--epsilon-high", 0.28, "--beta", 0.04)
    found = answer("match", path, f"--loss={1.0137 * number:.6g}", *same)
    nearest, recorded = found["released"]["nearest"], found["released"]["recorded"]
    assert recorded["value"] == number
    assert evaluate(path, nearest["variants"][0]).loss == nearest["value"]
    off = min(abs(value - found["target"]) for value in values.values())
    assert off == abs(nearest["difference"])


# ---- which row is named --------------------------------------------------------------------------


def of_trl(**more: Any) -> dict[str, Any]:
    """A record under TRL's names, which does not name its framework."""
    made = record(5, [6, 9, 4, 7], [1.0, 0.0, 0.4, 0.1])
    del made["log_probs_rollout"], made["log_probs_ref"]
    names = {"log_probs_new": "per_token_logps", "log_probs_old": "old_per_token_logps"}
    said = KNOWN | {"beta": 0.0, "num_items_in_batch": 26, "gradient_accumulation_steps": 1}
    made = {names.get(key, key): value for key, value in made.items()}
    return made | {"hyperparameters": said} | more


def named_dapo() -> list[dict[str, Any]]:
    """Records of TRL's that name their loss, have a reference, and no advantages."""
    rows = [
        record(
            seed, [6, 9, 4, 7], [1.0, 0.0, 0.4, 0.1], framework={"name": "trl", "loss_type": "dapo"}
        )
        for seed in (5, 6)
    ]
    return [row | {"hyperparameters": {"beta": 0.04, "epsilon": 0.2}} for row in rows]


@pytest.mark.more
@pytest.mark.parametrize("text", some([".5g", ".17g"], 1))
def test_every_row_that_gives_the_number_is_named_the_records_framework_first(
    tmp_path, text
) -> None:
    path = str(write(tmp_path / "trl", [of_trl(rewards=None, advantages=[1.2, -0.9, 0.1, -0.4])]))
    values = {row.variant: row.loss for row in compare(path, "all").variants}
    wanted = values["trl/dapo"]
    found = match(path, loss=f"{wanted:{text}}")
    first = [one for one in found.matches if one.entry == 0]
    named = [name for one in first for name in one.variants]
    assert first[0].variants[0] == "trl/dapo"  # its usual loss, of those that are equal
    assert {name for name, value in values.items() if value == wanted} <= {*named}
    shown = run("match", path, f"--loss={wanted:{text}}").stdout
    entry = " ".join(shown.partition("off by ")[2].partition("\n\n")[0].split())
    assert all(f" {name}" in entry for name in named)
    lines = {line.strip().partition(",")[0] for line in shown.splitlines()}
    heads = [one.variants[0] for one in first if one.variants]
    assert len(heads) == 1 or {*heads} <= lines  # a line for each convention
    assert "|adv:" not in shown
    assert "|adv:" in run("match", path, f"--loss={wanted:{text}}", "--full").stdout


@pytest.mark.more
def test_a_beta_is_solved_for_as_exactly_as_sums_are_rounded(tmp_path) -> None:
    """A loss of 17 digits is off by more than half of its last digit, in whatever order it is."""
    draws = [record(seed, [3, 5, 4, 2], [1.0, 0.0, 0.5, 0.0]) for seed in range(6)]
    rows = [row | {"step": step} for step, row in enumerate(draws)]
    for row in rows:
        loss = evaluate(row, "dapo", stages={"kl": "k3"}, beta=0.01).loss
        row["loss"] = loss * (1.0 + 3e-16 * (-1) ** row["step"])
    path = write(tmp_path / "run.jsonl", rows)
    found = match(
        str(path),
        logged="loss=loss",
        stages=NARROW | {"kl": "k3"},
        epsilon_low=0.2,
        epsilon_high=0.28,
    )
    assert found.matches
    assert found.matches[0].signature.count("beta=0.01")
    assert all(abs(one.difference) <= found.tolerance for one in found.matches)


@pytest.mark.more
def test_a_clip_above_with_a_kl_is_found_from_log_probs_in_float32(tmp_path) -> None:
    """In one step, and in all: a loss that is off in any step is none of it."""
    settings = {"std_eps": 1e-4, "epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.02}
    stages = {"advantage": "group-std", "kl": "k3"}
    rows = telling()
    for step, row in enumerate(rows):
        row |= {"step": step, "loss": evaluate(row, "dapo", stages=stages, **settings).loss}
        for name in (name for name in row if name.startswith("log_probs")):
            row[name] = [np.float32(one).tolist() for one in row[name]]
    for part in (rows[-1:], rows):
        found = match(part, logged="loss=loss")
        assert found.questions == (len(part), len(part))
        assert found.reproduced
        assert abs(found.matches[0].difference) > found.target * 1e-12
        signature = found.matches[0].signature
        assert "low=0.2,high=0.28" in signature
        assert "beta=0.02" in signature
        assert "eps=0.0001" in signature
    quiet = min(rows, key=lambda row: abs(row["loss"]))
    quiet["loss"] *= 1.01
    assert not match(rows, logged="loss=loss").matches


# ---- what the records say may not be what was computed -------------------------------------------


def test_a_length_that_nobody_gives_is_named_before_accumulation(path) -> None:
    """Of a row with a constant length, whose own no run keeps; a plain sum may have been either."""
    row, asked = "ms-swift/dr_grpo", {"epsilon": 0.2, "beta": 0.04}
    loss = evaluate(path, row, max_completion_length=16, **asked).loss
    first = match(path, loss=loss, variant=row, **asked).matches[0]
    assert f"-v {row} -p max_completion_length=16 --level" in first.command
    assert (first.factor, first.value) == (1.0, loss)
    assert any("× 32 (accumulated" in name for name in first.also), first.also
    given = asked | {"max_completion_length": 512}
    first = match(path, loss=loss, variant=row, **given).matches[0]
    assert (first.factor, first.factor_meaning) == (32.0, "× 32 (accumulated micro-batches)")
    loss = evaluate(path, "dr", epsilon=0.2).loss / 32
    words = ("match", path, f"--loss={loss!r}", "-v", "dr", "--epsilon", "0.2", *FLAGS[:2])
    shown = " ".join(run(*words).stdout.split())
    assert "÷ 32 (a constant length or accumulated micro-batches)" in shown
    advice = "32 is a constant length or the number of accumulation steps: look at"
    assert advice in shown
    words = ("--kl", "none", "--ratio", "token", "--surrogate", "clip", "--aggregate", "token-sum")
    shown = run("match", path, "--loss", "0.003", *words, "--epsilon", "0.2").stdout
    assert shown.startswith("no match beyond chance")
    assert "a constant length or the number" not in " ".join(shown.split())


@pytest.mark.more
def test_of_few_digits_the_nearest_comes_first_and_all_are_counted(tmp_path) -> None:
    """Also with a β that costs more than the cheapest in reach."""
    made = telling(hyperparameters={"epsilon": 0.2})
    path = write(tmp_path / "in", made)
    loss = evaluate(path, "grpo", beta=0.02).loss
    words = (path, f"--loss={loss:.2g}", "-v", "grpo", "--kl", "k3", *FLAGS[4:])
    found = json.loads(run("match", *words, "--json").stdout)
    assert any(f"{path} -v grpo --beta 0.02" in one["command"] for one in found["matches"][:5])
    first = {one["entry"]: one for one in reversed(found["matches"])}
    order = [(first[at]["bits"] // 2, abs(first[at]["difference"])) for at in sorted(first)]
    if not found["reproduced"]:
        assert order == sorted(order)
    assert found["fitting"] >= found["match_count"]
    screen = run("match", *words).stdout
    assert f"{found['fitting']:,} of {found['tried']:,} conventions give" in screen


K3 = "k3 (verl's low_var_kl)"


def kl_records() -> list[dict[str, Any]]:
    """Two records of three responses each, of several lengths, far from their reference."""
    random = np.random.default_rng(3)
    rows = []
    for low in (2, 8):
        old = [random.uniform(-3, -0.1, length) for length in random.integers(low, 2 * low, 3)]
        new = [np.minimum(row + random.normal(0, 0.1, len(row)), -1e-3) for row in old]
        ref = [np.minimum(row + random.normal(0, 0.4, len(row)), -1e-3) for row in old]
        columns = {"log_probs_new": new, "log_probs_old": old, "log_probs_ref": ref}
        made = {name: [row.tolist() for row in each] for name, each in columns.items()}
        settings = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04}
        rows.append(made | {"rewards": [1.0, 0.0, 0.3], "hyperparameters": settings})
    return rows


def k3_of(row: dict[str, Any], *, weighted: bool = False) -> list[list[float]]:
    """k3 of each token, by response."""
    new, old, ref = ([np.array(x) for x in row[f"log_probs_{of}"]] for of in ("new", "old", "ref"))
    weights = [
        np.exp(a - b) if weighted else np.ones(len(a)) for a, b in zip(new, old, strict=True)
    ]
    return [
        (w * (np.exp(r - n) - (r - n) - 1)).tolist()
        for n, r, w in zip(new, ref, weights, strict=True)
    ]


MEANS = [*product(["tokens", "records", "responses"], [False, True])]


@pytest.mark.more
@pytest.mark.parametrize(("over", "weighted"), some(MEANS, 2))
def test_a_logged_kl_may_be_another_mean_than_the_objectives(over: str, weighted: bool) -> None:
    """TRL logs the mean over micro-batches of token means."""
    rows = kl_records()
    each = [k3_of(row, weighted=weighted) for row in rows]
    flat = [[x for some in record for x in some] for record in each]
    value = {
        "tokens": np.mean([x for record in flat for x in record]),
        "records": np.mean([np.mean(record) for record in flat]),
        "responses": np.mean([np.mean(some) for record in each for some in record]),
    }[over]
    loss = evaluate(rows, "grpo").loss
    found = match(rows, loss=loss, kl=float(value), variant="grpo", stages=PENALISED)
    assert found.reproduced
    assert found.matches[0].name.startswith("grpo")
    words = f"the mean over {over} of {K3}" + (", weighted by the ratio" if weighted else "")
    if over == "responses" and not weighted:  # the objective's own
        assert found.others == ()
        return
    (one,) = found.others
    assert (one.logged_is, one.agrees) == (words, False)
    assert one.value_is == f"the mean over responses of {K3}"
    assert f"is {words}" in found.headline


@pytest.mark.more
def test_a_kl_of_several_steps_is_one_mean_in_all(tmp_path: Path) -> None:
    rows = []
    for step, row in enumerate(kl_records()):
        tokens = [x for some in k3_of(row) for x in some]
        numbers = {"loss": evaluate(row, "grpo").loss, "kl": float(np.mean(tokens))}
        rows.append(row | {"step": step, "metrics": numbers})
    words = ("--logged", "loss=metrics.loss", "--logged", "kl=metrics.kl", *FLAGS[4:])
    words += ("-v", "grpo", "--kl", "k3", "--ratio", "token", "--advantage", "group-std")
    found = answer("match", write(tmp_path / "a", rows), *words)
    assert found["others"][0]["logged_is"] == f"the mean over tokens of {K3}"
    rows[0]["metrics"]["kl"] *= 1.1
    other = run("match", write(tmp_path / "b", rows), *words).stdout
    assert "none of its usual means" in " ".join(other.split())
