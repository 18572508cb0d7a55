"""What check finds in samples, in padding and in threads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from command import answer
from files import each

from grpo_cli import check

# ---- which records are compared together, and which findings are printed in which order ----------


Row = dict[str, Any]


def shifted(seed: int, widths: tuple[int, ...] = (4, 4), **more: Any) -> Row:
    """A record whose old log-probs are those of the next token."""
    draw = random.Random(seed)
    new = [[-draw.expovariate(0.5) - 0.01 for _ in range(width)] for width in widths]
    old = [[*row[1:], -1.0] for row in new]
    rewards = [float(at % 2) for at in range(len(widths))]
    return {"log_probs_new": new, "log_probs_old": old, "rewards": rewards, **more}


def sound(seed: int, widths: tuple[int, ...] = (63, 63), **more: Any) -> Row:
    """The same record with its own old log-probs."""
    row = shifted(seed, widths, **more)
    return row | {"log_probs_old": [[x - 0.01 for x in one] for one in row["log_probs_new"]]}


def said(rows: list[Row], code: str = "shifted") -> list[tuple[Any, Any]]:
    """Record and number of records of the findings of a code."""
    found = [one for one in check(rows, limit=0).findings if one.code == code]
    return [(one.record, one.evidence.get("records")) for one in found]


MANY = [shifted(seed) for seed in range(200)]
APART = shifted(7, (64, 64))
OTHERS = [shifted(seed, entropies=[[0.5] * 4, [0.5] * 4]) for seed in range(30)]


@each(
    ("rows", "wanted"),
    [
        # those on 64 consecutive lines
        (MANY, [(0, 64), (64, 64), (128, 64), (192, 8)]),
        # not with records of another layout, nor with those behind them
        ([*MANY[:70], *OTHERS, *MANY[70:140]], [(0, 64), (64, 6), (70, 30), (100, 28), (128, 42)]),
        # records of 128 tokens on their own, and not counted with small ones
        # small ones that show the fault by themselves, each of which is found
        ([shifted(seed, (63, 63)) for seed in range(30)], [(at, None) for at in range(30)]),
        ([shifted(seed, (64, 64)) for seed in range(3)], [(0, None), (1, None), (2, None)]),
        ([*MANY[:20], APART, *MANY[20:40]], [(0, 40), (20, None)]),
        # and that healthy neighbours do not hide
        ([sound(at) for at in range(63)] + [shifted(1, (60,))], [(63, None)]),
        # the first of those that show it together, behind healthy ones
        ([*(sound(at, (4, 4)) for at in range(8)), *MANY[:40]], [(8, 40)]),
        # not records without tokens that count
        ([row | {"mask": [[int(at % 4 != 1)] * 4] * 2} for at, row in enumerate(MANY[:40])],
         [(0, 30)]),
    ],
)  # fmt: skip
def test_small_records_are_compared_together(rows, wanted):
    assert said(rows) == wanted


@pytest.fixture
def written(tmp_path: Path):
    def write(*files: list[Row]) -> list[str]:
        paths = [tmp_path / f"{number}.jsonl" for number in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return [*map(str, paths)]

    return write


def test_records_of_two_files_are_not_compared_together(written):
    found = answer("check", *written(MANY[:20], MANY[20:60], MANY[60:90]), "--limit", "0")
    told = [(one["source"][-7], one["record"], one["evidence"]["records"])
            for one in found["findings"] if one["code"] == "shifted"]  # fmt: skip
    assert told == [("0", 0, 20), ("1", 0, 40), ("2", 0, 30)]


@each("more", [{}, {"note": None}])
def test_masked_tokens_of_small_records_are_not_compared(more):
    """They hold a filler in the one column, and the others agree; some masks take nothing."""
    rows = []
    for at, row in enumerate(MANY[:40]):
        mask = [[1, 1, 1, int(at % 3 == 0)]] * 2
        old = [[x - 0.01 for x in one] for one in row["log_probs_new"]]
        for one in old:
            one[3] = one[3] if mask[0][3] else -100.0
        rows.append(row | more | {"mask": mask, "log_probs_old": old})
    assert said(rows, "filler") == []
    assert said(rows, "constant-log-ratio") == [(0, 40)]
    assert said([{k: row[k] for k in row if k != "mask"} for row in rows], "filler") == [(1, 40)]


def test_a_finding_in_the_midst_of_records_that_are_compared_together():
    rows = [row | {"log_probs_old": row["log_probs_new"]} for row in MANY[:100]]
    far = [[-30.0, *one[1:]] for one in rows[70]["log_probs_new"]]
    rows[70] = rows[70] | {"log_probs_old": far}
    assert said(rows, "extreme-ratio") == [(70, 36)]


# ---- the issue threads in samples/threads: the command that one would run names the fault --------


THREADS = Path(__file__).parents[2] / "samples" / "threads"

NAMED = {
    "verl-6280": ("ratio-noise", "so precision, kernels or batch shapes cause this noise"),
    "verl-6564": ("last-token", "at the last token of 8 of 8 responses"),
    "verl-6240": ("mean-weight", "top-p or top-k kept"),
    "unsloth-6738": ("drift", "grows with the position"),
    "unsloth-4502": ("ratio-noise", "although the batch is on-policy (num_iterations 1)"),
    "trl-6789": ("mean-weight", "top-p or top-k kept, or has another one-sided bias"),
    "trl-6121": ("probabilities negative-entropy", "padding that was filled with 1"),
    "trl-5224": ("retokenised", "differ from the sampled ids (sampled_token_ids)"),
    "nemo-rl-1518": ("advantage-scale", "a leave-one-out std of 0 gives 1/eps"),
    "nemo-rl-1330": ("rollout-mismatch", "engine and trainer differ"),
    "areal-1419": ("advantages", "groups of 9 consecutive rows"),
}


@pytest.mark.parametrize("name", NAMED)
def test_check_names_the_fault_of_a_thread_and_nothing_else(name):
    codes, words = NAMED[name]
    found = answer("check", THREADS / f"{name}.jsonl")["findings"]
    severe = [row for row in found if row["severity"] != "info"]
    assert {row["code"] for row in severe} == {*codes.split()}
    assert words in severe[0]["message"]


@pytest.mark.more
@pytest.mark.parametrize("row", [(), ("-v", "trl/dapo")])
def test_verify_names_that_cut_tokens_are_in_the_denominator(row):
    """182 tokens count; the response that was cut has 50 more, and three pads.

    The record's settings turn the KL's weight off, which the row that a user names has on.
    """
    (record,) = answer("verify", THREADS / "trl-6369.jsonl", *row)["records"]
    first = record["first"]
    assert first["stage"] == "aggregate"
    (cause,) = first["causes"]
    words = "tokens including responses that are masked entirely (truncated responses still count)"
    assert words in cause
    assert cause.startswith("KL not weighted by the ratio") == bool(row)


def test_every_thread_is_asked_about():
    assert {path.stem for path in THREADS.glob("*.jsonl")} == {*NAMED, "trl-6369"}


# ---- what only several records show --------------------------------------------------------------


def _row(draw: np.random.Generator, **more: Any) -> dict[str, Any]:
    new = (-draw.exponential(0.8, 30) - 0.01).tolist()
    return {"log_probs_new": [new], "log_probs_old": [new], "rewards": [0.5]} | more


@each("given", ["none", "raw", "centred"])
def test_rows_that_share_a_prompt_and_no_group(given) -> None:
    """Advantages that are the rewards were computed in groups of one; others in whole groups."""
    draw = np.random.default_rng(3)
    rows = []
    for at in range(24):
        row = _row(draw, step=at // 12, uid=f"u{at}", prompt=f"question {at // 4}")
        row["rewards"] = [float(at % 2)]
        advantages = {"raw": [float(at % 2)], "centred": [at % 2 - 0.5]}
        rows.append(row | ({} if given == "none" else {"advantages": advantages[given]}))
    (found,) = (one for one in check(rows).findings if one.code == "torn-group")
    assert found.severity == ("info" if given == "centred" else "warning")
    assert "step,prompt" in found.advice
    assert not any(one.code == "singleton-group" for one in check(rows).findings)
    others = [{**row, "prompt": f"question {at}"} for at, row in enumerate(rows)]
    assert not any(one.code == "torn-group" for one in check(others).findings)


@each("kind", ["random", "permuted", "trained"])
def test_references_of_other_inputs(kind) -> None:
    """A policy may have moved far from its reference, and still is sure of the same tokens."""
    draw, rows = np.random.default_rng(5), []
    for _ in range(4):
        sure = draw.choice([0.05, 1.5], (4, 60))
        new = -draw.exponential(1.0, (4, 60)) * sure - 1e-3
        other = {
            "random": -draw.exponential(1.0, (4, 60)) * draw.choice([0.05, 1.5], (4, 60)) - 1e-3,
            "permuted": draw.permuted(new, axis=1),
            "trained": np.minimum(new * draw.uniform(0.5, 3.0, new.shape), -1e-3),
        }[kind]
        rows.append({"log_probs_new": new.tolist(), "log_probs_ref": other.tolist()})
    rows = [{**row, "rewards": [0.0, 1.0, 0.0, 1.0]} for row in rows]
    codes = [one.code for one in check(rows).findings if one.severity == "error"]
    assert set(codes) == (set() if kind == "trained" else {"unrelated"})


@each("displaced", [1, 6])
def test_what_a_fault_causes_elsewhere_is_not_said_again(displaced) -> None:
    """Where many records are displaced, the engine of others need not be at fault."""
    draw, rows = np.random.default_rng(7), []
    for at in range(12):
        engine = -draw.exponential(1.0, (4, 60)) - 1e-3
        noise = draw.normal(0.0, 0.3, engine.shape)
        new = np.roll(engine, 1, axis=1) if at < displaced else np.minimum(engine + noise, -1e-3)
        row = {"log_probs_new": new.tolist(), "log_probs_rollout": engine.tolist()}
        rows.append(row | {"rewards": [0.0, 1.0, 0.0, 1.0]})
    codes = {one.code for one in check(rows).findings if one.severity != "info"}
    assert codes == {"shifted"} | ({"rollout-mismatch"} if displaced == 1 else set())


@each(("repeats", "counted"), [([5] * 6, 24), ([1, 6, 3, 1, 8, 2], 15), ([1] * 6, 0)])
def test_ends_of_an_unknown_vocabulary_that_are_repeated_are_padding(repeats, counted):
    """Half of the responses end in one id, which is nowhere else; their lengths differ anyway."""
    draw = np.random.default_rng(3)
    widths = draw.integers(20, 40, 6)
    ids = [
        [*draw.integers(5, 500, width).tolist(), *[2] * many]
        for width, many in zip(widths, repeats, strict=True)
    ]
    columns = [draw.uniform(-2.0, -0.1, len(one)).tolist() for one in ids]
    row = {"log_probs_new": columns, "token_ids": ids, "rewards": [0.0, 1.0] * 3}
    found = [one for one in check([row]).findings if one.severity == "error"]
    assert [(one.code, one.evidence["tokens"]) for one in found] == [
        ("padding-id", counted)
    ] * bool(counted)


@each(
    ("end", "padding", "wanted"),
    [(151645, 151643, "padding-id"), (151645, 0, "mask"), (7, 151643, "mask"), (7, 151645, "")],
)
def test_one_counted_token_of_padding_is_found_once(end, padding, wanted):
    """By its id where that and the end of text are known, else by its log-prob of 0.0."""
    draw, widths = np.random.default_rng(0), np.array([12, 19, 15, 22, 17, 14, 20, 13])
    row: Row = {"rewards": [0.0, 1.0] * 4}
    row["mask"] = (np.arange(25) <= widths[:, None]).astype(int).tolist()  # one too many
    written = np.arange(25) < widths[:, None]
    ids = np.where(written, draw.integers(1000, 9000, (8, 25)), padding)
    ids[np.arange(8), widths - 1] = end
    new = np.where(written, -draw.exponential(0.8, ids.shape) - 0.01, 0.0)
    row |= {"token_ids": ids.tolist(), "log_probs_new": new.tolist()}
    row["log_probs_old"] = (new * 1.01).tolist()
    found = [one.code for one in check([row]).findings if one.severity != "info"]
    assert found == [wanted] * bool(wanted)


# ---- temperatures of small groups ----------------------------------------------------------------


def small_run(
    size: int, heat: dict[str, float], since: int = 0, only: Collection[int] = range(72)
) -> list[Row]:
    """12 steps of 6 prompts, the update of every second step sharpening a prompt by a quarter."""
    draw, rows = np.random.default_rng(7), []
    for at in range(72):
        logits = draw.normal(0.0, 0.8, (size * 12, 16))
        taken = np.argmax(logits + draw.gumbel(size=logits.shape), axis=1)
        update, noise = (spread * draw.normal(size=logits.shape) for spread in (0.05, 0.004))
        new = logits * (1.25 if at % 12 == 3 else 1.0) + update
        row: Row = {"step": at // 6, "rewards": [0.0, 1.0] * (size // 2)}
        for name, made in {"new": new, "old": logits, "rollout": logits + noise}.items():
            scaled = made / (heat.get(name, 1.0) if at >= since and at in only else 1.0)
            log_p = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
            column = log_p[np.arange(len(taken)), taken]
            row[f"log_probs_{name}"] = column.reshape(size, 12).tolist()
        rows.append(row)
    return rows


@pytest.mark.more
@each("size", [6, 16])
def test_an_update_that_sharpens_a_prompt_is_no_temperature(size):
    """A temperature of a column is in most records: of the run, or of a step."""

    def errors(heat: dict[str, float], since: int = 0) -> list[tuple[str, int | None]]:
        found = check(small_run(size, heat, since), limit=0).findings
        return [(one.code, one.step) for one in found if one.severity == "error"]

    assert errors({}) == []
    for column, heat in itertools.product(("new", "old", "rollout"), (0.7, 1.4)):
        assert {code for code, _ in errors({column: heat})} == {"temperature"}, (column, heat)
    assert ("temperature", 6) in errors({"new": 0.6}, since=36)


@pytest.mark.more
@each(
    ("size", "only", "wanted"),
    [
        (16, [20], set()), (6, [20], set()), (16, [20, 50], set()),
        # all prompts of a step, and one worker of an engine
        (16, range(18, 24), {"temperature"}), (16, [8, 26, 45, 62], {"temperature"}),
        (6, range(18, 24), {"temperature"}), (6, [8, 26, 45, 62], {"temperature"}),
    ],
)  # fmt: skip
def test_older_weights_at_one_prompt_are_no_temperature(size, only, wanted):
    """They sharpen a prompt as a temperature does; it sharpens those of a step, or all alike."""
    found = check(small_run(size, {"rollout": 0.8}, only=only), limit=0).findings
    assert {one.code for one in found if one.severity == "error"} == wanted


def test_most_prompts_of_a_step_confirm_a_temperature():
    """Other prompts, of other steps, have the weights of other updates."""
    rows = small_run(6, {"rollout": 0.8}, only=range(18, 22))
    flatter = small_run(6, {"rollout": 1.4}, only=[2, 40, 63])
    rows = [flatter[at] if at in (2, 40, 63) else row for at, row in enumerate(rows)]
    found = [one for one in check(rows, limit=0).findings if one.severity == "error"]
    assert [(one.code, one.step) for one in found] == [("temperature", 3)] * 4


@pytest.mark.more
@each(("only", "wanted"), [([24, 26], set()), ([24, 26, 28], {"temperature"})])
def test_an_update_that_sharpens_half_of_a_step_is_no_temperature(only, wanted):
    """With the prompt that every second update sharpens, three of the six of step 4, or four."""
    found = check(small_run(6, {"new": 0.8}, only=only), limit=0).findings
    assert {one.code for one in found if one.severity == "error"} == wanted


@each(("records", "wanted"), [([50], "info"), ([50, 51], "error")])
def test_a_base_that_one_record_of_a_hundred_shows_is_no_error(records, wanted):
    draw, rows = np.random.default_rng(3), []
    for at in range(120):
        new = -draw.exponential(1.0, (4, 10)) - 0.01
        noise = 0.01 * draw.normal(size=new.shape)
        old = new * (0.6931 * (1.0 + noise / 5) if at in records else 1.0 + noise)
        logged = {"log_probs_new": new.tolist(), "log_probs_old": old.tolist()}
        rows.append({**logged, "rewards": [0.0, 1.0, 0.0, 1.0], "step": at // 6})
    found = check(rows, limit=0).findings
    assert {one.severity for one in found if one.code == "log-base"} == {wanted}


@each(("elsewhere", "wrong"), [(False, True), (True, False)])
def test_a_word_that_the_policy_writes_elsewhere_too_is_no_padding(elsewhere, wrong):
    """Responses that were cut in a loop end in runs of one word, after one other word."""
    draw, rows = np.random.default_rng(5), []
    for record in range(3):
        ids = draw.integers(30, 500, (4, 12))
        if record == 1:
            ids[:3, 5], ids[0, 6:], ids[1, 6:] = 20, 16, 16
            ids[2, 5:8], ids[2, 8], ids[2, 9:] = ids[3, 5:8], 20, 16
        elif elsewhere:
            ids[:, 3] = 16
        new = -draw.exponential(1.0, ids.shape) - 0.01
        rows.append({"log_probs_new": new.tolist(), "rewards": [0.0, 1.0] * 2})
        rows[-1]["token_ids"] = ids.tolist()
    assert any(one.code == "padding-id" for one in check(rows).findings) is wrong


def uneven_run(noise: Callable[[int], float], steps: int = 40) -> list[Row]:
    """A run whose engine differs by a noise that depends on the step."""
    draw, rows = np.random.default_rng(11), []
    for step in range(steps):
        old = -draw.exponential(1.0, (24, 12)) - 0.01
        engine = np.minimum(old + noise(step) * draw.normal(size=old.shape), 0.0)
        logged = {"log_probs_new": old.tolist(), "log_probs_rollout": engine.tolist()}
        rows.append({**logged, "rewards": [0.0, 1.0] * 12, "step": step})
    return rows


@each(
    ("noise", "wanted"),
    [
        (lambda step: 0.11 if step > 2 else 0.0, []),
        (lambda step: 0.12 if step < 25 else 0.05, ["info"]),
        (lambda step: 0.11 if step > 20 else 0.01, ["warning"]),
    ],
)
def test_an_engine_that_begins_on_policy_is_no_mismatch_from_a_step_on(noise, wanted):
    found = check(uneven_run(noise), limit=0).findings
    assert [one.severity for one in found if "explains" in one.evidence] == wanted


def test_the_step_of_a_mismatch_is_found_across_files(written):
    """The first file has step 0 alone."""
    rows = uneven_run(lambda step: 0.11 if step else 0.01, 8)
    found = check(written(rows[:1], rows[1:])).findings
    assert [one.step for one in found if "explains" in one.evidence] == [1]


@pytest.mark.more
@each("sizes", [[0.09] * 6 + [0.11] * 6, [0.085] * 3 + [0.1] * 8 + [0.06]])
def test_places_that_hardly_differ_are_not_named(sizes):
    """Six standard errors are soon reached; who reads "mostly" expects more than a tenth."""
    draw, rows = np.random.default_rng(1), []
    for at in range(300):
        old = -draw.exponential(1.0, (24, 12)) - 0.01
        engine = np.minimum(old + np.array(sizes) * draw.normal(size=old.shape), 0.0)
        rows.append({"log_probs_new": old.tolist(), "log_probs_rollout": engine.tolist()})
        rows[-1] |= {"rewards": [0.0, 1.0] * 12, "id": at}
    found = check(rows)
    assert found.mismatch is not None
    assert found.mismatch.named != "position"
    assert not [one for one in found.findings if "explains" in one.evidence]


def test_a_token_that_carries_the_mismatch_explains_last_tokens():
    draw, rows = np.random.default_rng(2), []
    for step in range(40):
        old = -draw.exponential(0.8, (6, 14)) - 0.01
        words = [[f"w{word}" for word in row] for row in draw.integers(0, 40, old.shape)]
        engine = old.copy()
        for row in range(2):
            words[row][-1], engine[row, -1] = "</s>", old[row, -1] - 2.5
        row = {"log_probs_old": old.tolist(), "log_probs_rollout": engine.tolist()}
        row |= {"log_probs_new": old.tolist(), "tokens": words, "rewards": [0.0, 1.0] * 3}
        rows.append(row | {"step": step})
    found = check(rows, limit=0).findings
    codes = {one.code for one in found if one.severity != "info"}
    assert codes == {"rollout-mismatch"}
    assert any("'</s>'" in one.message for one in found)


def test_a_token_that_differs_from_a_step_on_is_one_finding_and_no_position():
    """The token is at no last place, so that the place explains most of the KL, and causes none."""
    draw, rows = np.random.default_rng(3), []
    for step in range(40):
        old = -draw.exponential(0.8, (6, 10)) - 0.01
        ids = draw.integers(1, 60, old.shape)
        ids[:, -1] = 60
        engine = old + draw.normal(0.0, 0.005, old.shape)
        if step >= 20:
            ids[:4, 4 + step % 3] = 0
            engine[ids == 0] = old[ids == 0] - 1.5
        row = {"log_probs_new": old.tolist(), "log_probs_old": old.tolist(), "step": step}
        row |= {"log_probs_rollout": np.minimum(engine, 0.0).tolist(), "token_ids": ids.tolist()}
        rows.append(row | {"rewards": [0.0, 1.0] * 3})
    answer = check(rows, limit=0)
    found = [one for one in answer.findings if one.severity != "info"]
    assert [(one.code, one.step) for one in found] == [("rollout-mismatch", 20)]
    assert answer.mismatch is not None
    assert not any(one.counts for one in answer.mismatch.causes if one.name == "position")


@each("noise", [0.06, 0.35])
def test_old_log_probs_that_were_overwritten_are_one_finding_with_the_mismatch(noise):
    """The engine's are of the true old policy: 8 prompts, 8 responses, 60 tokens, 10 steps."""
    draw, rows = np.random.default_rng(5), []
    for step, prompt in itertools.product(range(1, 11), range(8)):
        old = -draw.gamma(0.6, 0.8, (8, 60))
        moves = np.minimum(1.0, -old) * draw.normal(0.0, [[[noise]], [[0.01]]], (2, 8, 60))
        new, engine = np.minimum(old + moves, -1e-6)
        row = {"step": step, "prompt_id": prompt, "rewards": [0.0, 1.0] * 4}
        row |= {"log_probs_new": new.tolist(), "log_probs_rollout": engine.tolist()}
        rows.append(row | {"log_probs_old": (new if step > 5 else old).tolist()})
    (found,) = check(rows, limit=0).findings
    assert (found.code, found.severity, found.step) == ("rollout-mismatch", "warning", 6)
    assert "One cause explains both" in found.message
    assert "The engine is not the cause" in found.advice
    rows[-1]["log_probs_old"][0][0] -= 0.01  # so that it was not overwritten there
    assert not any("One cause" in one.message for one in check(rows, limit=0).findings)


def test_columns_of_which_one_belongs_to_other_tokens_say_which_agrees_with_the_engine():
    draw, rows = np.random.default_rng(6), []
    for step in range(3):
        new, old = -draw.gamma(0.6, 0.8, (2, 8, 60)) - 1e-6
        row = {"step": step, "rewards": [0.0, 1.0] * 4, "log_probs_new": new.tolist()}
        rows.append(
            row | {"log_probs_old": old.tolist(), "log_probs_rollout": (1.01 * new).tolist()}
        )
    found = [one for one in check(rows).findings if one.code == "unrelated"]
    assert found
    assert all("log_probs_rollout agrees with log_probs_new" in one.message for one in found)


@each(("tokens", "update"), [(7, 0.01), (14, 0.01), (28, 0.17)])
@each("exchanged", ["log_probs_new", "log_probs_old"])
def test_rows_that_were_exchanged_are_of_the_column_that_no_other_agrees_with(
    exchanged, tokens, update
):
    draw, rows = np.random.default_rng(4), []
    for step in range(12):
        new = -draw.exponential(1.0, (6, tokens)) - 0.01
        old = np.minimum(new + draw.normal(0.0, update, new.shape), 0.0)
        engine = old if exchanged == "log_probs_new" else new
        engine = np.minimum(engine + draw.normal(0.0, 0.3, new.shape), 0.0)
        row = {"log_probs_new": new, "log_probs_old": old, "log_probs_rollout": engine}
        row[exchanged][[0, 2]] = row[exchanged][[2, 0]]
        rows.append({name: column.tolist() for name, column in row.items()})
        rows[-1] |= {"rewards": [0.0, 1.0] * 3, "step": step}
    found = [one for one in check(rows, limit=0).findings if one.code == "unrelated"]
    assert len(found) >= 20
    assert {one.response for one in found} == {0, 2}
    assert all(one.message.startswith(exchanged) for one in found)


def test_a_constant_at_half_of_the_tokens_is_not_at_every_token():
    """A policy that repeats a word moves its tokens alike, and the others by less."""
    draw = np.random.default_rng(2)
    old = -draw.exponential(1.0, (6, 8)) - 0.01
    moved = np.where(np.arange(8) < 5, -1.4, -draw.uniform(0.0, 0.6, old.shape))
    for change, wanted in ((moved, 0), (np.full(old.shape, -1.4), 1)):
        row = {"log_probs_new": (old + change).tolist(), "log_probs_old": old.tolist()}
        found = check([row | {"rewards": [0.0, 1.0] * 3}], limit=0).findings
        assert sum(one.code == "constant-log-ratio" for one in found) == wanted


def test_ids_beyond_64_bits_are_not_compared_and_the_answer_says_so():
    ids = [[2**63 + at for at in range(63)], [*range(63)]]
    few = check([sound(0, token_ids=ids)])
    missing = {one.about: one.missing[-1] for one in few.not_checked}
    assert missing["end of text and repetition"] == ("token_ids below 2^63",)
    every = check([sound(0, token_ids=[ids[1], ids[1]])]).not_checked
    assert "end of text and repetition" not in {one.about for one in every}
