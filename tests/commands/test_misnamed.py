"""Nobody becomes on-policy by a misspelt key: what every command says, however records are read."""

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files import each, some
from formats import dumps
from fuzz import product

from grpo_cli import InputError, check, compare, evaluate, match, verify

DATA = {
    "nemo-rl": dumps.nemo_rl(),
    "prime-rl": dumps.prime_rl(),
    "open-instruct": dumps.open_instruct(),
    "roll-board": dumps.roll_board(),
    "unipo": dumps.unipo_lines(),
    "openai-chat": [dumps.chat()],
    "openai-completion": [dumps.completion()],
    "sglang": dumps.sglang(),
    "verifiers": dumps.verifiers(),
    "miles": dumps.miles(),
    "atif": [dumps.atif()],
}
"""What frameworks write: the records of each."""

ROWS = [[-0.5, -0.25], [-0.75]]
OLDER = [[-0.75, -0.5], [-0.5]]
RECORD = {"logprobs": ROWS, "old_lp": OLDER, "rewards": [1.0, 0.0], "step": 1}


@pytest.fixture
def dump(tmp_path):
    def write(*records, name="a.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
        return str(path)

    return write


def test_from_python(dump):
    """The same error, which says what to do there."""
    wanted = 'record["log_probs_old"] = record["old_lp"] reads it'
    for call in (
        lambda: evaluate(RECORD, "dr"),
        lambda: evaluate(dump(RECORD), "dr", totals_only=True),
        lambda: compare(RECORD, ["opo", "dr"]),
        lambda: match(RECORD, loss=0.0123),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.path.endswith("old_lp")
        assert wanted in str(caught.value) or "--map log_probs_old=old_lp" in str(caught.value)
    told = evaluate({**RECORD, "log_probs_old": OLDER}, "dr")
    assert told.notices == ["ignored columns: old_lp"]


def test_check_reports_an_error(dump):
    """Wherever the misspelt key is, so that a gate in CI stops there."""
    (one,) = check(RECORD).findings
    assert (one.severity, one.code) == ("error", "on-policy")
    assert 'record["log_probs_old"] = record["old_lp"] reads it' in one.advice
    rows = [
        {"logprobs": ROWS[k], "old_lp": OLDER[k], "rewards": float(k), "uid": "a"} for k in (0, 1)
    ]
    assert check(dump(RECORD, RECORD)).counts["on-policy"] == 2
    assert check(dump(*rows, name="rows.jsonl")).severities["error"] == 2
    assert check({**RECORD, "log_probs_old": OLDER}).severities["error"] == 0


# ---- every way of reading ---------------------------------------------------------------------


def made(count, seed=5, **keys):
    """Records of unequal sizes; every third has a name that is not read."""
    random_ = random.Random(seed)
    found = []
    for at in range(count):
        widths = [random_.randint(1, 6) for _ in range(random_.randint(1, 4))]
        rows = [[-random_.random() for _ in range(width)] for width in widths]
        one = {"log_probs_new": rows, "rewards": [random_.random() for _ in rows]}
        if at % 3:
            one["log_probs_old"] = [[x - 0.1 for x in row] for row in rows]
        for key, make in keys.items():
            one[key] = make(at, rows)
        found.append(one)
    return found


def outcome(path, *flags, jobs=1, size=1 << 22):
    """Everything that an evaluation says."""
    words = ["eval", str(path), *(flags or ("-v", "dr")), "--level", "batch", "-f", "csv"]
    with product.blocks_of(size):
        made = product.run([*words, "--jobs", str(jobs)])
    notices = [line.removeprefix("grpo: note: ") for line in made.err.decode().splitlines()]
    return made.code, notices, made.out


def old_lp(at, rows):
    return [[x - 0.2 for x in row] for row in rows]


def odd(at, rows):
    """A column, but in the first record."""
    return "none" if at == 0 else rows


KEYS = {"old_lp": old_lp, "odd": odd, "returns": lambda at, rows: rows, "note": lambda *_: "x"}


@pytest.mark.more
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("kind", ["lines", "array", "gzip"])
def test_the_same_wherever_text_is_cut(tmp_path, kind, skip):
    """The first record with a set of keys decides, not the first of a block."""
    records = made(60, **KEYS)[1:] + made(60, **KEYS)
    text = "".join(json.dumps(one) + "\n" for one in records)
    path = tmp_path / "a"
    if kind == "array":
        text = json.dumps(records)
    path.write_bytes(gzip.compress(text.encode()) if kind == "gzip" else text.encode())
    flags = ("-v", "dr", "--on-error", "skip") if skip else ("-v", "dr")
    ways = ((1, 1), (2, 700), (1, 900), (3, 2000))
    found = [outcome(path, *flags, jobs=1, size=1 << 22)]
    found += [outcome(path, *flags, jobs=jobs, size=size) for jobs, size in some(ways, 2)]
    assert all(one == found[0] for one in found)
    code, notices, _ = found[0]
    assert code == 3
    place = "[2].old_lp" if kind == "array" else ":3: old_lp"
    assert any(place in one for one in notices[:2])
    (said,) = [one for one in notices if one.startswith("ignored columns")]
    assert "returns" in said
    assert "note" not in said


def test_the_first_record_with_its_keys_decides(tmp_path):
    """Here ``odd`` is no column; whatever stands behind it, and wherever blocks end."""
    path = tmp_path / "a.jsonl"
    records = made(40, odd=odd, returns=lambda at, rows: rows)
    for one in records:
        one.pop("log_probs_old", None)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    found = [outcome(path, size=size) for size in (1 << 22, 1, 500)]
    assert all(one == found[0] for one in found)
    assert "ignored columns: returns" in found[0][1]


def rows_of_a_group():
    rows = [
        {"logprobs": [-0.5 - at / 8] * (1 + at % 3), "reward": at % 2 + 0.5, "uid": f"u{at // 2}"}
        for at in range(8)
    ]
    return [
        one | {"old_lp": [x - 0.5 for x in one["logprobs"]], "returns": one["logprobs"]}
        for one in rows
    ]


@pytest.mark.parametrize("row", ["dr", "opo"])
@pytest.mark.parametrize(
    "kind", some(["parquet", "arrow", "npz", "lines by uid", "parquet by uid"], 3)
)
def test_tables_and_rows_of_a_group(tmp_path, kind, row):
    """A group's is told by its first row's place, in the names of the file."""
    rows = [[-0.5, -0.25, -0.125], [-0.75, -1.0, -0.5]]
    one = {"logprobs": rows, "old_lp": rows, "returns": rows, "rewards": [1.0, 0.5]}
    many, (form, *by) = [one] * 5, kind.split(" by ")
    path, flags = tmp_path / f"a.{form}", ["-v", row]
    if by:
        many, flags = rows_of_a_group(), [*flags, "--group-by", *by]
    if form == "npz":
        np.savez(path, **one)
    elif form == "lines":
        path.write_text("".join(json.dumps(one) + "\n" for one in many))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(many), path, row_group_size=2 + len(by))
    else:
        table = pa.Table.from_pylist(many)
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    found = [outcome(path, *flags, jobs=jobs, size=size) for jobs, size in ((1, 1 << 22), (2, 1))]
    assert found[0] == found[1]
    code, notices, _ = found[0]
    if row == "opo":
        assert code == 0
        assert notices[0] == "ignored columns: old_lp (--map log_probs_old=old_lp), returns"
    else:
        said = "old_lp: log_probs_old is missing, but the variant dr needs it; this key is not read"
        assert said in notices[-1] or said.replace("old_lp: ", "") in notices[-1]
        assert not by or (":1: " if form == "lines" else "[0].") in notices[-1]


# ---- silence ----------------------------------------------------------------------------------


@each("text", [
    *("".join(json.dumps(one) + "\n" for one in records) for records in DATA.values()),
    *map(json.dumps, (dumps.ms_swift(), dumps.roll_columns(), dumps.unipo())),
    *map(json.dumps, dumps.texts().values()),
])  # fmt: skip
def test_what_frameworks_write_is_read_in_silence(tmp_path, grpo, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    result = grpo("check", str(path), "--on-error", "skip")
    assert "look like columns" not in result.stderr


@pytest.mark.more
def test_settings_elsewhere_and_swapped_letters(dump):
    """Nothing that a user meant for the loss is passed over without a word."""
    given = {"logprobs": ROWS, "old_logprobs": OLDER, "rewards": [1.0, 0.0]}
    held = dump(given | {"config": {"epsilon": 0.05, "lr": 1e-6}})
    assert evaluate(held).notices[0] == "hyperparameters are read from config.epsilon"
    assert not [one for one in evaluate(held, epsilon=0.05).notices if "ignored settings" in one]
    trl = {"per_token_logps": ROWS, "old_per_token_logps": OLDER, "rewards": [1.0, 0.0]}
    named = dump(trl | {"settings": {"loss_type": "bnpo"}})
    assert "the records' settings are trl/bnpo's" in evaluate(named).notices[0]
    known = given | {"hyperparameters": {"epsilon": 0.1}, "config": {"epsilon": 0.05}}
    assert not [one for one in evaluate(dump(known)).notices if "ignored" in one]
    swapped = {"logprobs": ROWS, "log_prob_odl": OLDER, "rewards": [1.0, 0.0]}
    with pytest.raises(InputError, match="log_probs_old is missing"):
        evaluate(dump(swapped))
    assert (
        "the records' settings are dapo's" in evaluate(dump(given | {"variant": "dapo"})).notices[0]
    )
    for framework in ("trl/dapo", {"name": "trl/dapo"}):
        named = dump(given | {"framework": framework, "expected": {"loss": 1.0}})
        assert "the records' settings are trl/dapo's" in evaluate(named).notices[0]
        assert verify(named).records[0].variant == "trl/dapo"
    other = evaluate(dump(given | {"framework": "huggingface/trl"}))
    assert not [one for one in other.notices if "the records' settings are" in one]


@pytest.mark.parametrize("key", ["adv", "advs", "token_advantages", "rollout_advantages"])
def test_advantages_under_another_name_are_named(key: str) -> None:
    record = {"logprobs": ROWS, "rewards": [1.0, 0.0], key: [0.5, -0.5]}
    told = f'ignored columns: {key} (record["advantages"] = record["{key}"])'
    assert told in evaluate(record, "dr").notices
    record |= {"adv_mean": [0.0, 0.0], "advantages": [0.5, -0.5]}
    assert f"ignored keys: {key}, adv_mean" in evaluate(record, "dr").notices


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("clip_range", "epsilon"),
        ("ppo_clip", "epsilon"),
        ("cliprange", "epsilon"),
        ("kl_beta", "beta"),
        ("beta_kl", "beta"),
        ("kl_loss_weight", "beta"),
        ("clip_fraction", ""),
        ("ppo_kl", ""),
        ("kl_loss", ""),
        ("grad_clip", ""),
    ],
)
def test_settings_under_another_name_are_named(key: str, name: str) -> None:
    record = {"logprobs": ROWS, "rewards": [1.0, 0.0], key: 0.1}
    told = evaluate(record, "dr").notices
    found = [one.partition("?")[0] for one in told if one.startswith("ignored")]
    assert found == ([f"ignored settings: {key} (is this {name}"] if name else [])
    if name:  # a number that resembles what is known is what the trainer logs
        found = evaluate(record | {name: 0.2}, "dr").notices
        assert not [one for one in found if one.startswith("ignored")]


def test_records_of_which_only_some_have_advantages_are_noted() -> None:
    bare = {"logprobs": ROWS, "rewards": [1.0, 0.0]}
    told = evaluate([bare, bare | {"advantages": [0.5, -0.5]}]).notices
    assert any(one.startswith("only some records have advantages") for one in told)


_CONFIGURATION = {"loss_type": "dapo", "scale_rewards": "none", "temperature": 0.9, "betas": [0.9]}


@pytest.mark.parametrize("holder", ["hyperparameters", "settings", "training_args"])
def test_a_trainers_configuration_is_read_and_what_it_chooses_is_named(holder: str) -> None:
    record = {"logprobs": ROWS, "ref_logprobs": OLDER, "rewards": [1.0, 0.0]}
    given = record | {holder: _CONFIGURATION | {"beta": 0.02, "epsilon": 0.3}}
    told = evaluate(given)
    assert told.objective == evaluate(record, beta=0.02, epsilon=0.3).objective
    choice = f"{holder}.loss_type 'dapo', {holder}.scale_rewards 'none' are not applied"
    flags = 'variant="trl/dapo" stages={"advantage": "group-mean"}'
    assert f"{choice}: {flags} applies them" in told.notices
    own = holder == "hyperparameters"
    ignored = ["ignored keys: hyperparameters.temperature, hyperparameters.betas"] if own else []
    assert [one for one in told.notices if one.startswith("ignored")] == ignored
    read = f"hyperparameters are read from {holder}.beta, {holder}.epsilon"
    assert (read in told.notices) is not own
    chosen = evaluate(given, "trl/dapo", stages={"advantage": "group-mean"})
    assert not any("not applied" in one for one in chosen.notices)


def test_own_hyperparameters_go_before_those_of_a_configuration() -> None:
    record = {"logprobs": ROWS, "ref_logprobs": OLDER, "rewards": [1.0, 0.0]}
    both = record | {"hyperparameters": {"beta": 0.02}, "config": {"beta": 0.3}}
    assert evaluate(both).objective == evaluate(record, beta=0.02).objective
    mixed = [record | {"config": {"beta": 0.3}}, both]
    wanted = [evaluate(record, beta=beta).objective for beta in (0.3, 0.02)]
    assert [*evaluate(mixed).columns("record")["objective"]] == wanted


def test_every_misspelt_hyperparameter_is_named_at_once() -> None:
    record = {"logprobs": ROWS, "rewards": [1.0, 0.0]}
    misspelt = {"betta": 0.1, "loss_type": "grpo", "clip": 0.2, "epsilonHigh": 0.3}
    with pytest.raises(InputError) as caught:
        evaluate(record | {"hyperparameters": misspelt})
    assert caught.value.path == "hyperparameters.betta"
    assert caught.value.message == (
        "unknown hyperparameter; did you mean beta? Also unknown: clip (epsilon (which is "
        "epsilon_low and epsilon_high)?), epsilonHigh (epsilon_high?)"
    )


def test_hyperparameters_in_a_nested_configuration_are_named() -> None:
    actor = {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_low": 0.1, "betta": 0.3}
    record = {"logprobs": ROWS, "rewards": [1.0, 0.0], "config": {"actor": actor}}
    told = evaluate(record, "dr").notices
    assert (
        'ignored settings: config.actor.clip_ratio_low (record["clip_ratio_low"] = '
        'record["config"]["actor"]["clip_ratio_low"]), config.actor.betta (is this beta? '
        'record["beta"] = record["config"]["actor"]["betta"])'
    ) in told
    choice = "config.actor.policy_loss.loss_mode 'gspo' is not applied"
    assert f'{choice}: variant="verl/gspo" applies it' in told


def test_a_whole_configuration_of_trl_is_read() -> None:
    """Fields of GRPOConfig 1.7 that are null, deprecated, or near a hyperparameter's name."""
    configuration = {
        "reward_weights": None,
        "vllm_importance_sampling_clip_max": 3.0,
        "vllm_importance_sampling_cap": None,
        "epsilon_high": None,
        "entropy_coef_min": 0.0,
        "vllm_importance_sampling_mode": "sequence_mask",
        "adam_beta1": 0.9,
        "adam_epsilon": 1e-8,
        "seed": 42,
        "loss_type": "dapo",
        "scale_rewards": "group",
    }
    record = {"logprobs": ROWS, "rewards": [1.0, 0.0], "hyperparameters": configuration}
    told = evaluate(record, "dr")
    assert told.objective == evaluate(record | {"hyperparameters": {}}, "dr").objective
    choice = "hyperparameters.loss_type 'dapo' is not applied"
    assert f'{choice}: variant="trl/dapo" applies it' in told.notices


@pytest.mark.parametrize("holder", ["hyperparameters", "args", ""])
def test_a_coefficient_that_is_switched_off_is_0(holder: str) -> None:
    record = {"logprobs": ROWS, "ref_logprobs": OLDER, "rewards": [1.0, 0.0]}
    for switch, beta in ((False, 0.0), (True, 0.5)):
        settings = {"kl_loss_coef": 0.5, "use_kl_loss": switch}
        told = evaluate(record | ({holder: settings} if holder else settings))
        assert told.objective == evaluate(record, beta=beta).objective
        assert not any("use_kl_loss" in one for one in told.notices)
