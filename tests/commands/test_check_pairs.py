"""Two columns of log-probs over more tokens than a case of ``cases/check`` holds.

Each rule at its bounds, and on drawn columns near them, is in ``cases/check``: evidence and place
were those that a definition of the rule, written apart from it, gave for each case there.
"""

from __future__ import annotations

import math
from typing import Any

import command
import numpy as np
import orjson
from files import each

from grpo_cli import check


def test_entropies_are_judged_over_the_whole_file():
    """Records of some 75 tokens are noise: no proof of base 10, and no two verdicts."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(40):
        lengths = draw.integers(6, 14, 8)
        new = [(-draw.exponential(0.6, n) - 1e-4).tolist() for n in lengths]
        entropies = [draw.normal(1.2, 0.1, n).tolist() for n in lengths]
        rows.append({"log_probs_new": new, "entropies": entropies, "rewards": [0.0, 1.0] * 4})
    (found,) = (one for one in check(rows).findings if one.code in ("entropies", "log-base"))
    assert (found.code, found.severity) == ("entropies", "info")
    tokens = [len(part) for row in rows for part in row["log_probs_new"]]
    assert found.evidence["tokens"] == sum(tokens)
    assert abs(found.evidence["factor"] - 0.5) < 4 * found.evidence["standard_error"] < 0.05


def test_full_padding_is_no_early_mask():
    """Padding that is not zero, which says no length."""
    draw, codes = np.random.default_rng(1), set[str]()
    for _ in range(40):
        lengths = draw.integers(30, 35, 8)
        new = -draw.exponential(0.3, (8, lengths.max())) - 0.01
        mask = np.arange(lengths.max()) < lengths[:, None]
        record = {
            "log_probs_new": new.tolist(),
            "mask": mask.astype(int).tolist(),
            "rewards": draw.random(8).tolist(),
        }
        codes |= check([record]).counts.keys()
    assert "mask" not in codes


@each(
    ("column", "times", "wanted"),
    [
        ("rollout", 0.7, "log_probs_rollout was scaled: "),
        ("old", 0.7, "log_probs_old was scaled: "),
        (
            "rollout",
            math.log(2),
            "log_probs_rollout was scaled: ",
        ),
        ("rollout", 1 / math.log(2), "log_probs_rollout is in base 2: "),
        ("old", 1 / math.log(2), "log_probs_old is in base 2: "),
    ],
)
def test_of_several_columns_the_one_that_the_others_contradict_is_named(
    column, times, wanted, grpo, dump
):
    """From step 3 on; an update moves the new log-probs by 0.1 nats."""
    draw, rows = np.random.default_rng(12), []
    for step in range(1, 6):
        old = -draw.gamma(0.6, 0.8, (8, 40)) - 1e-3
        noise = {"new": 0.1, "old": 0.0, "ref": 0.05, "rollout": 0.004}
        columns = {
            f"log_probs_{name}": np.minimum(old + draw.normal(0.0, size, old.shape), -1e-6)
            * (times if name == column and step > 2 else 1.0)
            for name, size in noise.items()
        }
        lists = {name: values.tolist() for name, values in columns.items()}
        rows.append({"step": step, "rewards": [0.0, 1.0] * 4} | lists)
    found = [one for one in check(rows).findings if one.severity == "error"]
    assert [(one.code, one.step) for one in found] == [("log-base", step) for step in (3, 4, 5)]
    for one in found:
        assert one.message.startswith(wanted)
        assert " agree with " in one.message
        assert one.evidence["culprit"] == f"log_probs_{column}"
    lines = "".join(orjson.dumps(row).decode() + "\n" for row in rows)
    printed = " ".join(grpo("check", str(dump(lines)), "--limit", "1").stdout.split())
    assert "log-base: 3 findings, the first at step 3 (" in printed
    assert "likely cause: log-base, found above" in printed
    rows = [row | {"rewards": [1.0] * 8} for row in rows[:2]]
    lines = "".join(orjson.dumps(row).decode() + "\n" for row in rows)
    quiet = grpo("check", str(dump(lines)), "-q").stdout
    assert quiet.splitlines() == ["no error or warning in 2 records, 16 responses, 640 tokens"]


@each(("tokens", "base"), [(20, None), (400, 2)])
def test_few_tokens_do_not_tell_base_2_from_a_temperature_of_0_7(tokens, base):
    """Both are within four standard errors of 80 tokens, and 0.7 is not within those of 1,600."""
    draw = np.random.default_rng(3)
    new = -draw.exponential(1.0, (4, tokens)) - 0.01
    noise = 0.02 * draw.normal(size=new.shape)
    old = np.minimum(new * math.log(2) * (1.0 + noise), -1e-6)
    row = {"log_probs_new": new.tolist(), "log_probs_old": old.tolist()}
    found = check([row | {"rewards": [0.0, 1.0] * 2}]).findings
    assert [one.evidence["base"] for one in found if one.code == "log-base"] == [base]


# ---- which column, which tokens, which row -------------------------------------------------------


def policies(seed: int, records: int = 4, size: int = 8, tokens: int = 30) -> list[dict[str, Any]]:
    """Tokens of an engine that has the old weights, and what three policies make of them."""
    draw, rows = np.random.default_rng(seed), []
    for _ in range(records):
        logits = draw.normal(size=(size * tokens, 24)) * draw.choice([1.0, 3.0], (size * tokens, 1))
        taken = np.argmax(logits + draw.gumbel(size=logits.shape), axis=1)
        row: dict[str, Any] = {"rewards": [0.0, 1.0] * (size // 2)}
        for name, spread in {"new": 0.06, "old": 0.0, "ref": 0.12, "rollout": 0.004}.items():
            other = logits + draw.normal(0.0, 1.0, logits.shape) * spread
            log_p = other - np.logaddexp.reduce(other, axis=1, keepdims=True)
            column = log_p[np.arange(len(taken)), taken]
            row[f"log_probs_{name}"] = column.reshape(size, tokens).tolist()
            if name == "new":
                entropies = -(np.exp(log_p) * log_p).sum(axis=1)
                row["entropies"] = entropies.reshape(size, tokens).tolist()
        rows.append(row)
    return rows


def worst(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Code and message of what is no info."""
    found = check(rows, limit=0).findings
    return {(one.code, one.message) for one in found if one.severity != "info"}


def test_sound_policies_are_sound():
    assert [worst(policies(seed)) for seed in range(6)] == [set()] * 6


@each("other", ["ref", "new"])
def test_a_column_that_is_swapped_with_the_old_one_is_named(other):
    """It agrees with the engine, which the old column does not: no temperature, and no top-p."""
    rows, names = policies(3), ("log_probs_old", f"log_probs_{other}")
    swapped = [row | {names[0]: row[names[1]], names[1]: row[names[0]]} for row in rows]
    found = [one for one in check(swapped, limit=0).findings if one.severity != "info"]
    assert [one.code for one in found] == ["old-log-probs"] * len(rows)
    assert {one.evidence["nearest"] for one in found} == {names[1]}


@each(("size", "wanted"), [(0.06, []), (0.12, [2]), (0.5, [2])])
def test_old_log_probs_that_are_off_alone_are_not_the_engine_s_fault(size, wanted):
    rows, draw = policies(4), np.random.default_rng(0)
    old = np.array(rows[2]["log_probs_old"])
    rows[2]["log_probs_old"] = np.minimum(old + draw.normal(0.0, size, old.shape), -1e-6).tolist()
    found = [one for one in check(rows, limit=0).findings if one.severity != "info"]
    assert [(one.code, one.record) for one in found] == [("old-log-probs", at) for at in wanted]
    copied = [row | {"log_probs_rollout": row["log_probs_new"]} for row in policies(5)]
    assert "old-log-probs" not in {code for code, _ in worst(copied)}
    engine = np.array(rows[1]["log_probs_rollout"])
    noise = draw.normal(0.0, 0.5, engine.shape)
    rows[2] = rows[1] | {"log_probs_rollout": np.minimum(engine + noise, -1e-6).tolist()}
    assert "old-log-probs" not in {code for code, _ in worst(rows)}


@each(
    ("change", "wanted"),
    [
        (lambda each, _: np.roll(each, -1, axis=1), "one token early"),
        (lambda each, _: np.roll(each, 1, axis=1), "one token late"),
        (lambda each, _: np.roll(each, 1, axis=0), "of other tokens"),
        (lambda each, draw: draw.permuted(each, axis=1), "of other tokens"),
        (lambda each, _: each / math.log(2), "in bits"),
    ],
)
def test_entropies_of_other_tokens_or_in_bits_are_named(change, wanted):
    draw, rows = np.random.default_rng(2), policies(5, records=8)
    for row in rows:
        row["entropies"] = change(np.array(row["entropies"]), draw).tolist()
    ((code, message),) = worst(rows)
    assert code == "entropies"
    assert wanted in message


def test_a_floor_of_log_probs_is_named():
    rows = policies(6)
    for row in rows:
        row["log_probs_old"] = np.maximum(row["log_probs_old"], -3.0).tolist()
    found = worst(rows)
    assert len(found) == len(rows)
    assert all(code == "filler" and "clamped at -3" in message for code, message in found)
    for row in rows:  # rounding has as many at the next value, and a limit of all hides nothing
        row["log_probs_old"] = np.round(row["log_probs_rollout"], 1).tolist()
    assert not any("clamped" in message for _, message in worst(rows))


def test_a_reference_with_a_response_of_zeros_is_filled():
    rows = policies(6)
    for row in rows[::2]:
        row["log_probs_ref"][3] = [0.0] * 30
    found = [one for one in check(rows, limit=0).findings if one.severity != "info"]
    assert [(one.record, one.response) for one in found] == [(0, 3), (2, 3)]
    assert all("log_probs_ref is filled with 0.0" in one.message for one in found)
    rows = policies(6)
    for row in rows:  # tokens that were certain before the training, or are so after it
        for name, part in (("ref", slice(0, 6)), ("new", slice(10, 14))):
            row[f"log_probs_{name}"][3][part] = [0.0] * len(row["log_probs_ref"][3][part])
        row["log_probs_old"] = row["log_probs_rollout"] = row["log_probs_new"]
    assert not any(code == "filler" for code, _ in worst(rows))


@each(
    ("column", "severity", "words"),
    [
        ("old", "warning", "log_probs_old alone is off at 1 of 240 tokens, by 4.5 nats"),
        ("rollout", "info", "1 of 240 tokens differs far more than the rest"),
    ],
)
def test_one_old_log_prob_that_both_others_contradict_is_named(column, severity, words):
    rows = policies(8)
    rows[2][f"log_probs_{column}"][5][7] -= 4.5
    (one,) = (one for one in check(rows, limit=0).findings if one.code == "outliers")
    assert (one.severity, one.record, one.response, one.token) == (severity, 2, 5, 7)
    assert one.message.startswith(words)


@each("column", ["rollout", "old"])
def test_a_row_of_another_response_is_named_with_its_response(column):
    rows = policies(7)
    rows[1][f"log_probs_{column}"][5] = list(rows[1][f"log_probs_{column}"][4])
    found = [one for one in check(rows, limit=0).findings if one.severity != "info"]
    assert [(one.code, one.record, one.response) for one in found] == [("unrelated", 1, 5)]
    assert f"log_probs_{column} of this response is that of response 4" in found[0].message


def test_responses_that_were_not_reordered_with_the_batch_are_named():
    rows = policies(7)
    rows[1]["log_probs_rollout"] = np.roll(rows[1]["log_probs_rollout"], 1, axis=0).tolist()
    found = [one for one in check(rows, limit=0).findings if one.severity != "info"]
    assert {(one.code, one.record) for one in found} == {("unrelated", 1)}
    assert "log_probs_rollout of this response is that of response 7: " in found[0].message


@each("copies", [True, False])
def test_copies_of_a_response_are_no_further_evidence(copies):
    """Eight tokens that one update moved say little, sixty-four of eight responses say enough."""
    draw = np.random.default_rng(1)
    old = np.log(draw.uniform(0.05, 0.95, (8, 8)))
    new = np.log(draw.uniform(0.05, 0.95, (8, 8)))
    if copies:
        new[:], old[:] = new[0], old[0]
    row = {"log_probs_new": new.tolist(), "log_probs_old": old.tolist(), "rewards": [0.0, 1.0] * 4}
    codes = {one.code for one in check([row], limit=0).findings if one.severity == "error"}
    assert codes == ({"unrelated"} if not copies else set())


@each(
    ("column", "records", "drifting", "severity"),
    [("new", 8, 1, "info"), ("new", 8, 8, "error"), ("rollout", 8, 1, "error"),
     ("rollout", 40, 1, "info")],
)  # fmt: skip
def test_an_update_may_move_late_tokens_of_some_records(column, records, drifting, severity):
    """The engine may have the weights before it, though not in one record of eight."""
    rows, draw = policies(9, records), np.random.default_rng(0)
    late = np.arange(30) >= 15
    for row in rows[:drifting]:
        old = np.array(row["log_probs_old"])
        noise = draw.normal(0.0, 0.5, old.shape) * -np.expm1(old) * late
        row["log_probs_rollout"] = row["log_probs_old"]
        row[f"log_probs_{column}"] = np.minimum(old + noise, -1e-6).tolist()
        del row["entropies"]
    bare = [{name: row[name] for name in row if name != "log_probs_old"} for row in rows]
    for given in (rows, bare) if column == "rollout" else (rows,):
        found = [one for one in check(given, limit=0).findings if one.code == "drift"]
        assert [one.severity for one in found] == [severity] * drifting


def _with_padding(row: dict[str, Any], draw: np.random.Generator) -> dict[str, Any]:
    """The record with ids; half of its responses have ten tokens of padding after their end."""
    ids = draw.integers(1000, 9000, (8, 30))
    ids[::2, 19:] = 151_645
    return row | {"token_ids": ids.tolist()}


def test_padding_that_is_counted_explains_what_grows_with_the_position():
    rows, draw = policies(9, 8), np.random.default_rng(0)
    late = np.arange(30) >= 15
    for row in rows[2:5]:
        old = np.array(row["log_probs_old"])
        noise = draw.normal(0.0, 0.5, old.shape) * -np.expm1(old) * late
        row["log_probs_new"] = np.minimum(old + noise, -1e-6).tolist()
        del row["entropies"]
    for padded in (0, 2):
        given = [_with_padding(row, draw) for row in rows[:padded]] + rows[padded:]
        codes = check(given, limit=0).counts
        assert codes.get("padding-id", 0) == padded
        assert codes.get("drift", 0) == (0 if padded else 3)


def test_a_mask_that_is_late_is_named_where_it_counts_padding():
    row = _with_padding(policies(9, 1)[0], np.random.default_rng(0))
    mask = np.arange(30) < np.where(np.arange(8) % 2, 30, 20)[:, None]
    late = np.roll(mask, 2, axis=1) & (np.arange(30) >= 2)
    for given, words in ((late, "the first 2 masked: the mask is 2 tokens late"), (mask, "")):
        found = check([row | {"mask": given.astype(int).tolist()}], limit=0).findings
        said = [one.message for one in found if one.code == "padding-id"]
        assert len(said) == bool(words)
        assert words in "".join(said)


@each(("step", "severity"), [(1, []), (9, ["warning"] * 4)])
def test_an_engine_that_samples_ahead_has_the_initial_weights_at_first(step, severity):
    rows, draw = policies(10), np.random.default_rng(0)
    for row in rows:
        ref = np.array(row["log_probs_ref"])
        engine = np.minimum(ref + 0.002 * draw.normal(size=ref.shape), -1e-6)
        row |= {"log_probs_rollout": engine.tolist(), "step": step}
    found = check(rows, limit=0).findings
    assert [one.severity for one in found if one.code == "reference"] == severity


@each("change", [-0.9, 0.9, -1.6])
def test_one_word_that_the_engine_scores_differently_is_no_temperature(change):
    """It is rarer than others, so that all tokens have a slope; the others alone have none."""
    draw, rows, hotter = np.random.default_rng(0), [], []
    for _ in range(4):
        word = np.arange(10) == draw.integers(4, 11, (32, 1))  # in 6 responses of 7
        old = np.where(
            word, draw.uniform(-4.0, -3.0, word.shape), draw.uniform(-3.0, -1.5, word.shape)
        )
        old = np.minimum(old + draw.normal(0.0, 0.3, word.shape), -0.01)
        engine = np.minimum(old + draw.normal(0.0, 0.004, word.shape) + change * word, -1e-6)
        scaled = old - np.log(-np.expm1(old))
        row = {"log_probs_new": old, "log_probs_old": old, "rewards": np.arange(32.0) % 2}
        rows.append(row | {"log_probs_rollout": engine})
        hotter.append(row | {"log_probs_rollout": -np.log1p(np.exp(-1.1 * scaled))})
    as_lists = [
        [{name: one.tolist() for name, one in row.items()} for row in some]
        for some in (rows, hotter)
    ]
    found = [{code for code, _ in worst(some)} for some in as_lists]
    assert "temperature" not in found[0]
    assert found[1] == {"temperature"}


def test_a_reference_with_the_next_response_s_first_token_is_found():
    rows = policies(8)
    for row in rows:
        reference = row["log_probs_ref"]
        for own, following in zip(reference, [*reference[1:], reference[0]], strict=True):
            own[-1] = following[0]
    assert {code for code, _ in worst(rows)} == {"last-token"}
    for row in rows:  # training moves the end of text away from the reference
        for own in row["log_probs_ref"]:
            own[-1] -= 3.0
    assert "last-token" not in {code for code, _ in worst(rows)}
    for row in rows:  # a reference that is certain of both tokens
        for own in row["log_probs_ref"]:
            own[0] = own[-1] = 0.0
    assert "last-token" not in {code for code, _ in worst(rows)}


def test_one_token_in_one_context_is_no_shifted_label():
    """The policy has one value at both tokens too, so that the reference has by right."""
    rows = policies(8)
    for row in rows:
        for name in ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"):
            row[name] = [[own[0], *own[1:-1], own[0]] for own in row[name]]
            row[name] = [[row[name][0][0], *own[1:-1], row[name][0][0]] for own in row[name]]
    assert "last-token" not in {code for code, _ in worst(rows)}


def ending(change: Any) -> list[dict[str, Any]]:
    """Records of an engine that agrees but for the last tokens, which are changed."""
    draw, rows = np.random.default_rng(4), []
    for _ in range(16):
        old = -draw.exponential(0.8, (6, 10)) - 0.01
        engine = old + draw.normal(0.0, 0.02, old.shape)
        engine[:, -1] = change(old[:, -1], draw)
        columns = {"log_probs_old": old, "log_probs_rollout": np.minimum(engine, -1e-6)}
        rows.append({name: one.tolist() for name, one in columns.items()})
        rows[-1] |= {"log_probs_new": rows[-1]["log_probs_old"], "rewards": [0.0, 1.0] * 3}
    return rows


@each(
    ("change", "wanted"),
    [
        # labels of other sequences, in each or in every second one of a pack
        (lambda own, draw: -draw.uniform(4.0, 12.0, own.shape), True),
        (lambda own, draw: np.where(np.arange(6) % 2, own, own - draw.uniform(4, 12, 6)), True),
        # older weights, under which the likely ends are as likely and others are not
        (lambda own, draw: own * 1.5, False),
        (lambda own, draw: np.where(draw.random(6) < 0.1, own - 1.2, own), False),
        # one of six, fewer than the sequences of a pack would be
        (lambda own, draw: own - (np.arange(6) == 2) * draw.uniform(4.0, 12.0), False),
    ],
)
def test_last_tokens_of_other_labels_and_of_older_weights(change, wanted):
    codes = {code for code, _ in worst(ending(change))}
    assert ("last-token" in codes) is wanted


# ---- the order of advantages ---------------------------------------------------------------------


def scored(rewards: Any, change: Any) -> dict[str, Any]:
    rewards = np.array(rewards, dtype=float)
    given = (rewards - rewards.mean()) / rewards.std(ddof=1)
    draw = np.random.default_rng(9)
    columns = {"log_probs_new": draw.normal(-3, 0.5, (len(rewards), 6)).tolist()}
    return columns | {"rewards": rewards.tolist(), "advantages": change(given).tolist()}


@each(
    ("change", "severe"),
    [
        (lambda given: given[::-1], ["error"]),
        (lambda given: np.roll(given, 3), ["error"]),
        (lambda given: given, []),
    ],
)
def test_advantages_of_sparse_rewards_in_another_order_are_found(change, severe):
    """One right response of eight has seven pairs, of which one is reversed."""
    rows = [scored(np.eye(8)[at], change) for at in (0, 2, 5, 6)]
    found = [one for one in check(rows).findings if one.code == "advantages"]
    assert [one.severity for one in found] == severe
    # another function of 0 and 1 may give as many of each in three groups, and not in a fourth
    rows[3]["advantages"] = scored(np.eye(8)[1] + np.eye(8)[4], change)["advantages"]
    assert not any("different orders" in one.message for one in check(rows).findings)


@each("name", ["old", "rollout"])
def test_a_shift_names_the_column_that_two_others_contradict(name):
    rows = policies(5)
    for row in rows:
        row[f"log_probs_{name}"] = [[*one[1:], -0.4] for one in row[f"log_probs_{name}"]]
    found = [one for one in check(rows).findings if one.code == "shifted"]
    assert found
    assert all(f"move log_probs_{name} to the right by one token" in one.advice for one in found)


def test_two_responses_that_exchanged_their_advantages_are_found():
    """2 of 28 pairs are reversed, which a penalty might explain, but all advantages are known."""
    rewards = [0.1, 0.2, 0.35, 0.4, 0.55, 0.6, 0.7, 0.9]
    exchanged = scored(rewards, lambda given: given[[0, 1, 3, 2, 4, 5, 6, 7]])
    (found,) = (one for one in check([exchanged]).findings if one.severity != "info")
    assert (found.code, found.severity, found.response) == ("advantages", "error", 2)
    assert found.evidence == {"responses": 2, "of": 8}
    shaped = scored(rewards, lambda given: given + 0.02 * np.arange(8) * (-1) ** np.arange(8))
    assert not worst([shaped])


def test_advantages_of_other_groups_are_found_and_a_wrong_sign_is_none():
    """Sorted, all are those of the rewards; with one of another function they are not."""
    right = [1, 2, 3, 5, 6, 2]
    rows = [scored(np.arange(8) < count, lambda given: given) for count in right]
    given = [row["advantages"] for row in rows]
    moved = [
        row | {"advantages": one} for row, one in zip(rows, given[1:] + given[:1], strict=True)
    ]
    found = [one for one in check(moved).findings if one.severity == "error"]
    assert [(one.code, one.evidence["responses"]) for one in found] == [("advantages", 48)]
    other = {"advantages": scored(np.arange(8) < 4, lambda given: given)["advantages"]}
    messages = [one.message for one in check([*moved[:5], moved[5] | other]).findings]
    assert not any("different orders" in one for one in messages)
    negated = [scored(np.arange(8) < count, np.negative) for count in (2, 3, 5, 6)]
    messages = [one.message for one in check(negated).findings if one.severity == "error"]
    assert messages
    assert all("opposite sign" in one for one in messages)


def test_negated_advantages_of_groups_of_two_are_found():
    """One pair of a record proves nothing; nine of ten of at least ten records do."""
    draw = np.random.default_rng(5)
    right, negated = (
        [scored(rewards, change) for rewards in draw.random((20, 2))]
        for change in (np.positive, np.negative)
    )
    (found,) = (one for one in check(negated).findings if one.severity == "error")
    assert (found.code, found.evidence) == ("advantages", {"discordant": 1.0, "pairs": 20})
    assert "opposite sign" in found.message
    (found,) = (one for one in check(right[:1] + negated[1:]).findings if one.severity == "error")
    assert found.evidence == {"discordant": 0.95, "pairs": 20}
    for rows in (right, negated[:9], right[:2] + negated[2:], right[:10] + negated[10:]):
        assert not any("opposite sign" in one.message for one in check(rows).findings)


def test_groups_that_follow_no_formula_are_found_where_nearly_all_follow_one():
    """Three different rewards are too few for the rules on single groups."""
    rewards = [0.0, 0.5, 0.5, 1.5, 1.5, 1.5]
    right = [scored(np.roll(rewards, at), np.positive) for at in range(24)]
    turned = scored(rewards, lambda given: given[[0, 3, 2, 1, 4, 5]])
    odd = scored(rewards, lambda given: given[[0, 3, 2, 1, 4, 5]] + 0.1 * np.eye(6)[0])
    less = scored(rewards, lambda given: given - 0.2 * (np.arange(6) == 5))  # a penalty

    def judge(rows: list[dict[str, Any]]) -> list[tuple[str, Any, int]]:
        found = [one for one in check(rows).findings if one.code == "advantages"]
        return [(one.severity, one.record, one.evidence.get("follow", 0)) for one in found]

    assert judge([*right, turned]) == [("error", 24, 24)]
    assert judge([*right[:5], turned]) == [("error", 5, 5)]
    assert judge([*right, odd]) == [("warning", 24, 24)]
    for rows in ([*right, less], [*right[:9], odd], [*right[:3], turned], [*right, *[odd] * 7]):
        assert not any(follow for _, _, follow in judge(rows))


def test_the_first_finding_that_is_printed_is_the_first(tmp_path):
    rewards = np.arange(8.0)
    rows = [scored(rewards, change) for change in (np.negative, np.positive, np.positive)]
    rows[1] = scored(rewards, lambda given: given[[0, 1, 3, 2, 4, 5, 6, 7]])
    path = tmp_path / "rows.jsonl"
    order = rows[0], rows[1], rows[0], rows[0]
    path.write_bytes(
        b"\n".join(orjson.dumps(row | {"step": at}) for at, row in enumerate(order, 3))
    )
    printed = command.run("check", path, "-q").stdout
    assert printed.index("4 findings, the first at step 3") < printed.index("rows.jsonl:1")
    assert printed.index("rows.jsonl:1") < printed.index("rows.jsonl:2")


def test_pooled_records_have_no_place_of_a_single_one():
    draw, rows = np.random.default_rng(6), []
    for at in range(8):
        old = -draw.exponential(0.8, (2, 8)) - 0.01
        columns = {"log_probs_old": old, "log_probs_rollout": old * draw.uniform(0.5, 1.5, (2, 8))}
        rows.append({name: one.tolist() for name, one in columns.items()})
        rows[-1] |= {"log_probs_new": rows[-1]["log_probs_old"], "rewards": [0.0, 1.0], "id": at}
    (found,) = (one for one in check(rows).findings if one.code == "rollout-mismatch")
    assert found.pooled == found.evidence["records"] > 1
    assert found.where.startswith(f"{found.pooled} short records from record")


@each(
    ("prompts", "moved", "side"),
    [(1, -1, "left"), (1, 1, "right"), (1, 0, None), (8, 0, None), (0, 0, None)],
)
def test_ids_belong_to_the_log_probs(prompts, moved, side):
    """Of a model that looks at one token back, with an engine's noise.

    Eight responses to one prompt or each to another; and log-probs of no model.
    """
    draw = np.random.default_rng(7)
    logits = draw.normal(0.0, 1.5, (12, 12))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = []
    for _ in range(12):
        asked = draw.integers(0, 12, max(prompts, 1)).repeat(8 // max(prompts, 1))
        ids = np.empty((8, 6), dtype=int)
        new = np.empty((8, 6))
        for row, at in np.ndindex(8, 6):
            before = ids[row, at - 1] if at else asked[row]
            ids[row, at] = draw.choice(12, p=chances[before])
            new[row, at] = np.log(chances[before, ids[row, at]])
        noise = 1.0 if prompts == 0 else 0.002
        columns = {
            f"log_probs_{name}": np.minimum(new + draw.normal(0.0, noise, new.shape), -1e-6)
            for name in ("new", "old")
        }
        around = np.column_stack([asked, ids, draw.integers(0, 12, 8)])
        columns["token_ids"] = around[:, 1 - moved : 7 - moved]
        lists = {name: values.tolist() for name, values in columns.items()}
        rows.append({"rewards": [0.0, 1.0] * 4} | lists)
    found = [one for one in check(rows).findings if one.code == "shifted"]
    assert len(found) == (side is not None)
    for one in found:
        assert one.message.startswith(f"token_ids is shifted by one token to the {side} of ")
        other = {"left": "right", "right": "left"}[one.message.split(" of ")[0].split()[-1]]
        assert one.advice.endswith(f": move token_ids to the {other} by one token")
        assert one.evidence["differing"] <= one.evidence["pairs"] <= 12 * 7
