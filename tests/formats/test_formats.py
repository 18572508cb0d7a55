"""Each format reads as the same data under canonical names, and says what it lacks."""

import json

import pytest
from files import evaluation, records

from formats import dumps
from formats.dumps import ADVANTAGES, GROUPS, IDS, NEW, OLD, REF, REWARDS, WORDS, lines
from grpo_cli.commands.eval.nested import encode_nested as encode_json
from grpo_cli.errors import InputError
from grpo_cli.records import PLAIN, Raw, Source, assemble, formats, record
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.formats import FORMATS, candidates
from grpo_cli.records.formats.format import is_row, is_rows
from grpo_cli.records.formats.unipo import headed, header_of
from grpo_cli.records.translate import format_of, translated
from grpo_cli.variants.plan import plan

BY_SIZE = Grouping(size=2)


@pytest.fixture
def read(tmp_path):
    """What a file's bytes are read as: records, notes, and the errors in place of records."""

    def run(data, **options):
        path = tmp_path / "dump.jsonl"
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        notes = {}
        return records(path, notes, **options), list(notes)

    return run


def columns(records):
    """What counts, response after response: one dict of lists for all the records."""
    batches = [assemble([one]) for one in records]
    names = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout", "rewards")
    names += ("advantages", "token_advantages", "entropies")
    flat = {
        name: [x for batch in batches for x in getattr(batch, name).tolist()]
        for name in names
        if getattr(batches[0], name) is not None
    }
    flat["lengths"] = [x for batch in batches for x in batch.responses.lengths.tolist()]
    return flat


def flat(rows):
    return [one for row in rows for one in row]


def by_token(values):
    return flat([value] * len(row) for value, row in zip(values, NEW, strict=True))


EXPECTED = {
    "nemo-rl": {
        "log_probs_new": flat(NEW),
        "log_probs_old": flat(NEW),
        "log_probs_rollout": flat(OLD),
        "rewards": REWARDS,
        "token_advantages": by_token(ADVANTAGES),
        "lengths": [2, 3, 1, 2],
    },
    "prime-rl": {
        "log_probs_new": flat(NEW),
        "log_probs_old": flat(OLD),
        "log_probs_rollout": flat(OLD),
        "rewards": REWARDS,
        "token_advantages": by_token(ADVANTAGES),
        "entropies": [0.5] * 8,
        "lengths": [2, 3, 1, 2],
    },
    "open-instruct": {
        "log_probs_new": flat(NEW),
        "log_probs_old": flat(NEW),
        "log_probs_rollout": flat(NEW),
        "rewards": REWARDS,
        "advantages": ADVANTAGES,
        "lengths": [2, 3, 1, 2],
    },
    "roll-board": {
        "log_probs_new": flat(NEW),
        "log_probs_old": flat(OLD),
        "log_probs_ref": flat(REF),
        "rewards": REWARDS,
        "entropies": [0.5] * 8,
        "lengths": [2, 3, 1, 2],
    },
    "unipo": {
        "log_probs_new": flat(NEW),
        "log_probs_old": flat(OLD),
        "log_probs_ref": flat(REF),
        "rewards": REWARDS,
        "token_advantages": None,
        "advantages": ADVANTAGES,
        "lengths": [2, 3, 1, 2],
    },
    "openai-chat": {
        "log_probs_new": flat(NEW[:2]),
        "log_probs_old": flat(NEW[:2]),
        "log_probs_rollout": flat(NEW[:2]),
        "lengths": [2, 3],
    },
    "sglang": {
        "log_probs_new": flat(NEW),
        "log_probs_old": flat(NEW),
        "log_probs_rollout": flat(NEW),
        "lengths": [2, 3, 1, 2],
    },
}
EXPECTED["verifiers"] = {
    "log_probs_new": flat(NEW),
    "log_probs_old": flat(NEW),
    "log_probs_ref": flat(REF),
    "log_probs_rollout": flat(NEW),
    "rewards": REWARDS,
    "token_advantages": by_token(ADVANTAGES),
    "lengths": [2, 3, 1, 2],
}
EXPECTED["atif"] = {
    "log_probs_new": flat(NEW[:2]),
    "log_probs_old": flat(NEW[:2]),
    "log_probs_rollout": flat(NEW[:2]),
    "rewards": [1.0],
    "lengths": [5],
}
EXPECTED["miles"] = EXPECTED["sglang"]
EXPECTED["openai-completion"] = EXPECTED["openai-chat"]
DATA = {
    "nemo-rl": lines(dumps.nemo_rl()),
    "prime-rl": lines(dumps.prime_rl()),
    "open-instruct": lines(dumps.open_instruct()),
    "roll-board": lines(dumps.roll_board()),
    "unipo": lines(dumps.unipo_lines()),
    "openai-chat": lines([dumps.chat()]),
    "openai-completion": lines([dumps.completion()]),
    "sglang": lines(dumps.sglang()),
    "verifiers": lines(dumps.verifiers()),
    "miles": lines(dumps.miles()),
    "atif": json.dumps(dumps.atif(), indent=2).encode(),
}


@pytest.mark.parametrize("name", DATA)
def test_read_as_it_is(read, name):
    records, notes = read(DATA[name])
    wanted = {key: value for key, value in EXPECTED[name].items() if value is not None}
    assert columns(records) == wanted
    assert notes[0] == f"read as {name} ({FORMATS[name].title})"
    assert notes[1 : 1 + len(FORMATS[name].lacks)] == [f"{name}: {x}" for x in FORMATS[name].lacks]


def test_what_a_format_says_beside_numbers():
    """Steps, ids and groups, as the trainers name them."""

    def said(value):
        (one,) = translated([Raw(value, "a", 1, "", 0)], None, (), {})
        return {key: one.value.get(key) for key in ("id", "group_ids", "meta")}

    assert said(dumps.open_instruct()[1]) == {
        "id": None,
        "group_ids": [GROUPS[1]],
        "meta": {"step": 3, "sample_idx": 1, "finish_reason": "stop", "dataset": "gsm8k"},
    }
    episode = dumps.verifiers()[3]
    assert said(episode) == {
        "id": "episode-3", "group_ids": f"g{GROUPS[3]}", "meta": {"step": 12},
    }  # fmt: skip
    episode["run"]["work"]["policy"] = {"start": 7}
    del episode["group"]
    assert said(episode) == {
        "id": "episode-3", "group_ids": None, "meta": {"step": 12, "policy_version": 7},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ({"header": {}, "entries": []}, True),
        ({"header": [], "entries": []}, False),
        ({"header": {}, "entries": {}}, False),
        ({"type": "header"}, True),
        ({"type": "step", "step": 1}, True),
        ({"type": "step"}, False),
        ({"type": "other", "step": 1}, False),
    ],
)
def test_what_is_taken_for_unipo(value, known):
    rest = {"prompts": [], "metrics": {}, "task": "math", "algorithm": "grpo"}
    found = [name for name in (format_of(rest | value, None),) if name is not None]
    assert [one.name for one in found] == ["unipo"] * known


@pytest.mark.parametrize(
    "name", ["nemo-rl", "prime-rl", "open-instruct", "roll-board", "sglang", "verifiers"]
)
def test_rows_put_together(read, name):
    apart, _ = read(DATA[name])
    together, _ = read(DATA[name], grouping=BY_SIZE)
    assert len(apart) == 4
    assert len(together) == 2
    assert columns(apart) == columns(together)
    assert all(len(one.widths) == 2 for one in together)


def test_insisting(read):
    records, _ = read(DATA["prime-rl"], format="nemo-rl")
    assert "this is not what NeMo-RL train_data_step{N}.jsonl looks like" in str(records[0])
    records, _ = read(DATA["prime-rl"], format="canonical")
    assert isinstance(records[0], InputError)
    assert columns(read(DATA["prime-rl"], format="prime-rl")[0]) == EXPECTED["prime-rl"]


def test_canonical_records_are_not_looked_at_twice():
    assert candidates(("log_probs_new", "log_probs_old", "rewards", "mask")) == ()


def test_nemo_rl_masks_the_dummy_padding_and_dropped_samples(read):
    rows = dumps.nemo_rl(9)
    rows[0]["token_loss_mask"] = [[1] * 9]  # even there, index 0 and the padding do not count
    rows[1]["sample_loss_mask"] = [0.0]
    rows[2]["prev_logprobs"][0][-1] = float("nan")
    records, _ = read(lines(rows))
    assert [assemble([one]).responses.lengths.tolist() for one in records] == [[3], [0], [1], [2]]
    assert assemble(records[2:3]).positions.tolist() == [1]


def test_nemo_rl_with_dynamic_sampling(read):
    rows = dumps.nemo_rl()
    for row in rows:
        row["filtered_rewards"], row["rewards"] = row["rewards"], [9.0]
    assert columns(read(lines(rows))[0])["rewards"] == REWARDS


def test_nemo_rl_by_prompt(read):
    data = lines(dumps.nemo_rl())
    records, _ = read(data, grouping=Grouping(by=(("prompt",),)))
    assert [len(one.widths) for one in records] == [2, 2]


def test_prime_rl_without_rewards_and_advantages(read):
    rows = dumps.prime_rl()
    for row in rows:
        row["rewards"] = row["advantages"] = [None] * len(row["token_ids"])
    found = columns(read(lines(rows))[0])
    assert "rewards" not in found
    assert "token_advantages" not in found


def test_open_instruct_allows_nan_and_says_where_it_counts(read):
    rows = dumps.open_instruct()
    rows[1]["logprobs"] = [-1.0, float("nan"), -2.0]
    (one, two, *_), _ = read(lines(rows))
    assert assemble([one]).responses.total == 2
    with pytest.raises(InputError, match=r"dump.jsonl:2: logprobs\[1\]: .* got NaN"):
        assemble([two])
    rows[1]["logprobs"] = None
    assert "saved no log-probs" in str(read(lines(rows))[0][1])


def test_columns_with_log_probs(read):
    more = {"log_probs_new": NEW, "log_probs_old": OLD}
    (one,), notes = read({**dumps.ms_swift(), **more})
    batch = assemble([one])
    assert batch.groups.tolist() == GROUPS
    assert one.reward_names == ("accuracy_reward", "format_reward")
    assert batch.rewards[:, 0].tolist() == REWARDS
    assert notes[0].startswith("read as columns")
    (one,), _ = read({**dumps.roll_columns(), **more})
    assert assemble([one]).rewards.tolist() == REWARDS


@pytest.mark.parametrize("value", [dumps.ms_swift(), dumps.roll_columns()])
def test_columns_without_log_probs(read, value):
    assert "no log-probs: nothing can be evaluated" in str(read(value)[0][0])


@pytest.mark.parametrize("name", dumps.texts())
def test_texts(read, name):
    (error,), _ = read(dumps.texts()[name])
    advice = {
        "verl": "grpo_cli.hooks.verl has it write them",
        "trl-completions": "record(trainer, path) of grpo_cli.hooks.trl has it write them",
    }.get(name, "have the trainer write log-probs as well")
    assert str(error).endswith(f"but no log-probs: nothing can be evaluated; {advice}")
    assert FORMATS[name].title in str(error)


def test_unipo_document(read):
    records, _ = read(json.dumps(dumps.unipo(), indent=1).encode())
    assert columns(records) == {k: v for k, v in EXPECTED["unipo"].items() if v is not None}
    assert [one.id for one in records] == ["4.0", "4.1"]
    assert records[0].tokens == WORDS[:2]
    assert records[0].hyperparameters == {
        "epsilon_high": 0.3,
        "epsilon_low": 0.3,
        "gamma": 1.0,
    }


def test_unknown_log_probs_do_not_count(read):
    value = dumps.chat([[-9999.0, -1.25], [-0.75, None, -2.0]])
    (one,), notes = read(value)
    batch = assemble([one])
    assert batch.log_probs_new.tolist() == [-1.25, -0.75, -2.0]
    assert batch.positions.tolist() == [1, 0, 2]
    assert "tokens without a log-prob (null, or the sentinel -9999.0) do not count" in notes


def test_pieces_of_characters(read):
    value = dumps.chat([[-0.5, -1.0]], [["\ufffd", "x"]])
    value["choices"][0]["logprobs"]["content"][0]["bytes"] = [0xE2, 0x82]
    (one,), _ = read(value)
    assert one.tokens == [["\\xe2\\x82", "x"]]
    assert one.token_ids == [IDS[0]]


def test_echo_of_unknown_length(read):
    value = dumps.completion()
    del value["usage"]
    (one,), notes = read(value)
    assert assemble([one]).responses.lengths.tolist() == [3, 4]
    assert any(note.startswith("with echo the prompt is in the answer") for note in notes)


def test_batch_output_of_openai(read):
    value = {"id": "b", "custom_id": "q1", "response": {"status_code": 200, "body": dumps.chat()}}
    (one,), _ = read(value)
    assert one.id == "q1"
    assert columns([one]) == EXPECTED["openai-chat"]


def test_an_id_of_sglang(read):
    value = dumps.sglang()[0]
    assert read(value)[0][0].id == "r0"
    assert read({**value, "id": "mine"})[0][0].id == "mine"
    del value["meta_info"]["id"]
    assert read(value)[0][0].id is None


def test_keys_that_only_one_format_has_decide():
    """NeMo-RL writes its texts beside them, and anyone may keep lists of prompts."""
    (row, *_) = json.loads(b"[" + DATA["nemo-rl"].replace(b"\n", b",")[:-1] + b"]")
    row |= {"content": ["t"], "input_lengths": [4], "idx": 0}
    row |= {"prompt": ["p"], "completion": ["c"], "step": 1, "advantage": [0.5]}
    found = formats.recognise(row)
    assert [one.name for one in candidates(tuple(row))] == [
        *("nemo-rl", "columns", "nemo-rl-texts", "trl-completions"),
    ]
    assert found is not None
    assert found.name == "nemo-rl"


NOT_QUITE = [
    ("nemo-rl", {"token_ids": [1, 2]}),
    ("nemo-rl", {"prev_logprobs": [-1.0]}),
    ("nemo-rl", {"prev_logprobs": []}),
    ("prime-rl", {"trainer_logprobs": [[-1.0]]}),
    ("prime-rl", {"inference_logprobs": "text"}),
    ("open-instruct", {"response_tokens": [[1]]}),
    ("open-instruct", {"response_tokens": "text"}),
    ("roll-board", {"logprobs": [[-1.0]]}),
    ("roll-board", {"log_probs2": 1.0}),
    ("sglang", {"meta_info": []}),
    ("sglang", {"meta_info": {"output_token_logprobs": None}}),
    ("openai-chat", {"choices": []}),
    ("openai-chat", {"choices": {}}),
    ("openai-chat", {"choices": [{"logprobs": None}, {}]}),
    ("openai-chat", {"choices": [{"logprobs": None}, 1]}),
    ("miles", {"tokens": [[1]]}),
    ("miles", {"rollout_log_probs": None}),
    ("atif", {"schema_version": "1.4"}),
    ("atif", {"steps": {}}),
    ("verifiers", {"traces": []}),
    ("verifiers", {"traces": [{"nodes": [], "rewards": {}}, {"nodes": {}}]}),
]


@pytest.mark.parametrize(("name", "change"), NOT_QUITE)
def test_what_has_the_keys_of_a_format_and_other_values(name, change):
    text = DATA[name]
    value = json.loads(text) if name == "atif" else json.loads(text.splitlines()[0])
    assert formats.recognise(value).name == name
    found = format_of({**value, **change}, None)
    assert found is None or found.name != name


def test_a_file_in_the_folder_is_a_format(tmp_path, monkeypatch):
    source = "from grpo_cli.records.formats.atif import ATIF\nFORMATS = (ATIF,)"
    (tmp_path / "of_a_test.py").write_text(source)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    assert [one.name for one in formats._stated()].count("atif") == 2


def test_rewards_beside_the_answers(read):
    (one,), _ = read({**dumps.chat(), "rewards": [1, 0]})
    assert one.rewards == [1.0, 0.0]


BROKEN = [
    ("nemo-rl", "prev_logprobs", [[0.5] * 7], r"dump.jsonl:1: prev_logprobs\[0\]\[2\]: .* got 0.5"),
    ("nemo-rl", "rewards", ["x"], r"dump.jsonl:1: rewards\[0\]: expected a number"),
    ("nemo-rl", "filtered_rewards", ["x"], r"dump.jsonl:1: filtered_rewards\[0\]: expected a num"),
    ("miles", "rollout_log_probs", [-1, 0.5], r":1: rollout_log_probs\[1\]: .* got 0.5"),
    ("miles", "loss_mask", [1, 2], r"dump.jsonl:1: loss_mask\[1\]: .* got 2"),
    ("prime-rl", "trainer_logprobs", [0, 0, -1, 0.5], r"trainer_logprobs\[3\]: .* got 0.5"),
    ("roll-board", "logprobs", [-1, 2, 0], r"dump.jsonl:1: logprobs\[1\]: .* got 2"),
    ("roll-board", "logprobs", [-1, 2], r":1: logprobs: expected 3 .*\(as log_probs2 has\)"),
    ("open-instruct", "reward", "x", 'dump.jsonl:1: reward: expected a number, got "x"'),
]


@pytest.mark.parametrize(("name", "key", "value", "message"), BROKEN)
def test_errors_name_what_stands_in_the_file(read, name, key, value, message):
    (first, *rest) = json.loads(b"[" + DATA[name].replace(b"\n", b",")[:-1] + b"]")
    (one, *_), _ = read(lines([{**first, key: value}, *rest]))
    with pytest.raises(InputError, match=message):
        raise one if isinstance(one, InputError) else _fault(one)


def _fault(one):
    with pytest.raises(InputError) as caught:
        assemble([one])
    return caught.value


def test_errors_inside_documents(read):
    value = dumps.unipo()
    value["entries"][0]["prompts"][1]["responses"][0]["tokens"]["log_probs"] = [0.5]
    (_, two), _ = read(value)
    place = "entries[0].prompts[1].responses[0].tokens.log_probs[0]"
    assert f": {place}: expected a log-prob <= 0, got 0.5" in str(_fault(two))
    value = dumps.chat()
    value["choices"][1]["logprobs"]["content"][2]["logprob"] = "x"
    (one,), _ = read(value)
    assert "choices[1].logprobs.content[2].logprob: expected a number" in str(one)


def test_map(read):
    value = {"out": {"lp": NEW, "old": [OLD]}, "score": REWARDS, "rewards.x": 1, "logps": "text"}
    mapped = (("log_probs_new", ("out", "lp")), ("log_probs_old", ("out", "old", 0)))
    (one,), _ = read(value, mapped=mapped)
    assert columns([one])["log_probs_old"] == flat(OLD)
    value["out"]["old"] = [[OLD[0], [-1.0, -1.0, True], *OLD[2:]]]
    (one,), _ = read(value, mapped=mapped)
    assert str(one).endswith(": out.old[0][1][2]: expected a number, got true")
    (one,), _ = read(value, mapped=(("log_probs_new", ("out", "no")),))
    assert str(one).endswith(": out.no: expected log_probs_new here (--map), found nothing")


def test_map_on_top_of_a_format(read):
    rows = [{**row, "logs": {"reward": 7.0}} for row in dumps.sglang()]
    records, _ = read(lines(rows), mapped=(("rewards", ("logs", "reward")),))
    assert columns(records)["rewards"] == [7.0] * 4


def test_both_masks_of_skyrl(read):
    masks = {"response_mask": [[1, 1], [1, 1, 1]], "loss_mask": [[1, 0], [1, 1, 1]]}
    (one,), notes = read({"log_probs_new": NEW[:2], "rewards": [1, 0], **masks})
    assert assemble([one]).responses.lengths.tolist() == [1, 3]
    assert notes == ["loss_mask was used, not response_mask, which is there as well"]
    masks["loss_mask"] = None
    (one,), notes = read({"log_probs_new": NEW[:2], "rewards": [1, 0], **masks})
    assert isinstance(one, InputError) or one.mask is None


def test_groups_at_the_top(read):
    (one,), _ = read({"log_probs_new": NEW, "rewards": REWARDS, "groups": ["x", "x", "y", "y"]})
    assert one.groups == GROUPS
    assert one.group_labels == ["x", "y"]
    for other in (4, [{"size": 2}], {"a": 1}):
        (one,), _ = read({"log_probs_new": NEW, "rewards": REWARDS, "groups": other})
        assert one.groups is None
    ids = {"groups": ["x"] * 4, "uid": [0, 0, 1, 1]}
    (one,), _ = read({"log_probs_new": NEW, "rewards": REWARDS, **ids})
    assert one.group_labels == [0, 1]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("bytes_", [1, 300, 1 << 20])
def test_same_bytes_for_any_block(tmp_path, name, bytes_):
    path = tmp_path / "dump.jsonl"
    path.write_bytes(DATA[name])
    wanted = plan("dr", stages={"kl": "none", "advantage": "given"})

    def run(size, jobs):
        made = wanted if "advantages" in str(EXPECTED[name]) else plan("dr")
        options = {"skip": True, "jobs": jobs, "block_bytes": size}
        found = evaluation(path, made, encode=_encode, **options)
        return [*found], found.total, found.notices

    one, other = run(1 << 20, 1), run(bytes_, 1)
    assert b"".join(flat(one[0])) == b"".join(flat(other[0]))
    assert one[1:] == other[1:]


def _encode(records, breakdown):
    return encode_json(records, breakdown, level="token", fields=None)


def test_verifiers_counts_a_node_that_two_branches_share_once(read):
    """As prime-rl's iter_trainable_branches (orchestrator/trajectories.py:69-90)."""
    episode = dumps.verifiers()[1]
    nodes = episode["traces"][0]["nodes"]
    shared = nodes[1]
    tool = {"parent": 1, "sampled": False, "token_ids": [7], "mask": [False], "logprobs": []}
    leaf = {**shared, "parent": 2, "token_ids": [8], "mask": [True], "logprobs": [-0.5]}
    leaf |= {"advantages": [2.0], "reference_logprobs": [-0.25]}
    nodes += [tool, leaf, {**leaf, "logprobs": [-0.75]}]
    (record,), _ = read(lines([episode]))
    batch = assemble([record])
    assert batch.responses.lengths.tolist() == [4, 1]
    assert batch.log_probs_new.tolist() == [*NEW[1], -0.5, -0.75]
    assert batch.positions.tolist() == [0, 1, 2, 4, 0]
    assert batch.rewards.tolist() == [REWARDS[1]] * 2


def test_atif_without_log_probs_is_told(read):
    value = dumps.atif()
    value["steps"][1]["metrics"]["completion_token_ids"] = [1]
    ((error,), _) = read(lines([value]))
    assert "steps[1].metrics.logprobs: expected 1 log-probs (as completion_token_ids" in str(error)
    for turn in value["steps"]:
        turn.get("metrics", {}).pop("logprobs", None)
    ((error,), _) = read(lines([value]))
    assert "turns have no metrics.logprobs: nothing can be evaluated" in str(error)
    assert (error.signal.rewards, error.signal.lengths) == ([1.0], [5])


def test_texts_say_rewards_lengths_groups_and_steps(read):
    """What there is of a run without log-probs; TRL's reward functions count equally."""
    given = dumps.texts()
    given["trl-completions"] |= {"accuracy": 1.0, "format": 0.5, "other": None, "solved": True}
    found = {}
    for name, value in given.items():
        ((error,), _) = read(lines([value]))
        found[name] = tuple(error.signal)[:4]
    assert found["verl"] == ([1.0], [None], "p", 3)
    assert found["trl-completions"] == ([1.5], [None], "p", 1)
    assert found["areal"] == ([1.0], [5], 1, None)
    assert found["tinker"][0] == [1.0]
    assert found["nemo-rl-texts"][0] == [1.0]


def test_the_header_of_unipo_reaches_the_objects_of_an_array(tmp_path):
    """As it reaches lines; a step that has settings of its own keeps them."""
    header, step = dumps.unipo_lines()
    own = {**step, "header": {"hparams": {"clip_eps": 0.5}}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps([header, step, own]))
    wanted = {"gamma": 1.0, "epsilon_low": 0.3, "epsilon_high": 0.3}
    (block,) = PLAIN.pieces(str(path), 1000, as_spans=True)
    found = [record(raw).hyperparameters for raw in PLAIN.raws(block, {})]
    half = len(found) // 2
    assert half
    assert found[:half] == [wanted] * half
    assert found[half:] == [{"epsilon_low": 0.5, "epsilon_high": 0.5}] * half


def test_the_header_of_unipo_reaches_its_lines(tmp_path):
    """Wherever the file is cut; flags still win."""
    header, step = dumps.unipo_lines()
    path = tmp_path / "run.jsonl"
    path.write_bytes(lines([header, *({**step, "step": at} for at in range(8))]))
    settings = {"gamma": 1.0, "epsilon_low": 0.3, "epsilon_high": 0.3}
    pieces = list(PLAIN.pieces(str(path), 1000, as_spans=True))
    assert len(pieces) > 3
    assert PLAIN.ranges(Source.of(str(path)), 1000) is None  # one task of a cluster reads it
    for piece in pieces:
        for found in PLAIN.raws(piece, {}):
            assert record(found).hyperparameters == settings
    run = evaluation(path, plan("dr", hyperparameters={"epsilon_low": 0.1}))
    list(run)
    assert "low=0.1,high=0.3" in run.signature


def test_verifiers_without_log_probs_is_told(read):
    episode = dumps.verifiers()[0]
    for node in episode["traces"][0]["nodes"]:
        node |= {"logprobs": [], "token_ids": [], "mask": []}
    (error,), _ = read(lines([episode]))
    assert "no sampled token has a log-prob" in str(error)


def test_verifiers_with_a_circle_is_told(read):
    episode = dumps.verifiers()[0]
    episode["traces"][0]["nodes"][0]["parent"] = 1
    (error,), _ = read(lines([episode]))
    assert isinstance(error, InputError)


def test_the_token_ids_of_miles_are_those_of_the_response(read):
    records, _ = read(DATA["miles"])
    assert [one.token_ids for one in records] == [[row] for row in IDS]


def test_the_mask_of_miles_counts_where_it_is_there(read):
    row = dumps.miles()[1]
    count = len(NEW[1])
    (masked,), _ = read(lines([{**row, "loss_mask": [0] + [1] * (count - 1)}]))
    assert columns([masked])["log_probs_new"] == NEW[1][1:]
    (whole,), _ = read(lines([{**row, "loss_mask": None}]))
    assert columns([whole])["log_probs_new"] == NEW[1]


def test_a_rank_of_miles_has_a_list_for_each_field(read):
    """miles 31f1ca9, miles/utils/train_dump_utils.py:25-45."""
    columns_of_rank = {
        "tokens": [prompt + ids for prompt, ids in zip(dumps.PROMPTS, IDS, strict=True)],
        "response_lengths": [len(row) for row in IDS],
        "loss_masks": [[1] * len(row) for row in IDS],
        "raw_reward": REWARDS,
        "log_probs": NEW,
        "rollout_log_probs": OLD,
        "global_batch_sizes": [4],
    }
    payload = {"rollout_id": 5, "rank": 0, "rollout_data": columns_of_rank, "cp_size": 1}
    (record,), _ = read(lines([payload]))
    found = columns([record])
    assert found["log_probs_rollout"] == flat(OLD)
    assert found["rewards"] == REWARDS
    assert record.groups == GROUPS


# ---- what is made of odd files ----------------------------------------------------------------


def made(value):
    """The values of an object's records, as its format gives them."""
    return list(format_of(value, None).read(value))


NEMO = {
    "token_ids": [[5, 6, 7, 8, 0]],
    "token_loss_mask": [[0, 0, 1, 1, 0]],
    "prev_logprobs": [[0, -1, -1, -1, 0]],
    "input_lengths": [4],
}


@pytest.mark.parametrize(
    ("change", "mask", "prompt"),
    [
        ({}, [0, 0, 1, 1, 0], [5, 6]),
        ({"token_loss_mask": [[0.0, False, 1.0, True, 0]]}, [0, 0, 1, 1, 0], [5, 6]),
        ({"token_loss_mask": [[1, 1, 1, 1, 1]]}, [0, 1, 1, 1, 0], [5]),
        ({"token_loss_mask": [[1] * 5], "input_lengths": None}, [0, 1, 1, 1, 1], [5]),
        ({"token_loss_mask": [[1] * 5], "input_lengths": [1]}, [0] * 5, [5, 6, 7, 8, 0]),
        ({"token_loss_mask": [[1] * 5], "input_lengths": [0]}, [0] * 5, [5, 6, 7, 8, 0]),
        ({"token_loss_mask": [[0, 2, 1, -1, 0]]}, [0, 2, 1, -1, 0], [5, 6]),
        ({"sample_loss_mask": [0.0]}, [0] * 5, [5, 6, 7, 8, 0]),
        ({"sample_loss_mask": [1]}, [0, 0, 1, 1, 0], [5, 6]),
    ],
)
def test_the_tokens_of_the_loss_of_nemo_rl(change, mask, prompt):
    (one,) = made({**NEMO, "idx": 3, "step": 0, **change})
    assert (one.value["mask"], one.value["prompt"]) == ([mask], prompt)
    assert all(type(bit) is int for bit in one.value["mask"][0])
    assert one.value["meta"] == {"idx": 3, "step": 0}


def test_fields_of_a_framework_that_are_no_rows():
    for name in ("token_ids", "prev_logprobs"):
        assert format_of({**NEMO, name: [1.0]}, None) is None


def test_every_other_number_of_trls_completions_is_a_reward():
    value = {"step": 3, "prompt": "p", "completion": "c", "advantage": 7.0, "images": 9}
    with pytest.raises(InputError) as caught:
        made({**value, "accuracy": 0.25, "format": 0.5})
    assert caught.value.signal.rewards == [0.75]


@pytest.mark.parametrize(
    ("column", "reward"),
    [
        *[(0.5, 0.5), ([0.5, 0.5, 0.5], 0.5), ([9.0, 0.5, 0.5], 0.5), ([None, 0.5, 0.5], 0.5)],
        *[([9.0, None, 0.5], 0.5), ([0.5, 0.5, 0.75], None), ([0.5, None, None], None)],
    ],
)
def test_the_reward_of_prime_rl_is_that_of_the_tokens_that_count(column, reward):
    log_probs = {"trainer_logprobs": [0, -1.0, -2.0], "inference_logprobs": [0, -1.0, -2.0]}
    (one,) = made({**log_probs, "loss_mask": [False, True, True], "rewards": column})
    assert one.value.get("rewards") == (None if reward is None else [reward])


def test_the_step_of_a_board_of_roll_is_kept():
    (one,) = made({**dumps.roll_board()[0], "step": 4, "prompt": "p"})
    assert (one.value["meta"], one.value["prompt"]) == ({"step": 4}, "p")


def test_a_fault_in_rows_put_together_is_told_where_the_framework_wrote_it(read):
    data = dumps.sglang()
    data[1]["meta_info"]["output_token_logprobs"][1][0] = "x"
    (error, *_), _ = read(lines(data), grouping=BY_SIZE)
    place = "dump.jsonl:2: meta_info.output_token_logprobs[1][0]: expected a number"
    assert place in str(error)


def test_several_samples_of_nemo_rl_have_no_prompt():
    (one,) = made({name: rows * 2 for name, rows in NEMO.items()})
    assert "prompt" not in one.value
    assert one.value["mask"] == [[0, 0, 1, 1, 0]] * 2


def turn(log_probs, ids=None, count=None):
    about = {"logprobs": log_probs, "completion_token_ids": ids, "completion_tokens": count}
    return {"source": "agent", "metrics": {k: v for k, v in about.items() if v is not None}}


@pytest.mark.parametrize(
    ("turns", "ids", "left_out"),
    [
        ([turn([-1.0], [5], 1), turn([-2.0, -3.0], [6, 7], 2)], [5, 6, 7], 0),
        ([turn([-1.0], [5]), turn([-2.0, -3.0], [6, 7]), turn([], None, 4)], [5, 6, 7], 1),
        ([turn(None, None, 4), turn([-1.0, -2.0, -3.0], [5, 6, 7]), turn(None)], [5, 6, 7], 1),
        ([turn(None, None, 4), turn([-1.0]), turn([-2.0, -3.0], [6, 7]), turn([], [], 9)], None, 2),
        ([turn([-1.0, -2.0, -3.0])], None, 0),
    ],
)
def test_the_turns_of_atif_are_one_response(turns, ids, left_out):
    head = {"schema_version": "ATIF-v1.4", "agent": {}, "session_id": "s"}
    (one,) = made({**head, "steps": [{"source": "user"}, *turns]})
    numbers = [[-1.0, -2.0, -3.0]]
    expected = {"id": "s", "log_probs_new": numbers, "log_probs_rollout": numbers}
    assert one.value == expected | ({} if ids is None else {"token_ids": [ids]})
    note = f"atif: {left_out} turns have no log-probs and are left out"
    assert list(one.notes) == [note][: bool(left_out)]
    first = next(at for at, step in enumerate(turns, 1) if step["metrics"].get("logprobs"))
    assert one.spelled == {"log_probs_new": f"steps[{first}].metrics.logprobs"}


@pytest.mark.parametrize(
    ("counts", "length"), [([3, 4], 7), ([3, None], 3), ([3, "4"], None), ([None], None)]
)
def test_how_long_a_trajectory_is(counts, length):
    value = {"schema_version": "ATIF", "agent": {}, "steps": [turn(None, None, c) for c in counts]}
    with pytest.raises(InputError) as caught:
        made(value)
    assert caught.value.signal.lengths == [length]


NODES = [
    {"token_ids": [7, 8], "mask": [False, True], "logprobs": [-1.0], "advantages": [0.5]},
    {"parent": 0, "mask": [False, False]},
    {"parent": 1, "token_ids": [9], "mask": [True], "logprobs": [-2.0], "advantages": [0.25]},
    {"parent": 2, "token_ids": [4], "mask": [True]},
]


@pytest.mark.parametrize("without", [None, 0, 2])
def test_nodes_of_verifiers_are_laid_side_by_side(without):
    """From the first token that counts on; a column of which one that counts is unknown is none."""
    nodes = [dict(node) for node in NODES]
    if without is not None:
        del nodes[without]["advantages"]
    (one,) = made({"traces": [{"nodes": nodes}], "task": "t"})
    assert one.value["token_ids"] == [[8, 0, 0, 9, 4]]
    assert one.value["mask"] == [[1, 0, 0, 1, 0]]
    assert one.value["log_probs_new"] == [[-1.0, 0.0, 0.0, -2.0, 0.0]]
    wanted = [[0.5, 0.0, 0.0, 0.25, 0.0]] if without is None else None
    assert one.value.get("advantages") == wanted
    assert "log_probs_ref" not in one.value


ENGINE = "verifiers: logprobs, the sampling engine's, stand for the old policy, as in prime-rl"
NO_TRAINER = (
    "verifiers: no trainer_logprobs: logprobs, the sampling engine's, are read as log_probs_new, "
    "so every ratio is 1"
)
TRAINER = [{"trainer_logprobs": [-1.5]}, {}, {"trainer_logprobs": [-2.5]}, {}]
ENTROPIES = [{"entropies": [0.3]}, {}, {"entropies": [0.4]}, {}]
OF_ALL = [  # a number for each token, as verifiers' loss_weights have
    {"trainer_logprobs": [-9.0, -1.5], "entropies": [9.0, 0.3]},
    {"trainer_logprobs": [-9.0, -9.0], "entropies": [9.0, 9.0]},
    {"trainer_logprobs": [-2.5], "entropies": [0.4]},
    {},
]
SPREAD = [[-1.5, 0.0, 0.0, -2.5, 0.0]]
LOGPROBS = [[-1.0, 0.0, 0.0, -2.0, 0.0]]


@pytest.mark.parametrize(
    ("added", "new", "entropies", "notes"),
    [
        ([{}] * 4, LOGPROBS, None, (NO_TRAINER,)),
        (TRAINER, SPREAD, None, (ENGINE,)),
        (ENTROPIES, LOGPROBS, [[0.3, 0.0, 0.0, 0.4, 0.0]], (NO_TRAINER,)),
        (OF_ALL, SPREAD, [[0.3, 0.0, 0.0, 0.4, 0.0]], (ENGINE,)),
        (
            [*TRAINER[:1], {}, {}, {}],
            LOGPROBS,
            None,
            (
                "verifiers: trainer_logprobs is left out: not every sampled token has it",
                NO_TRAINER,
            ),
        ),
    ],
)
def test_what_a_trainer_added_to_the_nodes_of_verifiers(added, new, entropies, notes):
    """Its log-probs are the policy's, and the engine's the old ones and those that sampled."""
    nodes = [node | more for node, more in zip(NODES, added, strict=True)]
    (one,) = made({"traces": [{"nodes": nodes}], "task": "t"})
    assert one.value["log_probs_new"] == new
    assert one.value["log_probs_rollout"] == LOGPROBS
    assert one.value.get("log_probs_old") == (LOGPROBS if new == SPREAD else None)
    assert one.value.get("entropies") == entropies
    assert one.notes == notes


def test_the_trainers_log_probs_of_verifiers_are_evaluated(read, tmp_path):
    """Two tokens of ratio e^(−0.5), and their entropies; the others have a ratio of 1."""
    episodes = dumps.verifiers()
    for at, episode in enumerate(episodes):
        node = episode["traces"][0]["nodes"][1]
        node["trainer_logprobs"] = [one - (0.5 if at == 0 else 0.0) for one in NEW[at]]
        node["entropies"] = [0.25] * len(NEW[at])
    batch = assemble(read(lines(episodes))[0])
    assert batch.log_probs_old.tolist() == flat(NEW)
    moved = [one - 0.5 for one in NEW[0]]
    assert batch.log_probs_new.tolist() == moved + flat(NEW[1:])
    assert batch.entropies.tolist() == [0.25] * 8


def test_what_is_no_episode_of_verifiers():
    for traces in ([], [{"nodes": NODES}, {"nodes": None}], [{}]):
        assert format_of({"traces": traces, "task": "t"}, None) is None
    nodes = [{**NODES[0], "logprobs": [-1.0, -2.0]}]
    with pytest.raises(InputError, match=r"expected 1 log-probs \(one for each sampled.*, got 2"):
        made({"nodes": nodes, "task": "t", "agent": {}})
    nodes = [{**NODES[0], "entropies": [0.5] * 3}]
    with pytest.raises(InputError, match=r"expected 1 entropies \(one for each sampled.*, got 3"):
        made({"nodes": nodes, "task": "t", "agent": {}})


@pytest.mark.parametrize("parents", [(1, 0, 1), (None, 2, 1, 2), (None, 1)])
def test_a_node_that_is_its_own_ancestor(read, parents):
    episode = dumps.verifiers()[0]
    node = episode["traces"][0]["nodes"][0]
    episode["traces"][0]["nodes"] = [
        {**node, "parent": one} for one in (*parents, len(parents) - 1)
    ]
    (error,), _ = read(lines([episode]))
    assert isinstance(error, InputError)


PLACE = "rollout_position"
SAMPLES = [
    {"tokens": [1, 5, 6], "response_lengths": 2, "log_probs": [-1.0, -2.0], "rewards": 0.5},
    {"tokens": [1, 7], "response_lengths": 1, "log_probs": [-3.0], "rewards": -0.5},
]


@pytest.mark.parametrize(
    ("first", "second", "top", "name", "expected"),
    [
        ({}, {}, {}, "rewards", [0.5, -0.5]),
        ({"raw_reward": 1}, {"raw_reward": 0}, {}, "rewards", [1, 0]),
        ({}, {}, {"raw_reward": [3, 4]}, "rewards", [3, 4]),
        (
            {PLACE: 1},
            {PLACE: 0},
            {"raw_reward": [3, 4]},
            "rewards",
            [4, 3],
        ),
        (
            {PLACE: 1},
            {PLACE: 2},
            {"raw_reward": [3, 4]},
            "rewards",
            [3, 4],
        ),
        (
            {PLACE: -1},
            {PLACE: 0},
            {"raw_reward": [3, 4]},
            "rewards",
            [3, 4],
        ),
        ({PLACE: 1}, {}, {"raw_reward": [3, 4]}, "rewards", [3, 4]),
        ({}, {}, {"raw_reward": [3]}, "rewards", [0.5, -0.5]),
        ({"truncated": 1}, {"truncated": 0}, {}, "truncated", [1, 0]),
        ({"truncated": 1}, {}, {}, "truncated", None),
        ({"entropy": [1, 2]}, {"entropy": [3]}, {}, "entropies", [[1, 2], [3]]),
        ({"entropy": [1, 2]}, {"entropy": None}, {}, "entropies", None),
        ({}, {}, {}, "token_ids", [[5, 6], [7]]),
        ({}, {}, {}, "group_ids", [0, 0]),
        ({"tokens": [2, 5, 6]}, {}, {}, "group_ids", [0, 1]),
        ({"tokens": None}, {}, {}, "token_ids", None),
    ],
)
def test_samples_of_slime(first, second, top, name, expected):
    samples = [SAMPLES[0] | first, SAMPLES[1] | second]
    (one,) = made({"rollout_id": 7, "samples": samples, **top})
    assert one.value.get(name) == expected
    assert one.value["log_probs_new"] == [[-1.0, -2.0], [-3.0]]
    assert one.spelled["log_probs_new"] == "samples[{r}].log_probs[{t}]"


def test_choices_without_log_probs_are_told(read):
    value = dumps.chat()
    value["choices"][1]["logprobs"] = None
    (error,), _ = read(value)
    place = "choices[1].logprobs: expected log-probs (ask the server for logprobs), got none"
    assert str(error).endswith(place)
    for choices in ([], {}, [value["choices"][0], {"text": "a"}], [value["choices"][0], "a"]):
        assert format_of({**value, "choices": choices}, None) is None


@pytest.mark.parametrize(
    ("numbers", "prompt", "mask"),
    [
        ([[None, -1, -2], [-3, -4]], 2, [[0, 0, 1], [1, 1]]),
        ([[None, -1, -2], [None, -3]], 2, [[0, 0, 1], [0, 0]]),
        ([[None, -1, -2], []], 9, [[0, 0, 0], []]),
        ([[None, -1, -2], [-9999.0]], None, [[0, 1, 1], [0]]),
        ([[-1, -2], [-3]], 1, None),
    ],
)
def test_the_prompt_of_an_echo_does_not_count(numbers, prompt, mask):
    value = {"choices": [{"logprobs": {"token_logprobs": row}} for row in numbers]}
    (one,) = made({**value, "usage": {"prompt_tokens": prompt}})
    assert one.value.get("mask") == mask
    assert any("echo" in note for note in one.notes) == (prompt is None)


@pytest.mark.parametrize(
    ("triples", "words", "mask"),
    [
        ([[-1, 5, "a"], [-2, 6, "b"]], [["a", "b"]], None),
        ([[-1, 5, "a"], [-2, 6, None]], None, None),
        ([[-1, 5, "a"], [-2, 6]], None, None),
        ([[None, 5, "a"], [-2, 6, "b"]], [["a", "b"]], [[False, True]]),
    ],
)
def test_triples_of_sglang(triples, words, mask):
    (one,) = made({"meta_info": {"id": "x", "output_token_logprobs": triples}})
    assert (one.value.get("tokens"), one.value.get("mask")) == (words, mask)
    assert (one.value["token_ids"], one.value["id"]) == ([[5, 6]], "x")
    assert len(one.notes) == (mask is not None)


@pytest.mark.parametrize(
    ("turns", "length"),
    [([{"ac_len": 3}, {"ac_len": 4}], 7), ([{"ac_len": 3}, {}], 3), ([], None), (None, None)],
)
def test_how_long_a_rollout_of_tinker_is(turns, length):
    value = {"group_idx": 1, "traj_idx": 2, "total_reward": 0.5, "steps": turns}
    with pytest.raises(InputError) as caught:
        made(value)
    assert caught.value.signal.lengths == [length]


@pytest.mark.parametrize(
    ("first", "header"),
    [
        (b'{"type":"header","hparams":{"a":1}}', b'{"header":{"hparams":{"a":1}},'),
        *[(text, b"") for text in (
            b'{"type":"header"}', b'{"type":"step","hparams":1,"x":"header"}', b'{"hparams":1}',
            b'{"header" "hparams"', b'["header","hparams"]', b'{"type":"header","x":"hparams"',
        )],
    ],
)  # fmt: skip
def test_the_header_of_a_file_of_unipo(first, header):
    assert header_of(first) == header
    step = b'{"type":"step","step":1}'
    assert headed([first, step], header) == [first, header + step[1:] if header else step]


def test_a_step_of_unipo_is_carried_and_what_is_missing_is_named(read):
    value = dumps.unipo()
    value["entries"][0]["step"] = 12
    prompts = value["entries"][0]["prompts"]
    assert {one.value["step"] for one in made(value)[: len(prompts)]} == {12}
    responses = prompts[0]["responses"]
    prompts[0]["responses"] = responses = [{**one} for one in (*responses, *responses)]
    for one in responses[1:3]:
        one["reward"] = None
    (error, *_), _ = read(value)
    assert ": entries[0].prompts[0].responses[1].reward: expected a value" in str(error)


@pytest.mark.parametrize(
    ("value", "row", "rows"),
    [
        *[([], True, False), ([1, [2]], True, False), ([[1], 2], False, False)],
        *[([{}], False, False), ([[1], []], False, True), (None, False, False)],
        *[((1, 2), False, False), ("ab", False, False), ([[1], {}], False, False)],
    ],
)
def test_what_is_a_row_of_tokens(value, row, rows):
    assert (is_row(value), is_rows(value)) == (row, rows)
