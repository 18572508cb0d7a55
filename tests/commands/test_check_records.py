"""Each rule on records at its bounds: just below nothing is said, just above it is, and where.

The numbers expected are counted by hand, or are those of the docstring's definition.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from checked import checked, rows_of
from files import each

from grpo_cli.batch import Segments
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Rule
from grpo_cli.commands.check.rules import rules_of, table
from grpo_cli.commands.check.rules.advantages import Scores, _follows
from grpo_cli.commands.check.rules.padding import ENDS, PADS, edges, equal_runs, runs
from grpo_cli.records import Raw

Row = dict[str, Any]
Told = tuple[str, int | None, int | None, dict[str, Any]]


def findings(rows: list[Row], code: str) -> list[Row]:
    made = (Raw(row, "dump", at + 1, "", 100) for at, row in enumerate(rows))
    answer = checked([[*made]])
    return [one for one in rows_of(answer.findings) if one["code"] == code]


def told(row: Row, code: str) -> list[Told]:
    """What is said of a record; where the others may have its keys, it stands between two."""
    quiet = {key: FILL[key] for key in row if key in FILL}
    rows = [quiet, row, quiet] if len(quiet) == len(row) else [row]
    found = [one for one in findings(rows, code) if one["record"] == len(rows) // 2]
    return [(one["severity"], one["response"], one["token"], one["evidence"]) for one in found]


FILL: Row = {
    "log_probs_new": [[-0.5, -0.9], [-0.7, -0.3]],
    "rewards": [1.0, 0.0],
    "entropies": [[0.5, 0.5], [0.5, 0.5]],
}


def row(log_probs: list[list[float]], **more: Any) -> Row:
    return {"log_probs_new": log_probs, "rewards": [1.0, *[0.0] * (len(log_probs) - 1)], **more}


def of_lengths(*lengths: int) -> list[list[float]]:
    draw = random.Random(sum(lengths))
    return [[-draw.expovariate(1.0) - 0.01 for _ in range(length)] for length in lengths]


# ---- values --------------------------------------------------------------------------------------

NEW = "log_probs_new"
ABOVE = [
    ([[0.25, 0.5], [0.0, 1.0]], "all are in [0, 1]", 3, 0, 0, 0.0, 1.0),
    ([[0.0, 0.5], [2.0, 1.0]], "−log p", 3, 0, 1, 0.0, 2.0),
    ([[-1.0, 0.0], [-2.0, 0.5]], "log-probs never are", 1, 1, 1, -2.0, 0.5),
    ([[-1.0, 1.0], [1.0, -0.5]], "filled with 1", 2, 0, 1, -1.0, 1.0),
    ([[-1.0, 1.0], [1.5, -0.5]], "log-probs never are", 2, 0, 1, -1.0, 1.5),
    ([[-1.0, math.inf], [2.0, -0.5]], "log-probs never are", 1, 1, 0, -1.0, 2.0),
    ([[-math.inf, math.nan], [0.25, 1.0]], "all are in [0, 1]", 2, 1, 0, 0.25, 1.0),
]


@each(("rows", "words", "above", "response", "token", "low", "high"), ABOVE)
def test_log_probs_above_0(rows, words, above, response, token, low, high):
    evidence = {"column": NEW, "above_0": above, "of": 4, "min": low, "max": high}
    assert told(row(rows), "probabilities") == [("error", response, token, evidence)]
    (found,) = findings([row(rows)], "probabilities")
    assert words in found["message"]
    assert f"{above} of 4 values above 0" in found["message"]


@each("value", [0.0, math.inf, -math.inf, math.nan])
def test_log_probs_that_are_0_or_no_numbers_are_none_above(value):
    assert told(row([[value, -1.0], [value, -2.0]]), "probabilities") == []
    assert told(row([[value]]), "probabilities") == []


@each(
    ("code", "bad", "fault"),
    [
        ("probabilities", {"log_probs_new": [[-1.0, math.nan]]}, {"log_probs_new": [[0.5, 0.25]]}),
        ("negative-entropy", {"entropies": [[0.5, math.nan]]}, {"entropies": [[0.5, -1.0]]}),
        ("advantages", {"advantages": [math.nan] * 20}, {"advantages": [-1.0, 1.0] * 10}),
        ("advantages", {"rewards": [math.nan] * 20}, {"advantages": [-1.0, 1.0] * 10}),
    ],
)
def test_what_is_no_number_in_one_record_hides_nothing_of_another(code, bad, fault):
    count = 20 if code == "advantages" else 1
    plain = row([[-0.5, -0.25 - at] for at in range(count)], rewards=[1.0, 0.0] * (count // 2))
    plain["rewards"] = [1.0, 0.0] * (count // 2) or [1.0]
    if code == "advantages":
        plain |= {"advantages": [1.0, -1.0] * 10, "group_ids": [at // 2 for at in range(20)]}
    elif code == "negative-entropy":
        plain["entropies"] = [[0.5, 0.5]]
    for rows in ([plain | bad, plain | fault], [plain | fault, plain | bad]):
        found = findings(rows, code)
        assert [one["record"] for one in found] == [rows.index(plain | fault)]


def test_what_is_not_finite():
    rows = [[-1.0, -2.0], [math.nan, -math.inf], [-1.0, math.nan]]
    evidence = {"column": NEW, "tokens": 3, "of": 6}
    assert told(row(rows), "not-finite") == [("error", 1, 0, evidence)]


@each(
    ("entropies", "wanted", "words"),
    [
        ([[0.0, -0.99e-4], [0.5, 0.0]], None, ""),
        ([[0.0, -1e-4], [0.5, 0.0]], None, ""),
        ([[0.0, 0.5], [-1.01e-4, 0.0]], (1, 0, 1, -1.01e-4), "a filler"),
        ([[0.0, -1.0], [-1.0, -0.5e-4]], (0, 1, 2, -1.0), "all of them -1: a filler"),
        ([[0.0, -1.0], [-2.0, 0.5]], (0, 1, 2, -2.0), "at 2 of 4 tokens; an entropy"),
    ],
)
def test_negative_entropies(entropies, wanted, words):
    given = row([[-0.5, -0.9], [-0.7, -0.3]], entropies=entropies)
    found = told(given, "negative-entropy")
    if wanted is None:
        assert found == []
        return
    response, token, count, least = wanted
    evidence = {"tokens": count, "of": 4, "min": least}
    assert found == [("error", response, token, evidence)]
    assert words in findings([given], "negative-entropy")[0]["message"]


# ---- groups --------------------------------------------------------------------------------------


def rewarded(rewards: list[Any], **more: Any) -> Row:
    return row(of_lengths(*[2] * len(rewards)), **more) | {"rewards": rewards}


SPREADS = [
    ([0.5, 0.5], "dead-group", (0, {"size": 2, "value": 0.5})),
    ([0.5, 0.5, 0.5 + 1e-12], "dead-group", None),
    ([0.5, 0.5 + 0.99e-5], "near-dead-group", 0.99e-5),
    ([0.5, 0.5 + 1.01e-5], "near-dead-group", None),
    ([0.0, 1e-5], "near-dead-group", 1e-5),
    ([0.5, 0.5], "near-dead-group", None),
    ([-3.0, -3.0 + 2.99e-5], "near-dead-group", 2.99e-5),
    ([-3.0, -3.0 + 3.01e-5], "near-dead-group", None),
    ([3.0, 3.0 + 2.99e-5], "near-dead-group", 2.99e-5),
]


@each(("rewards", "code", "wanted"), SPREADS)
def test_groups_that_are_dead_and_nearly(rewards, code, wanted):
    """At most 1e-5, relative to rewards above 1."""
    found = told(rewarded(rewards), code)
    if wanted is None:
        assert found == []
    elif code == "dead-group":
        assert found == [("info", wanted[0], None, wanted[1])]
    else:
        ((severity, response, token, evidence),) = found
        assert (severity, response, token) == ("warning", 0, None)
        spread, std = max(rewards) - min(rewards), float(np.std(rewards, ddof=1))
        sizes = {f"eps_{eps:g}": spread / (std + eps) for eps in (1e-4, 1e-6, 1e-8)}
        assert evidence.pop("advantages") == pytest.approx(sizes)
        assert evidence == pytest.approx({"size": 2, "spread": spread, "std": std})


def test_which_group_is_dead_and_how_many_are_in_it():
    given = rewarded([1.0, 0.0, 0.0, 0.0, 0.0], group_ids=[7, 8, 8, 8, 7])
    assert told(given, "dead-group") == [("info", 1, None, {"size": 3, "value": 0.0})]
    (found,) = findings([given], "dead-group")
    assert "all 3 rewards are 0: no policy gradient" in found["message"]
    (found,) = findings([rewarded([0.5, 0.5])], "dead-group")
    assert "both rewards are 0.5" in found["message"]


@each(("advantage", "is_dead"), [(0.0, True), (0.25, False), (-0.25, False)])
def test_groups_whose_given_advantages_teach_are_not_dead(advantage, is_dead):
    given = rewarded([1.0, 1.0], advantages=[0.0, advantage])
    assert bool(told(given, "dead-group")) == is_dead


@each(("roundings", "noisy"), [(7.9, True), (8.1, False), (0.0, False)])
@each("sign", [1.0, -1.0])
def test_rewards_that_differ_by_roundings(roundings, noisy, sign):
    """A rounding of float32 is 2⁻²³, relative."""
    high = sign * 0.75
    low = high * (1 - roundings * 2.0**-23)
    found = told(rewarded([0.25, low, high, 0.5], group_ids=[0, 1, 1, 0]), "reward-noise")
    assert len(found) == noisy
    if noisy:
        assert found[0][:3] == ("warning", 1, None)
        assert found[0][3] == {"pairs": 1, "gap": abs(high - low), "of": 2}
    apart = rewarded([0.25, low, high, 0.5], group_ids=[0, 1, 2, 0])
    assert told(apart, "reward-noise") == []


def test_groups_of_one_and_of_different_sizes():
    given = rewarded([1.0, 0.0, 1.0, 0.0, 0.5, 1.0], group_ids=[1, 1, 2, 2, 2, 3])
    assert told(given, "singleton-group") == [("warning", 5, None, {"size": 1})]
    sizes = {"sizes": {"2": 1, "3": 1}}
    assert told(given, "uneven-groups") == [("info", None, None, sizes)]
    assert told(given | {"advantages": [1.0] * 6}, "singleton-group") == []


def advantaged(wrong: int, pairs: int) -> Row:
    """Groups of two, the better of which has the lesser advantage in so many."""
    rewards, advantages = [], []
    for at in range(pairs):
        sign = -1.0 if at < wrong else 1.0
        rewards += [1.0, 0.0]
        advantages += [sign, -sign]
    groups = [at // 2 for at in range(2 * pairs)]
    return rewarded(rewards, group_ids=groups, advantages=advantages)


@each(
    ("wrong", "pairs", "words"),
    [
        (9, 9, ""),  # ten at least
        (10, 10, "other sign"),
        (10, 11, "other sign"),
        (9, 10, "do not follow the rewards"),  # nine of ten are no sign
        (2, 13, "do not follow the rewards"),  # 15.4 %
        (3, 20, ""),  # 15 %
    ],
)
def test_pairs_the_wrong_way_round(wrong, pairs, words):
    found = told(advantaged(wrong, pairs), "advantages")
    evidence = {"discordant": wrong / pairs, "pairs": pairs}
    assert found == ([("error", None, None, evidence)] if words else [])
    if words:
        (one,) = findings([advantaged(wrong, pairs)], "advantages")
        assert words in one["message"]
        assert f"of {pairs} pairs in one group {wrong / pairs:.0%}" in one["message"]


def centred(rewards: np.ndarray, groups: np.ndarray) -> list[float]:
    means = {group: rewards[groups == group].mean() for group in groups.tolist()}
    return [
        float(reward - means[group]) for reward, group in zip(rewards, groups.tolist(), strict=True)
    ]


STRIDES = [
    (24, lambda at: at % 6, lambda at: at // 4, "every 6th row (sample-major)"),
    (24, lambda at: at % 12, lambda at: at // 2, "every 12th row (sample-major)"),
    (20, lambda at: at // 5, lambda at: at // 4, "strides of 5 rows"),
    (24, lambda at: at // 4, lambda at: at // 4, ""),
    (24, lambda at: at // 24, lambda at: at // 4, ""),
]


@each(("count", "theirs", "given", "words"), STRIDES)
def test_advantages_of_groups_by_a_stride(count, theirs, given, words):
    rewards = np.random.default_rng(count).normal(0.0, 1.0, count)
    at = np.arange(count)
    advantages = centred(rewards, theirs(at))
    made = rewarded(rewards.tolist(), group_ids=given(at).tolist(), advantages=advantages)
    found = [one for one in findings([made], "advantages") if "stride" in one["evidence"]]
    assert [one["evidence"]["stride"].startswith(words) for one in found] == [True] * bool(words)


@each(
    ("offset", "difference", "told_mean"),
    [(0.0, 0.0, None), (0.5, 0.0, 0.5), (0.021, 0.0, 0.021), (0.019, 0.0, None), (0.5, 0.01, None)],
)
def test_advantages_with_a_common_offset(offset, difference, told_mean):
    """Of a deviation of 1: more than 0.02 of it, and the same in all groups within a thousandth."""
    base = np.tile([1.0, -1.0], 12)
    groups = np.repeat(np.arange(6), 4)
    advantages = base + offset + difference * (groups == 3)
    rewards = np.where(base > 0, 1.0, 0.25)
    made = rewarded(rewards.tolist(), group_ids=groups.tolist(), advantages=advantages.tolist())
    found = told(made, "advantages")
    if told_mean is None:
        assert found == []
    else:
        ((severity, _, _, evidence),) = found
        assert severity == "warning"
        assert evidence == pytest.approx({"mean": told_mean})


@each(
    ("rewards", "told_mean"),
    [
        ([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0] * 4, 1.0),  # not centred, the greatest mean
        ([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -0.9] * 4, None),  # within a quarter
        ([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -0.4] * 4, 0.3),
    ],
)
def test_advantages_that_are_the_rewards(rewards, told_mean):
    """Groups of two, of which one's mean is more than a quarter of the deviation."""
    groups = [at // 2 for at in range(32)]
    made = rewarded(rewards, group_ids=groups, advantages=rewards)
    found = [one[3] for one in told(made, "advantages")]
    assert found == ([] if told_mean is None else [{"mean": pytest.approx(told_mean)}])


@each(
    ("rows", "wanted"),
    [
        ([[1.0, 2.6], [0.0, -1.0], [0.5, 2.0]], (1, [1.0, 2.6])),
        ([[1.0, 2.4], [0.0, -1.0], [0.5, 2.0]], None),
        ([[2.6, 1.0], [2.5, 0.0], [2.4, 0.5]], None),  # it hardly varies
        ([[10.1, 1.0], [10.0, 0.0], [9.9, 0.5]], (0, [10.1, 1.0])),
        ([[10.1, 0.0], [10.0, 0.0], [9.9, 0.0]], None),  # beside nothing
        ([[30.0, 1.0, 3.0], [0.0, 0.0, 0.0], [1.0, 0.5, -2.0]], (0, [30.0, 1.0, 3.0])),
    ],
)
def test_reward_functions_on_other_scales(rows, wanted):
    """2.5 times the next, and twice its spread, or ten times."""
    alike = rewarded([[0.0] * len(one) for one in rows])
    found = findings([alike, rewarded(rows), alike], "reward-scale")
    assert [one["record"] for one in found] == [1] * (wanted is not None)
    if wanted is not None:
        evidence = found[0]["evidence"]
        assert (evidence["function"], evidence["largest"]) == wanted
        assert evidence["spreads"] == pytest.approx(np.std(rows, axis=0).tolist())


# ---- lengths and loops ---------------------------------------------------------------------------


@each(
    ("lengths", "cap", "wanted"),
    [
        ([5, 5, 5, 2], None, (3, 4, 5, False)),
        ([5, 5, 3, 2], None, None),
        ([5, 5, 5], None, None),
        ([5, *[2] * 9], 5, (1, 10, 5, True)),
        ([5, *[2] * 10], 5, None),  # less than a tenth
        ([5, *[2] * 9], 6, None),
        ([5, 5, 5], 5, (3, 3, 5, True)),
        ([1, 1, 1, 1], 1, None),
        ([2, 2, 2, 1], 9, (3, 4, 2, False)),
    ],
)
def test_lengths_that_are_a_cap(lengths, cap, wanted):
    given = row(of_lengths(*lengths))
    if cap is not None:
        given["hyperparameters"] = {"max_completion_length": cap}
    found = told(given, "length-cap")
    names = ("responses", "of", "length", "named")
    evidence = [] if wanted is None else [dict(zip(names, wanted, strict=True))]
    assert found == [("info", None, None, one) for one in evidence]


@each(
    ("period", "total", "is_loop"),
    [
        (1, 16, True),
        (1, 15, False),
        (2, 16, True),
        (2, 15, False),
        (3, 16, True),
        (4, 16, True),
        (5, 19, False),
        (5, 20, True),
        (8, 32, True),
        (8, 31, False),
        (9, 40, False),
    ],
)
@each("before", [0, 7])
def test_loops(period, total, is_loop, before):
    """16 tokens, four times, at the end; phrases of up to 8."""
    words = [*range(100, 100 + before), *(at % period for at in range(total))]
    ids = [[50, 51, 52], words, [60] * 3]
    given = row(of_lengths(*map(len, ids)), token_ids=ids)
    found = told(given, "repetition")
    evidence = {"responses": 1, "of": 3, "longest": total}
    assert found == ([("info", 1, None, evidence)] if is_loop else [])
    given["token_ids"] = [[50, 51, 52], [*words[:-1], 99], [60] * 3]  # it goes on
    assert told(given, "repetition") == []


# ---- ends and padding ----------------------------------------------------------------------------


END_IDS = [32000, 50256, 100257, 100265, 128001, 128008, 128009, 151645]
PAD_IDS = [32000, 50256, 100257, 100349, 128004, 151643]


@each("end", END_IDS)
def test_every_known_end_and_padding(end):
    """Two responses, each with its end of text and padding behind it that counts."""
    for pad in {*PAD_IDS} - {*END_IDS}:
        ids = [[5, 6, end, pad, pad], [7, end, pad], [8, 9, end]]
        plain = row(of_lengths(2, 2, 2), token_ids=[[1, 2], [3, 4], [5, 6]])
        given = row(of_lengths(5, 3, 3), token_ids=ids)
        (found,) = findings([plain, given, plain], "padding-id")
        wanted = {"responses": 2, "of": 3, "tokens": 3, "token_id": pad}
        assert (found["response"], found["evidence"]) == (0, wanted)
        for other in (end - 1, end + 1):
            if other not in END_IDS:
                ids = [[5, 6, other, pad, pad], [7, other, pad], [8, 9, other]]
                assert findings([row(of_lengths(5, 3, 3), token_ids=ids)], "padding-id") == []
    masks = [[1, 1, 0, 0], [1, 0, 0], [1, 1, 1]]
    ids = [[5, 6, end, 3], [7, end, 3], [8, 9, 4]]
    given = row(of_lengths(4, 3, 3), token_ids=ids, mask=masks)
    (found,) = findings([given], "end-of-text")
    assert (found["response"], found["token"]) == (0, 2)
    assert found["evidence"] == {"responses": 2, "of": 3, "token_id": end}
    given["mask"][1] = [1, 1, 0]
    assert findings([given], "end-of-text") == []  # one response alone


def test_which_ids_are_of_ends_and_padding():
    """From generation_config.json and tokenizer_config.json of Qwen 2 and 3 (im_end 151645,
    endoftext 151643), Llama 3 (end_of_text 128001, eom 128008, eot 128009, finetune_right_pad
    128004), GPT-4 and Phi (100257, 100265, dummy 100349), Phi-3 and Llama 2's pad (32000), GPT-2
    (50256)."""
    assert sorted(ENDS) == END_IDS
    assert sorted(PADS) == PAD_IDS
    for other in {pad + step for pad in PAD_IDS for step in (-1, 1)} - {*PAD_IDS}:
        ids = [[5, 6, 151645, other, other], [7, 151645, other]]
        assert findings([row(of_lengths(5, 3), token_ids=ids)], "padding-id") == []


@each(("run", "rows", "is_padding"), [(3, 2, True), (2, 2, False), (3, 1, False)])
def test_runs_of_an_id_that_nobody_knows(run, rows, is_padding):
    """Three in a row, in two responses, of an id that stands nowhere else."""
    ids = [[5 + at, 30 + at, *([9] * run if at < rows else [40, 41])] for at in range(4)]
    given = row(of_lengths(*map(len, ids)), token_ids=ids)
    wanted = {"responses": 2, "of": 4, "tokens": 2 * run, "token_id": 9}
    assert told(given, "padding-id") == ([("error", 0, None, wanted)] if is_padding else [])
    ids[3][0] = 9
    assert told(row(of_lengths(*map(len, ids)), token_ids=ids), "padding-id") == []


@each("side", ["right", "left"])
@each(
    ("runs", "value", "severity"),
    [
        ([4, 4, 5, 6], 0.0, "warning"),
        ([4, 4, 5, 8], 0.0, "error"),
        ([4, 4, 5, 7], 0.0, "warning"),
        ([4, 4, 5, 6], -3.25, "error"),
        ([3, 3, 3, 3], 0.0, None),
    ],
)
def test_runs_of_one_log_prob_at_an_edge(side, runs, value, severity):
    """Four tokens; sure words are excluded from eight on, or where they are not sure."""
    rows = of_lengths(31, 35, 40, 44)
    filled = [
        [*one, *[value] * run] if side == "right" else [*[value] * run, *one]
        for one, run in zip(rows, runs, strict=True)
    ]
    found = told(row(filled), "padding")
    if severity is None:
        assert found == []
        return
    evidence = {"responses": 4, "of": 4, "tokens": sum(runs), "longest": max(runs)}
    evidence |= {"value": value, "side": side}
    assert found == [(severity, 3, None, evidence)]


def run_of(row: list[float]) -> int:
    """How many tokens at its end are one number; a single one is no run unless it is 0."""
    count = next((at for at, one in enumerate(row[::-1]) if one != row[-1]), len(row))
    return count if count > 1 or row[-1] == 0.0 else 0


def chance(rows: list[list[float]], runs: list[int], right: bool) -> float:
    """X = −ln p − (r − 1)·ln q of each run, with p and q as Laplace has them of other tokens."""
    same = after = after_same = inside = 0
    for row, run in zip(rows, runs, strict=True):
        cut = run if run >= 4 else 0
        kept = range(len(row) - cut) if right else range(cut, len(row))
        hits = {at for at in kept if row[at] == 0.0 or (at and row[at] == row[at - 1])}
        inside, same = inside + len(kept), same + len(hits)
        follows = [at for at in kept if at - 1 in hits]
        after, after_same = after + len(follows), after_same + sum(at in hits for at in follows)
    p = (same + 1) / (inside + 2)
    q = max(p, (after_same + 1) / (after + 2))
    sizes = [-math.log(p) - (run - 1) * math.log(q) if run else 0.0 for run in runs]
    count, total = len(rows), sum(sizes)
    chernoff = count * math.log(total / count) + count - total if total > count else 0.0
    return math.log(2.0) + min(chernoff, math.log(count) - max(sizes))


def padding(rows: list[list[float]], side: str) -> Told | None:
    right = side == "right"
    runs = [run_of(one if right else one[::-1]) for one in rows]
    if max(runs) < 4 or chance(rows, runs, right) > math.log(1e-6):
        return None
    runs = [run if run >= 4 else 0 for run in runs]
    at = runs.index(max(runs))
    value = rows[at][-1 if right else 0]
    alike = len(rows) > 1 and len({*map(len, rows)}) == 1 and len({*runs}) > 1
    count = sum(run > 0 for run in runs)
    evidence = {"responses": count, "of": len(rows), "tokens": sum(runs), "longest": max(runs)}
    sure = value != 0.0 or alike or max(runs) >= 8
    return "error" if sure else "warning", at, None, evidence | {"value": value, "side": side}


def padded(draw: np.random.Generator) -> list[list[float]]:
    rows = []
    width, value = int(draw.integers(6, 30)), draw.choice([0.0, 0.0, -1.25])
    zeros, again = draw.choice([0.0, 0.05, 0.3]), draw.choice([0.0, 0.1, 0.5])
    for _ in range(draw.integers(1, 7)):
        row: list[float] = []
        run = int(draw.choice([0, 1, 2, 3, 4, 5, 6, 8, 9]))
        for _ in range(width - run if value else int(draw.integers(4, 40))):
            stays = row and draw.random() < again
            row.append(row[-1] if stays else -float(draw.exponential()) * (draw.random() >= zeros))
        rows.append([*row, *[float(value)] * run])
    return rows


def test_when_runs_are_no_chance():
    draws = [padded(np.random.default_rng([23, seed])) for seed in range(900)]
    for side in ("right", "left"):
        made = draws if side == "right" else [[row[::-1] for row in rows] for rows in draws]
        expected = [padding(rows, side) for rows in made]
        assert 100 < sum(one is not None for one in expected) < 800
        found: dict[int, Told] = {}
        for one in findings([row(rows) for rows in made], "padding"):
            if one["evidence"]["side"] == side:
                said = (one["severity"], one["response"], one["token"], one["evidence"])
                found[one["record"]] = said
        assert [found.get(at) for at in range(len(made))] == expected


# ---- masks and prompts ---------------------------------------------------------------------------


def test_holes_and_empty_masks():
    masks = [[1, 0, 1, 0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 0, 1]]
    given = row(of_lengths(6, 3, 3, 4), mask=masks)
    info, warning = sorted(told(given, "mask"))
    assert warning == ("warning", 1, None, {"empty": 1, "of": 4})
    assert info == ("info", 0, 1, {"responses": 2, "of": 4, "holes": 3})
    plain = row(of_lengths(2, 3), mask=[[1, 1], [1, 1, 1]])
    found = [one for one in findings([plain, given, plain], "mask") if one["severity"] != "info"]
    assert [(one["record"], one["response"]) for one in found] == [(1, 1)]
    given["mask"] = [[0] * 6, [0] * 3, [0] * 3, [0] * 4]
    assert told(given, "mask") == [("error", 0, None, {"empty": 4, "of": 4})]


@each(
    ("counted", "masked", "empty", "inverted"),
    [(12, 12, 5, True), (11, 12, 0, False), (12, 10, 0, False), (12, 12, 6, False)],
)
def test_inverted_masks(counted, masked, empty, inverted):
    """Twelve tokens that count, all 0.0, and twelve that do not, of which most are not."""
    values = [0.0] * counted + [0.0] * empty + of_lengths(masked - empty)[0]
    given = row([values, [0.0]], mask=[[1] * counted + [0] * masked, [0]])
    found = told(given, "inverted-mask")
    if inverted:
        (one,) = findings([given], "inverted-mask")
        assert f"{masked - empty} of {masked + 1} that do not count" in one["message"]
    evidence = {"counted": counted, "masked": masked + 1}
    assert found == ([("error", None, None, evidence)] if inverted else [])


def test_an_inverted_mask_is_no_padding_besides():
    rows = [[*[0.0] * 20, *one] for one in of_lengths(20, 21, 22, 23)]
    masks = [[*[1] * 20, *[0] * (len(one) - 20)] for one in rows]
    assert {"inverted-mask"} == {*codes([row(rows, mask=masks)])} - {"on-policy", "length-cap"}
    bare = row([[0.0] * 20] * 4)
    assert "padding" in codes([bare])


@each(
    ("prompts", "wanted"),
    [
        ([[5, 6], [7, 8]], (1, 2)),
        ([[5, 6], [7, 8, 9, 10]], None),  # longer than the response
        ([[5, 6], [7]], None),  # one token may be the same
        ([[9, 9], [7, 8, 9]], (1, 3)),
        ([5, 1], (0, 2)),
        ([7, 8], (1, 2)),
        ([[5, 6]], None),
    ],
)
def test_responses_that_begin_with_their_prompts(prompts, wanted):
    given = row(of_lengths(3, 3), token_ids=[[5, 1, 2], [7, 8, 9]], prompt_ids=prompts)
    found = told(given, "prompt-included")
    evidence = [] if wanted is None else [{"tokens": wanted[1], "key": "prompt_ids"}]
    assert found == [("error", wanted[0], 0, one) for one in evidence]


@each(
    ("off", "shared"),
    [(0.0, 3), (0.99, 3), (1.01, 0)],
)
def test_prompts_are_told_by_log_probs_that_are_near(off, shared):
    """Within 0.01 and twice 2 % of the greater, from which three samples are told."""
    prompt = [-9.0, -8.0, -7.0]
    near = [value - off * (0.01 + 0.04 * abs(value)) for value in prompt]
    rows = [[*prompt, -1.0, -3.0], [*near, -2.0], [*prompt, -0.1]]
    found = told(row(rows), "prompt-included")
    if not shared:
        assert found == []
        return
    chance = 2 * max(math.fsum(prompt), math.fsum(near))
    ((severity, response, token, evidence),) = found
    assert (severity, response, token) == ("error", 0, 0)
    assert evidence == pytest.approx({"tokens": shared, "responses": 3, "log_probability": chance})


@each("shared", [15, 16, 17, 31, 47, 48, 49, 120])
def test_how_much_of_responses_is_shared(shared):
    ids = [[*range(shared), 900 + at, *range(300, 300 + at)] for at in range(3)]
    ids += [[*range(shared), 950]]
    given = row(of_lengths(*map(len, ids)), token_ids=ids)
    ((_, _, _, evidence),) = told(given, "prompt-included")
    assert evidence["tokens"] == shared
    assert evidence["responses"] == 4


@each("count", [1, 2, 5])
def test_groups_that_are_torn_over_records(count):
    """Rows of one response each: a record beside the first that has its group."""
    rows = [row(of_lengths(3 + at), group_ids=["q"]) | {"step": 1} for at in range(count + 1)]
    other = [row(of_lengths(20), group_ids=["q"]) | {"step": 2}]
    (found,) = findings([*rows, *other], "torn-group")
    assert (found["severity"], found["record"]) == ("warning", 1)
    assert found["evidence"] == {"records": count, "key": "group_ids"}
    given = [one | {"advantages": [1.0]} for one in rows]
    (found,) = findings(given, "torn-group")
    assert found["severity"] == "info"
    assert findings([rows[0], *other], "torn-group") == []


ORDER = (
    "inverted-mask not-finite probabilities negative-entropy mask padding-id padding end-of-text "
    "retokenised prompt-included on-policy advantages extreme-ratio advantage-scale reward-scale "
    "dead-group near-dead-group reward-noise singleton-group uneven-groups log-base repetition "
    "length-cap, filler shifted last-token unrelated drift log-base "
    "temperature constant-log-ratio extreme-ratio outliers ratio-noise mean-weight rollout-mismatch"
)


def test_in_which_order_rules_are_asked():
    """Roots before what they explain: of records, then of two columns of which one speaks."""
    for scope, order in zip(("record", "pair"), ORDER.split(", "), strict=True):
        asked = [rule.code for rule in rules_of(scope)]  # a new one may be anywhere
        assert [code for code in asked if code in order.split()] == order.split()
    new = [[-1.0, 0.5, -2.0], [math.nan, -1.0, -2.0], [-1.0, -2.0, -3.0]]
    given = row(new, token_ids=[[1, 2, 3], [4, 5, 6], [7, 8, 9]], entropies=[[-1.0] * 3] * 3)
    given["mask"] = [[1, 1, 1], [1, 0, 1], [0, 0, 0]]
    said = codes([given | {"log_probs_old": of_lengths(3, 3, 3)}])
    assert said == sorted(said, key=ORDER.partition(",")[0].split().index)
    assert {"not-finite", "probabilities", "negative-entropy", "mask"} <= {*said}


# ---- which findings say nothing more -------------------------------------------------------------


def codes(rows: list[Row]) -> list[str]:
    made = (Raw(row, "dump", at + 1, "", 100) for at, row in enumerate(rows))
    return [one.code for one in checked([[*made]]).findings.rows]


EXPLAINING = {
    "inverted-mask", "not-finite", "probabilities", "padding-id", "padding", "retokenised",
    "prompt-included",
}  # fmt: skip


def test_which_rules_explain_what_columns_show():
    """Log-probs are not compared where one of these has spoken; loops and runs give way."""
    rules = table()
    assert {rule.code for rule in rules if rule.explains} == EXPLAINING
    assert {rule.code for rule in rules if rule.suppressible} == {"padding", "repetition"}


@each("prompt", [True, False])
@each("size", [3, 60])
def test_columns_are_not_compared_beside_a_prompt_that_counts(prompt, size):
    """However many tokens there are: some are compared with those of other records."""
    ids = [[5, 6, 7, *range(100 * at, 100 * at + size)] for at in (1, 2)]
    rows = of_lengths(size + 3, size + 3)
    far = [[x - 25.0 * (at < 2) for at, x in enumerate(one)] for one in rows]
    given = row(rows, token_ids=ids, log_probs_old=far)
    if prompt:
        given["prompt_ids"] = [5, 6, 7]
    said = {*codes([given])}
    assert bool(said & {rule.code for rule in rules_of("pair")}) is not prompt
    assert ("prompt-included" in said) is prompt


def test_a_prompt_that_counts_is_told_once():
    """By its ids; that all responses begin with it is not told besides."""
    rows = [[-9.0, -8.0, -7.0, -1.0 - at] for at in range(3)]
    ids = [[5, 6, 7, 20 + at] for at in range(3)]
    (found,) = findings([row(rows, token_ids=ids, prompt_ids=[5, 6, 7])], "prompt-included")
    assert found["evidence"] == {"tokens": 3, "key": "prompt_ids"}
    (found,) = findings([row(rows, token_ids=ids)], "prompt-included")
    assert found["evidence"]["responses"] == 3


@each("more", [{"tokens": [["a", "b"], ["c", "d"]]}, {}])
def test_prompts_are_compared_with_ids_alone(more):
    """Not with the numbers that strings are given."""
    given = row(of_lengths(2, 2), prompt_ids=[0, 1], **more)
    assert findings([given], "prompt-included") == []


def test_a_rule_is_not_asked_of_records_that_lack_what_it_needs(monkeypatch):
    asked = []

    def look(view: View) -> tuple[()]:
        asked.append(len(view.counts))
        return ()

    rule = Rule("x", ("info",), "", 1, look, about="y", needs=("mask",))
    monkeypatch.setattr("grpo_cli.commands.check.run.rules_of", lambda scope: (rule,))
    codes([row(of_lengths(2))])
    assert asked == []
    codes([row(of_lengths(2), mask=[[1, 0]])])
    assert asked == [1]


# ---- groups, once more ---------------------------------------------------------------------------


def test_reward_functions_that_may_be_weighed_are_not_held_against_advantages():
    given = advantaged(10, 10)
    given["rewards"] = [[one, 0.0] for one in given["rewards"]]
    assert told(given, "advantages") == []


@each("scale", [1.0, 1000.0])
@each(("reward", "advantage", "is_told"), [(1.1, 1.1, True), (0.9, 1.1, False), (1.1, 0.9, False)])
def test_what_counts_as_different(scale, reward, advantage, is_told):
    """A millionth, relative to what is greatest, above 1; of rewards and of advantages."""
    given = advantaged(10, 10)
    for key, step in (("rewards", reward), ("advantages", -advantage)):
        given[key] = [-scale, -scale + step * 1e-6 * scale] * 10
    given["rewards"] = given["rewards"][::-1]
    given["advantages"] = given["advantages"][::-1]
    assert any("pairs" in one[3] for one in told(given, "advantages")) is is_told


@each(("key", "is_told"), [("rewards", False), ("advantages", False), ("", True)])
def test_what_differs_by_just_a_millionth_is_equal(key, is_told):
    given = advantaged(10, 10)
    for name in ("rewards", "advantages"):
        step = 1e-6 if name == key else 2e-6
        given[name] = ([step, 0.0] if name == "rewards" else [0.0, step]) * 10
    assert any("pairs" in one[3] for one in told(given, "advantages")) is is_told


def test_pairs_are_counted_among_the_first_512_responses():
    given = rewarded([1.0, 0.0] * 300, advantages=[-1.0, 1.0] * 300, group_ids=[1] * 600)
    assert told(given, "advantages")[0][3] == {"discordant": 1.0, "pairs": 256 * 256}


def test_a_stride_is_told_by_one_group_that_teaches():
    rewards = [0.0] * 4 + [1.0, 2.0, 3.0, 4.0] + [0.0] * 4
    advantages = [0.0] * 4 + [-1.5, -0.5, 0.5, 1.5] + [0.0] * 4
    given = rewarded(rewards, advantages=advantages, group_ids=[1] * 6 + [2] * 6)
    assert told(given, "advantages")[0][3] == {"stride": "strides of 4 rows"}


@each(
    ("scale", "off", "is_same"),
    [(0.5, 0.9e-6, True), (0.5, 1.1e-6, False), (4.0, 3.9e-6, True), (4.0, 4.1e-6, False)],
)
def test_when_advantages_are_the_rewards(scale, off, is_same):
    """Within a millionth of their deviation, or of 1; then the groups' means may differ."""
    rewards = np.random.default_rng(3).normal(0.0, 1.0, 40)
    rewards *= scale / rewards.std()
    advantages = rewards.copy()
    advantages[-1] -= off
    groups = [at // 2 for at in range(40)]
    given = rewarded(rewards.tolist(), advantages=advantages.tolist(), group_ids=groups)
    found = told(given, "advantages")
    means = advantages.reshape(20, 2).mean(axis=1)
    wanted = [{"mean": pytest.approx(means[np.abs(means).argmax()])}] if is_same else []
    assert [one[3] for one in found] == wanted


@each(("apart", "is_told"), [(0.0009, True), (0.0011, False)])
@each("scale", [0.1, 10.0])
def test_means_of_groups_are_the_same_within_a_thousandth_of_the_deviation(apart, is_told, scale):
    base = np.tile([1.0, -1.0], 12) + 0.5
    groups = np.repeat(np.arange(6), 4)
    advantages = scale * (base + apart * (groups == 3))
    given = rewarded(
        np.where(base > 0, 1.0, 0.25).tolist(),
        advantages=advantages.tolist(),
        group_ids=groups.tolist(),
    )
    assert bool(told(given, "advantages")) is is_told


@each(("last", "told_mean"), [(-0.45, 0.275), (-0.55, None)])
def test_the_mean_of_rewards_that_are_advantages_beyond_a_quarter(last, told_mean):
    rewards = ([1.0, -1.0] * 3 + [1.0, last]) * 4
    given = rewarded(rewards, advantages=rewards, group_ids=[at // 2 for at in range(32)])
    found = [one[3]["mean"] for one in told(given, "advantages")]
    assert found == ([] if told_mean is None else [pytest.approx(told_mean)])


@each(("advantage", "is_told"), [(14.0, False), (14.01, True)])
def test_an_advantage_at_its_bound(advantage, is_told):
    given = rewarded([1.0, 0.0, 0.0, 0.0], advantages=[advantage, 0.0, 0.0, 0.0])
    assert bool(told(given, "advantage-scale")) is is_told


@each(("advantage", "is_told"), [(49.9, False), (50.1, True)])
def test_an_advantage_is_held_against_the_range_of_the_rewards(advantage, is_told):
    """Five times as much; the range is 10 wherever the rewards lie."""
    for low in (-30.0, 1.0, 30.0):
        given = rewarded([low, low + 10.0], advantages=[-1.0, advantage])
        found = told(given, "advantage-scale")
        evidence = {"advantage": advantage, "bound": 50.0}
        assert found == [("warning", 1, None, evidence)] * is_told


def test_where_a_group_of_the_odd_size_stands():
    """The first record that has one, not one with a single response before it."""
    rows = [
        row(of_lengths(3), group_ids=[0]),
        row(of_lengths(3, 4), group_ids=[0, 0]),
        row(of_lengths(5, 6, 7), group_ids=[0, 0, 0], entropies=[[0.5] * 5, [0.5] * 6, [0.5] * 7]),
        row(of_lengths(5, 6, 8), group_ids=[0, 0, 0], entropies=[[0.5] * 5, [0.5] * 6, [0.5] * 8]),
    ]
    (found,) = findings(rows, "uneven-groups")
    assert (found["record"], found["evidence"]) == (1, {"sizes": {"2": 1, "3": 2}})
    assert findings([*rows[:1], *rows[2:]], "uneven-groups") == []
    assert findings(rows[:2], "uneven-groups") == []


# ---- ends, padding and loops, once more ----------------------------------------------------------


def test_loops_do_not_go_on_from_the_response_before():
    ids = [[7] * 20, [7] * 15, [7] + [1, 2] * 9, [1, 2] * 7 + [1]]
    found = told(row(of_lengths(*map(len, ids)), token_ids=ids), "repetition")
    assert found == [("info", 0, None, {"responses": 2, "of": 4, "longest": 20})]


@each(("count", "is_loop"), [(16, True), (15, False)])
def test_a_loop_that_is_all_there_is(count, is_loop):
    given = row(of_lengths(count), token_ids=[[7] * count])
    words = "one phrase of 1 tokens repeated over 16"
    assert all(words in one["message"] for one in findings([given], "repetition"))
    found = told(given, "repetition")
    assert found == [("info", 0, None, {"responses": 1, "of": 1, "longest": count})] * is_loop


def test_padding_in_later_responses_of_a_later_record():
    """A response that is padding alone has no end of text before it."""
    end, pad = 151645, 151643
    ids = [[1, 2], [5, end, pad], [pad, pad], [], [6, end], [7, end, pad, pad]]
    plain = row(of_lengths(2, 2), token_ids=[[1, end], [3, end]])
    given = row(of_lengths(*map(len, ids)), token_ids=ids)
    (found,) = findings([plain, given], "padding-id")
    wanted = {"responses": 2, "of": 6, "tokens": 3, "token_id": pad}
    assert (found["record"], found["response"], found["evidence"]) == (1, 1, wanted)


@each("eos", [9, [8, 9], [9, "x", True, None]])
@each("key", ["token_ids", "tokens"])
def test_ends_and_padding_that_records_name(eos, key):
    ids: list[list[Any]] = [[1, 2, 3], [5, 9, 4], [1, 9, 4, 4]]
    if key == "tokens":
        ids = [list(map(str, one)) for one in ids]
    given = row(of_lengths(3, 3, 4), eos_token_id=eos, pad_token_id=4, **{key: ids})
    found = told(given, "padding-id")
    wanted = ("error", 1, None, {"responses": 2, "of": 3, "tokens": 3, "token_id": 4})
    assert found == [wanted] * (key == "token_ids")
    assert told(given | {"eos_token_id": 8}, "padding-id") == []
    assert told(given | {"pad_token_id": 5}, "padding-id") == []
    assert told(given | {"pad_token_id": 9}, "padding-id") == []


@each("end", [0, 1, 151645])
def test_the_end_of_text_that_a_mask_takes(end):
    """Where there is one behind what counts: of five responses two, the third and the last."""
    ids = [[5, 6], [5, end, 7], [5, 6, end, 7], [5, 6, 7], [8, end]]
    masks = [[1, 1], [1, 1, 0], [1, 1, 0, 0], [0, 0, 0], [1, 0]]
    plain = row(of_lengths(2, 2), token_ids=[[end, 6], [7, 8]], mask=[[1, 1], [1, 1]])
    given = row(of_lengths(*map(len, ids)), token_ids=ids, mask=masks)
    plain["eos_token_id"] = given["eos_token_id"] = end
    (found,) = findings([plain, given], "end-of-text")
    wanted = {"responses": 2, "of": 5, "token_id": end}
    assert (found["record"], found["response"], found["token"]) == (1, 2, 2)
    assert found["evidence"] == wanted
    assert " of 2 of 5 responses: " in found["message"]
    ids[2][3] = end  # the same again is padding
    assert findings([plain, given], "end-of-text") == []


def test_an_end_of_text_needs_a_mask():
    ids = [[5, 151645], [6, 151645]]
    assert findings([row(of_lengths(2, 2), token_ids=ids)], "end-of-text") == []
    assert findings([row(of_lengths(2, 2), mask=[[1, 0], [1, 0]])], "end-of-text") == []


@each(("counts", "runs", "severity"), [
    ([24, 24, 24, 24], [4, 5, 4, 6], "error"),
    ([24, 24, 24, 24], [5, 5, 5, 5], "warning"),
    ([24, 25, 26, 24], [4, 5, 4, 6], "warning"),
])  # fmt: skip
def test_responses_of_one_length_that_end_in_runs_of_several(counts, runs, severity):
    """As padded ones do."""
    rows = [
        [*one[: count - run], *[-0.0] * run]
        for one, count, run in zip(of_lengths(*counts), counts, runs, strict=True)
    ]
    (found,) = findings([row(rows)], "padding")
    assert found["severity"] == severity
    assert str(found["evidence"]["value"]) == "0.0"
    assert "one log-prob (0)" in found["message"]


@each(("words", "severity"), [([9] * 6, "error"), ([9, 8] * 3, "warning")])
@each("side", ["right", "left"])
def test_padding_beside_its_ids(words, severity, side):
    """One and the same token in several responses is padding; a run of several is text."""
    log_probs, ids = [], []
    for at, (run, word) in enumerate(zip((5, 6, 7, 6, 5, 4), words, strict=True)):
        edge, rest = [word] * run, [10 + 50 * at, 8, 9, *range(20 + 50 * at, 37 + 50 * at)]
        values, zeros = of_lengths(20 + at)[0][:20], [0.0] * run
        ids.append([*rest, *edge] if side == "right" else [*edge, *rest])
        log_probs.append([*values, *zeros] if side == "right" else [*zeros, *values])
    given = row(log_probs, token_ids=ids)
    plain = row(of_lengths(7, 9), token_ids=[[*range(7)], [*range(9)]])
    (found,) = [one for one in findings([plain, given, plain], "padding") if one["record"] == 1]
    assert (found["severity"], found["evidence"]["side"]) == (severity, side)
    assert found["evidence"]["tokens"] == 33
    for one in ids:
        one[-2 if side == "right" else 1] += 100
    assert findings([plain, given, plain], "padding") == []


@each("end", [True, False])
def test_edges_and_runs_of_responses(end):
    """Beside a loop over each response, empty ones and all."""
    for seed in range(60):
        draw = np.random.default_rng([31, seed])
        lengths = draw.integers(0, 5, draw.integers(1, 7))
        lengths[draw.integers(len(lengths))] += 1
        values = draw.integers(0, 2, lengths.sum())
        parts = np.split(values, np.cumsum(lengths)[:-1])
        rows = Segments(lengths)
        at = edges(rows, end=end)
        assert values[at[lengths > 0]].tolist() == [
            part[-1 if end else 0] for part in parts if len(part)
        ]
        assert len(values[at]) == len(lengths)
        ordered = [part[::-1].tolist() if end else part.tolist() for part in parts]
        alike = [next((n for n, x in enumerate(one) if x != one[0]), len(one)) for one in ordered]
        assert equal_runs(rows, values, end=end).tolist() == alike
        ones = [next((n for n, x in enumerate(one) if not x), len(one)) for one in ordered]
        assert runs(rows, values == 1, end=end).tolist() == ones


@each(("lengths", "told_count"), [([5, 5, 5, 2], 1), ([5, 5, 2, 2], 0)])
def test_a_cap_without_settings(lengths, told_count):
    assert len(told(row(of_lengths(*lengths)), "length-cap")) == told_count


def test_responses_that_are_said_to_be_cut():
    found = told(row(of_lengths(3, 4, 5), truncated=[1, 0, 1]), "length-cap")
    assert found == [("info", None, None, {"responses": 2, "of": 3, "named": True})]


@each("record", [0, 1, 2])
@each(("rows", "wanted"), [((1, 2), 1), ((2,), 2), ((0, 1, 2), 0)])
def test_which_response_begins_with_its_prompt(record, rows, wanted):
    """In records of other lengths than those before."""
    prompts = [[70 + at, 80, 90][: 2 + at % 2] for at in range(3)]
    made = []
    for number, lengths in enumerate(((4, 2, 6), (2, 7, 3, 1), (5, 5, 5))):
        ids = [[*range(100 * at, 100 * at + length)] for at, length in enumerate(lengths, 1)]
        if number == record:
            for at in rows:
                ids[at] = [*prompts[at], *ids[at]]
        made.append(row(of_lengths(*map(len, ids)), token_ids=ids, prompt_ids=prompts))
    (found,) = findings(made, "prompt-included")
    assert (found["record"], found["response"], found["token"]) == (record, wanted, 0)
    assert found["evidence"] == {"tokens": len(prompts[wanted]), "key": "prompt_ids"}


def test_a_group_that_is_all_the_same_is_no_prompt():
    """Nor one of a single response, nor of two that differ from the first token on."""
    for ids in ([[1, 2, 3], [1, 2, 3]], [[1, 2, 3]], [[1, 2, 3], [2, 3, 4]]):
        given = row([[-9.0] * 3] * len(ids), token_ids=ids)
        assert findings([given], "prompt-included") == []
    given = row([[-25.0] * 3] * 2, token_ids=[[1, 2, 3], [1, 2, 4]])
    assert told(given, "prompt-included")[0][3]["tokens"] == 2
    given = row([[-25.0] * 3, [-25.0] * 2], token_ids=[[1, 2, 3], [1, 2]])
    assert told(given, "prompt-included")[0][3]["tokens"] == 2


@each("bad", [[math.inf, -math.inf], [math.nan, -9.0]])
def test_a_beginning_of_no_numbers_is_no_prompt(bad):
    rows = [[*bad, -9.0, -1.0 - at] for at in range(3)]
    ids = [[1, 2, 3, 4 + at] for at in range(3)]
    for given in (row(rows, token_ids=ids), row(rows)):
        assert findings([given], "prompt-included") == []
        assert len(findings([given], "not-finite")) == 1


def test_one_word_that_fills_a_response_in_a_mask():
    """A response whose only token the mask takes is empty; one that was written empty is not."""
    given = row([[-1.0], [-2.0, -1.0], []], mask=[[0], [1, 1], []])
    assert told(given, "mask") == [("warning", 0, None, {"empty": 1, "of": 3})]


@each(("widths", "at"), [(([5, 6], [7]), (0, 1)), (([5], [6, 7, 8]), (1, 2))])
def test_which_sampled_ids_differ_in_a_later_record(widths, at):
    ids = [*map(list, widths)]
    sampled = [list(one) for one in ids]
    sampled[at[0]][at[1]] = 99
    plain = row(of_lengths(3, 2), token_ids=[[1, 2, 3], [4, 5]], sampled_ids=[[1, 2, 3], [4, 5]])
    given = row(of_lengths(*map(len, ids)), token_ids=ids, sampled_ids=sampled)
    found = findings([plain, given, plain], "retokenised")
    assert [(one["record"], one["response"], one["token"]) for one in found] == [(1, *at)]


def test_sampled_ids_of_some_records_only():
    ids = [[1, 2], [3, 4]]
    plain = row(of_lengths(2, 2), token_ids=ids)
    given = plain | {"sampled_ids": [[1, 2], [3, 5]]}
    other = plain | {"sampled_ids": None}
    assert [one["record"] for one in findings([other, given], "retokenised")] == [1]
    assert findings([plain | {"sampled_ids": [[1, 9]]}], "retokenised") == []  # of one response
    assert findings([row(of_lengths(2, 2), sampled_ids=ids)], "retokenised") == []


@each(
    ("rewards", "low", "high"),
    [
        ([0.75, 0.75000001, 0.25, 0.25000001], 0.25, 0.25000001),
        ([1.0, -0.5, -0.50000001], -0.50000001, -0.5),
    ],
)
def test_which_rewards_differ_by_noise(rewards, low, high):
    """The least of a group's pairs."""
    (found,) = findings([rewarded(rewards)], "reward-noise")
    assert found["message"] == f"rewards {low!r} and {high!r} differ by float32 noise"
    assert found["evidence"]["gap"] == high - low


@each(
    ("rows", "is_told"),
    [
        ([[2.5, 1.0, 0.5], [0.0, 0.0, 0.0]], True),  # 2.5 times, and its spread too
        ([[5.0, 1.0, 0.5], [1.0, -1.0, -0.5]], True),  # just twice the spread
        ([[4.9, 1.0, 0.5], [1.0, -1.0, -0.5]], False),
        ([[5.0, 0.5, 1.0], [1.0, -0.5, -1.0]], True),
        ([[4.9, 0.5, 1.0], [1.0, -0.5, -1.0]], False),
        ([[10.0, 1.0, 0.0], [10.0, -1.0, 0.0]], True),  # just ten times
        ([[9.9, 1.0, 0.0], [9.9, -1.0, 0.0]], False),
    ],
)
def test_the_bounds_of_scales_of_reward_functions(rows, is_told):
    assert bool(findings([rewarded(rows)], "reward-scale")) is is_told


@each(("largest", "is_told"), [(1000.0, False), (1000.1, True), (-1000.1, True), (-999.0, False)])
def test_the_bound_of_advantages_without_rewards(largest, is_told):
    row = {"log_probs_new": [[-1.0], [-2.0], [-0.5]], "advantages": [0.5, largest, -0.5]}
    found = told(row, "advantage-scale")
    assert bool(found) is is_told


@each("functions", [1, 2])
def test_scales_of_strided_advantages_are_not_told_besides(functions):
    """Of several reward functions strides are not asked, and the scale is told."""
    rewards = np.random.default_rng(20).normal(0.0, 1.0, 20)
    advantages = [1e3 * one for one in centred(rewards, np.arange(20) // 5)]
    given = rewarded(rewards.tolist(), group_ids=[at // 4 for at in range(20)])
    given["advantages"] = advantages
    if functions == 2:
        given["rewards"] = [[one, 0.0] for one in rewards.tolist()]
    assert bool(told(given, "advantages")) is (functions == 1)
    assert bool(told(given, "advantage-scale")) is (functions == 2)


@each(("value", "words"), [(1.0, "all are in [0, 1]"), (1.01, "none is below 0")])
def test_probabilities_are_1_at_most(value, words):
    (found,) = findings([row([[0.5, value]])], "probabilities")
    assert words in found["message"]


@each(
    ("rows", "words"),
    [([[-1.0, 2.0]], "log-probs never are"), ([[-1.0, 2.0, 2.0]], "filled with 2")],
)
def test_a_filler_above_0_stands_twice(rows, words):
    (found,) = findings([row(rows)], "probabilities")
    assert words in found["message"]


def test_ends_by_words_of_later_records():
    """Each token's number is that of its string, over all records."""
    one = row(of_lengths(3, 3), tokens=[["a", "b", "c"], ["d", "e", "f"]])
    two = row(of_lengths(3, 3), tokens=[["g", "<|im_end|>", "<pad>"], ["h", "<|im_end|>", "<pad>"]])
    (found,) = findings([one, two, one], "padding-id")
    assert (found["record"], found["response"]) == (1, 0)
    assert found["evidence"]["tokens"] == 2
    assert "end in '<pad>', behind the end of text" in found["message"]


def test_a_run_of_one_response_may_be_text():
    """Of one token, but in one response only."""
    draw = random.Random(5)
    rows = [[-draw.expovariate(1.0) - 0.01 for _ in range(450)] for _ in range(2)]
    for one in rows:
        one[20:440:70] = [0.0] * 6
    rows[0] += [0.0] * 7
    ids = [[*range(1000 * at, 1000 * at + 450)] for at in (1, 2)]
    ids[0] += [9] * 7
    ids[1][7] = 9
    (found,) = findings([row(rows, token_ids=ids)], "padding")
    assert (found["severity"], found["evidence"]["responses"]) == ("warning", 1)


@each(("off", "shared"), [(0.99, 3), (1.01, 1)])
def test_how_near_the_second_log_prob_of_a_prompt_is(off, shared):
    """Relative to the greater of them."""
    near = [-11.0, -8.0 - off * (0.01 + 0.04 * 8.0), -7.0]
    given = row([[-11.0, -8.0, -7.0, -1.0], [*near, -2.0, -1.0], [-11.0, -8.0, -7.0, -0.1]])
    assert told(given, "prompt-included")[0][3]["tokens"] == shared


def test_sampled_ids_of_records_that_are_read_one_by_one():
    ids = [[1, 2], [3, 4]]
    plain = row(of_lengths(2, 2), token_ids=ids, note=None)
    given = plain | {"sampled_ids": [[1, 2], [3, 5]]}
    assert [one["record"] for one in findings([plain, given, plain], "retokenised")] == [1]


@each(
    ("advantages", "follow"),
    [
        ([-998.0, 1000.0], True),  # off by a thousandth of the greatest
        ([-997.0, 1000.0], False),
        ([998.0, -1000.0], False),
        ([0.0, 0.0], False),
    ],
)
def test_advantages_that_follow_the_rewards_of_their_groups(advantages, follow):
    given = Scores(np.array([0.0, 1.0]), np.array(advantages), np.zeros(2, dtype=np.int64))
    assert _follows(given, given.groups) is follow
    dead = Scores(np.array([0.0, 1.0, 2.0, 2.0]), np.array([*advantages, 7.0, 7.0]), np.zeros(4))
    assert _follows(dead, np.array([0, 0, 1, 1])) is follow  # but for groups that teach nothing
    assert _follows(dead, np.array([0, 0, 1, 2])) is False  # of one


def test_the_value_of_a_run_is_that_of_the_first_column():
    new = [[*one, *[0.0] * 8] for one in of_lengths(31, 35, 40, 44)]
    old = [[*one, *[-3.25] * 8] for one in of_lengths(32, 34, 41, 43)]
    old = [[*one[: len(first) - 8], *[-3.25] * 8] for one, first in zip(old, new, strict=True)]
    old = [[*[-0.5] * (len(first) - len(one)), *one] for one, first in zip(old, new, strict=True)]
    (found,) = findings([row(new, log_probs_old=old)], "padding")
    assert (found["evidence"]["value"], found["evidence"]["longest"]) == (0.0, 8)


@each(
    ("given", "is_told"),
    [
        ({}, False),
        ({"rewards": [1.0]}, True),
        ({"group_ids": [1]}, True),
        ({"note": None}, False),
        ({"note": None, "group_ids": [1]}, True),
        ({"rewards": [1.0], "group_ids": [1]}, True),
        ({"rewards": [1.0], "advantages": [1.0]}, False),
    ],
)
def test_which_single_responses_are_groups_of_one(given, is_told):
    """Those of records that have rewards, or say what their groups are."""
    bare = {"log_probs_new": [[-1.0, -2.0]], "log_probs_old": [[-1.5, -2.0]]}
    assert bool(findings([bare | given], "singleton-group")) is is_told


def test_two_groups_are_enough_for_advantages_that_are_the_rewards():
    rewards = [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    given = rewarded(rewards, advantages=rewards, group_ids=[0] * 5 + [1] * 5)
    assert told(given, "advantages") == [("warning", None, None, {"mean": 3.0})]
    assert told(given | {"group_ids": [0] * 10}, "advantages") == []


@each("prompt", [7, "ab", [], None, {"a": 1}])
def test_prompts_that_are_no_lists(prompt):
    given = row(of_lengths(3, 3), token_ids=[[7, 1, 2], [7, 8, 9]], prompt_ids=prompt)
    assert findings([given], "prompt-included") == []


@each(("advantage", "severity"), [(9999.0, "warning"), (-1e4, "error"), (11000.0, "error")])
def test_advantages_as_of_a_division_by_eps(advantage, severity):
    """In their own record, of several."""
    plain = rewarded([1.0, 0.0], advantages=[0.5, -0.5])
    given = rewarded([1.0, 0.0], advantages=[0.0, advantage])
    more = rewarded([1.0, 0.0], advantages=[1e6, 0.0])
    found = findings([plain, given, more], "advantage-scale")
    assert [(one["record"], one["response"]) for one in found] == [(1, 1), (2, 0)]
    assert found[0]["severity"] == severity
    assert ("1/eps" in found[0]["message"]) is (severity == "error")


def test_loops_of_several_records():
    one = row(of_lengths(20, 3), token_ids=[[7] * 20, [1, 2, 3]])
    two = row(of_lengths(30, 24), token_ids=[[8] * 30, [1, 2, 3] * 8])
    found = findings([one, two], "repetition")
    assert [(x["record"], x["response"]) for x in found] == [(0, 0), (1, 0)]
    assert [x["evidence"]["longest"] for x in found] == [20, 30]
    assert [x["evidence"]["responses"] for x in found] == [1, 2]


def test_sampled_ids_beyond_those_that_are_trained_are_not_compared():
    given = row(of_lengths(2, 2), token_ids=[[1, 2], [3, 4]], sampled_ids=[[1, 2, 9], [3, 4]])
    assert findings([given], "retokenised") == []


@each(("away", "is_told"), [(1.0089, True), (1.0069, False)])
def test_the_error_of_the_mean_beside_entropies(away, is_told):
    """Of 64 tokens with one degree of freedom less: 6 of it are less than is away."""
    over = 1.0 / math.log(2.0) - 1.0
    sign = np.tile([1.0, -1.0], 32)
    spread = over * 8.0 / 6.0 / away
    new = -(1.0 + over + spread * sign)
    given = {"log_probs_new": [new.tolist()], "entropies": [[1.0] * 64], "rewards": [1.0]}
    assert bool(findings([given], "log-base")) is is_told


@each("entropies", [[0.0] * 64, [-1.0] * 64, [math.nan] + [1.0] * 63, [math.inf] + [1.0] * 63])
def test_entropies_that_tell_no_base(entropies):
    given = {"log_probs_new": [[-2.0, -1.0] * 32], "entropies": [entropies], "rewards": [1.0]}
    assert findings([given], "log-base") == []
    given["log_probs_new"] = [[-math.inf, *[-1.0] * 63]]
    assert findings([given], "log-base") == []


@each(
    "given",
    [
        {"ratios": [[1.0, 1.5]], "advantages": [1.0]},
        {"log_probs_new": [[], []], "advantages": [1.0, -1.0]},
    ],
)
def test_records_without_log_probs_or_without_tokens(given):
    said = codes([given])
    assert {*said} <= {"on-policy"}


@each(("rows", "is_told"), [([[30.0, 1.0]], True), ([[30.0], [1.0]], False)])
def test_functions_of_one_response_and_one_function_of_several(rows, is_told):
    assert bool(findings([rewarded(rows)], "reward-scale")) is is_told
