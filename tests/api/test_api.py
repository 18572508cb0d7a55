"""What the commands do, as functions: the same bits, by the names of arguments."""

from __future__ import annotations

import base64
import doctest
import gzip
import json
import os
import pickle
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from command import answer, run
from files import each

import grpo_cli
from grpo_cli import (
    GrpoError,
    InputError,
    check,
    compare,
    diff,
    evaluate,
    match,
    read,
    show,
    trend,
    verify,
)

DATA = Path(__file__).parent.parent / "data"
SAMPLES = Path(__file__).parents[2] / "samples"
DAPO = str(DATA / "rollouts/trl-1.16.0-dapo.jsonl")
VERL = str(DATA / "verl-0.9.1.jsonl")
GRPO = str(DATA / "trl-1.16.0-grpo.jsonl")
EMPTY = {
    "id": "some",
    "log_probs_new": [[-0.9, -0.2, -1.3], [-1.1, -0.4]],
    "log_probs_old": [[-1.0, -0.25, -1.6], [-1.0, -0.9]],
    "mask": [[1, 0, 1], [0, 0]],
    "rewards": [[1.0, 0.5], [0.0, 0.25]],
    "tokens": [["a", "b", "c"], ["d", "e"]],
}
"""A masked token, a response without tokens, two reward functions."""
SAMPLED = {name: value for name, value in EMPTY.items() if name != "rewards"} | {
    "log_probs_rollout": [[-0.95, -0.3, -1.5], [-1.0, -0.9]],
    "rewards": [1.0, 0.0],
}


ONE = {"log_probs": [[-0.5], [-0.7]], "old_log_probs": [[-0.6], [-0.6]], "rewards": [1.0, 0.0]}


def printed(*arguments: str) -> bytes:
    """What a command prints on standard output."""
    return run(*arguments).stdout_bytes


@pytest.mark.parametrize("path", [DAPO, VERL])
def test_files_give_the_totals_of_the_command(path: str) -> None:
    found = evaluate(path, "dapo", epsilon_high=0.3, aggregate="token-sum")
    flags = ("--epsilon-high", "0.3", "--aggregate", "token-sum", "--json", "-q")
    wanted = printed("eval", path, "-v", "dapo", *flags)
    assert dict(found.total) == json.loads(wanted)["total"]
    assert found.signature == json.loads(wanted)["signature"]
    stages = {"aggregate": "token-sum"}
    alone = evaluate(path, "dapo", epsilon_high=0.3, totals_only=True, stages=stages)
    assert alone.total == found.total


@pytest.mark.parametrize("variant", ["dapo", "lite-ppo"])
def test_records_in_memory_are_one_batch_as_those_of_files(variant: str) -> None:
    records = list(read(DAPO))
    for record in records:
        del record["advantages"]
        record["rewards"] = [float(i % 3) for i in range(len(record["log_probs_new"]))]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    result = run("eval", "-v", variant, "--json", "-q", stdin=lines)
    assert dict(evaluate(records, variant).total) == json.loads(result.stdout)["total"]


def test_arrays_and_what_makes_lists_are_data_and_stay_as_they_are() -> None:
    class Tensor(list):  # type: ignore[type-arg]
        def tolist(self) -> list[Any]:
            return [float(value) for value in self]

    given = dict(EMPTY, rewards=np.array([1, 0]), mask=(Tensor([1, np.int64(0), 1]), (0, 0)))
    before = repr(given)
    found = evaluate(given, "dr")
    assert repr(given) == before
    assert found.total == evaluate(EMPTY | {"rewards": [1, 0]}, "dr").total


def test_read_yields_what_convert_writes() -> None:
    wanted = [json.loads(line) for line in printed("convert", VERL, "-q").splitlines()]
    assert list(read(VERL)) == wanted
    assert [one["id"] for one in read([DAPO, VERL])][:1] == ["dapo/0"]
    assert next(read(DAPO, record="dapo/3"))["id"] == "dapo/3"
    assert len(list(read(DAPO, where="id==dapo/3"))) == 1


@pytest.mark.more
def test_what_is_too_large_packed_is_read_as_its_error_says(tmp_path: Path) -> None:
    path = tmp_path / "padded.npz"
    arrays = dict.fromkeys(("log_probs_new", "log_probs_old"), np.zeros((8, 1 << 17)))
    np.savez_compressed(path, rewards=np.arange(8.0), **arrays)
    for refused in (lambda: evaluate(path), lambda: next(read(path))):
        with pytest.raises(
            InputError, match=r'; if the file is correct, read\(…, unpack="256M"\) reads'
        ):
            refused()
    for size in ("256M", 256 << 20):
        assert evaluate(read(path, unpack=size)).total["tokens"] == 1 << 20


@pytest.mark.parametrize("level", ["record", "response", "token"])
@pytest.mark.parametrize("variant", ["dapo", "tis"])
def test_columns_are_the_rows_of_the_command(level: str, variant: str, tmp_path: Path) -> None:
    path = DAPO if variant == "dapo" else str(tmp_path / "sampled.jsonl")
    if variant == "tis":
        Path(path).write_text(json.dumps(SAMPLED), encoding="utf-8")
    rows = printed("eval", path, "-v", variant, "--level", level, "--format", "jsonl", "-q")
    lines = [json.loads(line) for line in rows.splitlines()]
    result = evaluate(path, variant)
    says_step = lines[0]["step"] is not None
    without = ("variant", "signature") if says_step else ("step", "variant", "signature")
    usual = [name for name in lines[0] if name not in without]
    names = [*result.columns(level)]  # type: ignore[arg-type]
    assert names[: len(usual)] == usual
    assert names == usual or level == "record"  # which has what needs another pass, too
    found = result.columns(fields=[*lines[0]], level=level)  # type: ignore[arg-type]
    assert [*found] == [*lines[0]]
    for name in lines[0]:
        values = [None if value != value else value for value in found[name].tolist()]
        assert values == [line[name] for line in lines], name


def test_rows_begin_with_the_step_that_records_say(tmp_path: Path) -> None:
    rows = [ONE | {"step": step} for step in (3, 4)]
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for data in (path, rows, [ONE | {"meta": {"global_step": step}} for step in (3, 4)]):
        for level in ("record", "response", "token"):
            found = evaluate(data, "dr").columns(level)  # type: ignore[arg-type]
            assert next(iter(found)) == "step"
            assert sorted({*found["step"].tolist()}) == [3, 4]
        some = evaluate(data, "dr").columns("record", fields="id,step", having="step==4")
        assert ([*some], some["step"].tolist()) == (["id", "step"], [4])
    for level in ("record", "response", "token"):
        words = ("eval", str(path), "-v", "dr", "--level", level, "-q", "-f")
        first = json.loads(printed(*words, "jsonl").splitlines()[0])
        assert [*first][:2] == ["step", "id"]
        assert printed(*words, "csv").decode().splitlines()[0].split(",") == [*first]
        assert next(iter(json.loads(printed(*words, "json"))["records"][0].items())) == ("step", 3)
    assert "step" not in evaluate(ONE, "dr").columns("record")
    with pytest.raises(GrpoError, match="unknown name 'signatur'; did you mean sig"):
        evaluate(ONE).columns("record", fields="id,signatur")


@pytest.mark.more
def test_numbers_of_numpy_are_hyperparameters_and_logged_numbers() -> None:
    found = evaluate(DAPO, "dapo", epsilon_high=np.float32(0.25), delta=np.array(3))
    assert found.signature == evaluate(DAPO, "dapo", epsilon_high=0.25, delta=3).signature
    weights = evaluate(EMPTY, "dapo", reward_weights=np.array([1.0, 0.5])).signature
    assert "reward_weights=1,0.5" in weights
    stages = {"aggregate": "token-mean", "kl": "none", "surrogate": "clip", "ratio": "token"}
    few: Any = {"betas": [0.0], "stages": stages, "batch": "record"}
    wanted = match(DAPO, loss="0.0256", **few).to_dict()
    assert match(DAPO, loss=np.float32(0.0256), **few).to_dict() == wanted
    assert compare(EMPTY, "dr", epsilon=np.float32(0.25)).variants[0].signature
    assert verify({**EMPTY, "expected": {"loss": 0.0}}, "dr", epsilon=np.int64(1)).verified == 1


def test_folders_and_patterns_are_files(tmp_path: Path) -> None:
    for step in (9, 10):
        (tmp_path / f"step_{step}.jsonl").write_text(json.dumps(EMPTY | {"id": step}))
    for data in (tmp_path, str(tmp_path / "step_*.jsonl"), [tmp_path]):
        assert [record["id"] for record in read(data)] == [9, 10]
        assert evaluate(data, "dr").total["records"] == 2


def test_a_result_shows_itself() -> None:
    found = evaluate(dict(EMPTY, log_probs_old=None), "dr")
    assert "<table>" in found._repr_html_()
    assert "on-policy" in found._repr_html_()
    assert repr(found).startswith("Evaluated(dr: 1 record, 1 group, 2 responses, 2 tokens)\n")
    with pytest.raises(AttributeError, match=r"'los'; did you mean loss\?"):
        found.los  # noqa: B018
    assert {"clip_fraction", "gradient_norm", "loss", "ratio"} <= {*dir(evaluate(ONE))}
    for name in ("loss", "objective", "clip_fraction", "gradient_norm"):
        assert re.search(rf"\n{name} +{re.escape(f'{getattr(found, name):.6g}')}\n", repr(found)), (
            name
        )
    assert str(found) == repr(found)
    compared = str(compare(dict(EMPTY, log_probs_old=None), "dr,dapo"))
    assert re.search(r"\nvariant +loss", compared)
    # choices that are closures, and sizes of batches
    for variant, batch in ("trl/grpo", "input"), ("verl/vanilla", "record"):
        found = evaluate(DAPO, variant, batch=batch)
        loaded = pickle.loads(pickle.dumps(found))
        assert loaded == found
        assert (loaded.columns()["gradient"] == found.columns()["gradient"]).all()
    assert grpo_cli.__version__ in found.signature


def test_findings_of_data_in_memory_have_a_call_that_goes_on() -> None:
    rewards = [[1.0, 0.0]] * 20 + [[9.0, 8.0]] * 20
    run = [ONE | {"step": at, "rewards": one, "env": "a"} for at, one in enumerate(rewards)]
    found = trend(run, "dapo", where="env==a", epsilon_high=0.3).findings[0]
    call = "show(data, variant='dapo', epsilon_high=0.3, where=['env==a', 'step==20'])"
    assert found.command == call
    assert eval(call, {"show": show, "data": run}).total["records"] == 1
    assert trend(run).findings[0].command == "show(data, where='step==20')"
    with pytest.raises(KeyError, match="did you mean reward_mean"):
        trend(run).steps[3]["rewardmean"]


def test_questions_of_tokens_and_of_runs_are_functions_too() -> None:
    flags = ("-v", "dapo", "--by", "gradient", "--top", "5", "--where", "id!=dapo/0")
    wanted = json.loads(printed("show", DAPO, *flags, "--json", "-q"))
    found = show(DAPO, "dapo", by="gradient", top=5, where="id!=dapo/0")
    assert [dict(row) for row in found.rows] == wanted["rows"]
    assert found.count == evaluate(DAPO, "dapo", where="id!=dapo/0").total["tokens"]
    assert diff(DAPO, DAPO).ok
    rows = [{"uid": n // 2, "logprobs": [-1.0 - n], "reward": float(n % 2)} for n in range(4)]
    assert evaluate(rows, "dr", group_by="uid").total["groups"] == 2
    stepped = [{**row, "step": at // 2} for at, row in enumerate([*rows, *rows])]
    assert evaluate(stepped, "dr", group_by="step, uid").total == (
        evaluate(stepped, "dr", group_by=["step", "uid"]).total
    )
    with pytest.raises(InputError, match='group_by="step,uid" separates steps'):
        evaluate(stepped, "dr", group_by="uid")


@pytest.mark.parametrize("batch", ["input", "record"])
@pytest.mark.parametrize(
    ("level", "having"),
    [("token", "ratio>1.01 && share>0.001"), ("response", "share>0.02"), ("record", "loss<0")],
)
def test_having_keeps_the_rows_that_the_command_prints(level: str, having: str, batch: str) -> None:
    found = evaluate(DAPO, "dapo", batch=batch)
    flags = ("--level", level, "--batch", batch, "--having", having, "--format", "jsonl", "-q")
    wanted = [json.loads(line) for line in printed("eval", DAPO, "-v", "dapo", *flags).splitlines()]
    whole = len(found.columns(level)["id"])  # type: ignore[arg-type]
    kept = found.columns(level, having=having)  # type: ignore[arg-type]
    assert 0 < len(wanted) < whole
    for name in {*kept} & {*wanted[0]}:
        values = [None if value != value else value for value in kept[name].tolist()]
        assert values == [row[name] for row in wanted], name


FRAMES = {"pandas": "to_pandas", "polars": "to_polars", "pyarrow": "to_arrow"}
HERE = [*FRAMES] if "GRPO_FRAMES" in os.environ else ["pyarrow"]
"""The extra ``test`` has pyarrow alone; ``.ci/run`` tries all where the notebook has them."""


@pytest.mark.parametrize("package", HERE)
def test_a_text_of_which_no_row_has_a_value_is_of_type_text(package: str) -> None:
    found = evaluate(ONE, "dr")
    assert {found.columns("token")[name].dtype for name in ("token", "clip")} == {np.dtype(object)}
    frame = getattr(found, FRAMES[package])("token", fields="token,clip")
    for name in ("token", "clip"):
        kind = frame.schema.field(name).type if package == "pyarrow" else frame[name].dtype
        assert str(kind) in {"polars": ["String"], "pyarrow": ["string"]}.get(
            package, ["str", "object"]
        )


@pytest.mark.parametrize("package", HERE)
def test_whole_numbers_with_unknown_ones_among_them_stay_whole(package: str) -> None:
    found = check([ONE | {"log_probs_new": [[0.5, -1.0], [-1.0, -1.0]]}, EMPTY])
    places = found.columns()["token"]
    assert np.isnan(places).any()
    assert not np.isnan(places).all()
    frame = getattr(found, FRAMES[package])()
    kind = frame.schema.field("token").type if package == "pyarrow" else frame["token"].dtype
    assert str(kind).lower() == "int64"


@pytest.mark.parametrize("package", HERE)
def test_a_frame_has_the_rows_of_a_level(package: str) -> None:
    data: Any = ([EMPTY, next(read(DAPO)) | {"id": 3}], VERL)
    for found, level in product((evaluate(one, "dapo") for one in data), ("token", "record")):
        columns = found.columns(level)  # type: ignore[arg-type]
        frame = getattr(found, FRAMES[package])(level)
        assert len(frame) == len(columns["id"])
        names = frame.column_names if package == "pyarrow" else [*frame.columns]
        assert level == "record" or "clip" in names
        for name, values in columns.items():
            if name not in names:
                assert all(one is None or one != one for one in values), name
                continue
            given = frame[name].to_pylist() if package == "pyarrow" else frame[name].to_list()
            assert [
                None if one is None or str(one) in ("nan", "<NA>") else one for one in given
            ] == [None if one != one else one for one in values.tolist()], name


@pytest.mark.parametrize("package", HERE)
def test_compare_and_trend_have_frames_of_their_rows(package: str) -> None:
    compared, run = grpo_cli.compare(DAPO, ["grpo", "dr"]), grpo_cli.trend(RUN, "dr")
    rows: Any
    for found, name, rows in ((compared, "variant", compared.variants), (run, "loss", run.steps)):
        frame = getattr(found, FRAMES[package])()
        given = frame[name].to_pylist() if package == "pyarrow" else frame[name].to_list()
        assert given == [getattr(row, name) for row in rows]


@pytest.mark.parametrize("package", FRAMES)
def test_a_package_that_is_not_installed_is_an_import_error(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = f"^{package} is not installed: pip install {package}$"
    with pytest.raises(ImportError, match=said) as caught:
        getattr(evaluate(EMPTY, "dr"), FRAMES[package])()
    assert isinstance(caught.value, grpo_cli.UsageError)
    assert caught.value.name == package


@pytest.mark.parametrize(
    ("package", "content", "said"),
    [
        ("polars", "import numpies", "polars needs numpies, which is not installed: pip install"),
        (
            "pandas",
            "raise ImportError('required:\\ndateutil')",
            "cannot be imported: required: dat",
        ),
    ],
)
def test_a_package_that_cannot_be_imported_says_why(
    package: str, content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{package}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(ImportError, match=said):
        getattr(evaluate(EMPTY, "dr"), FRAMES[package])()


RUN = str(SAMPLES / "run" / "temperature.jsonl.gz")
HEALTHY = str(SAMPLES / "run" / "healthy.jsonl.gz")
ARITHMETIC = str(SAMPLES / "arithmetic.jsonl")
ANSWERS: dict[str, tuple[Any, str]] = {
    "check": (lambda: check(RUN, limit=1), f"check {RUN} --limit 1"),
    "compare": (lambda: compare(RUN, "grpo,dr"), f"compare {RUN} -v grpo,dr"),
    "diff": (lambda: diff(HEALTHY, RUN), f"diff {HEALTHY} {RUN}"),
    "evaluate": (lambda: evaluate(RUN, batch="step"), ""),
    "explain": (lambda: grpo_cli.explain(ARITHMETIC), f"explain {ARITHMETIC}"),
    "match": (
        lambda: match(GRPO, loss="0.01", epsilon=0.2, batch="record"),
        f"match {GRPO} --loss 0.01 --epsilon 0.2 --batch record",
    ),
    "show": (lambda: show(RUN), ""),
    "trend": (lambda: grpo_cli.trend(RUN), f"trend {RUN}"),
    "verify": (
        lambda: verify(GRPO, "dapo", rtol=1e-6, causes=1, epsilon_high=0.4),
        f"verify {GRPO} -v dapo --rtol 1e-6 --causes 1 --epsilon-high 0.4",
    ),
}
"""Each function, and the command that answers the same where no note has a flag."""
ANSWERS = {name: (cache(ask), line) for name, (ask, line) in ANSWERS.items()}


@pytest.mark.more
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_what_json_prints(name: str) -> None:
    """To the byte: each key of a document is a field of the answer, in its place."""
    ask, line = ANSWERS[name]
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    document = orjson.dumps(ask().to_dict(), option=option)
    assert not line or document + b"\n" == printed(*line.split(), "--json", "-q")
    assert json.loads(json.dumps(ask().to_dict(), allow_nan=False)) == json.loads(document)


def test_the_document_of_an_evaluation_is_that_of_its_batches() -> None:
    wanted = answer("eval", RUN, "--level", "batch", "--batch", "step")
    assert same(evaluate(RUN, batch="step").to_dict(), wanted)


@pytest.mark.more
def test_commands_of_an_answer_read_the_data_as_it_was_read(tmp_path: Path) -> None:
    records = [
        {"step": n // 8, "uid": n // 2 % 4, "log_probs": [-1.0], "reward": 9.0 * (n > 80) + n % 2}
        for n in range(160)
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
    how: dict[str, Any] = {"group_by": "step,uid", "where": "uid!=3"}
    for finding in grpo_cli.trend(path, "dr", **how).findings:
        for command in (finding.command, finding.cause, finding.worst_command):
            assert "--group-by step,uid --where" in str(command)
    run = grpo_cli.trend(records, "dr", **how)
    call = "show(data, variant='dr', group_by='step,uid', where=['uid!=3', 'step=="
    for one in run.findings:
        assert one.cause is None
        assert str(one.command).startswith(call)
        assert str(one.worst_command).startswith(call)
    data = [one | {"old_log_probs": [-1.5 + 0.4 * at]} for at, one in enumerate(records[:4])]
    found = match(data, loss="0.25", epsilon_low=0.1, **how)
    names = {"data": data, "evaluate": evaluate}
    for one in found.matches[:8]:
        assert eval(one.command, names) == pytest.approx(one.value)


@pytest.mark.more
@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "evaluate"])
def test_what_a_row_shows_is_an_attribute(name: str) -> None:
    rows = [ANSWERS[name][0]()]
    for row in rows:
        for key, value in row.fields().items():
            assert key in dir(row)
            if isinstance(value, str | int | float | None):
                assert getattr(row, key, value) == value
            several = value if isinstance(value, list | tuple) else [value]
            rows += [one for one in several if hasattr(one, "fields")]
    if name == "trend":
        event = rows[0].events[0]
        assert (event.command, event.metrics) == (
            event.first.command,
            [*map(_metric, event.findings)],
        )
        with pytest.raises(AttributeError, match="Event has no attribute 'comand'; did you mean c"):
            _ = event.comand


def test_a_log_is_read_from_memory_as_from_its_file(tmp_path: Path) -> None:
    usual = {"loss": 0.1, "reward": 0.5, "grad_norm": 0.3}
    rows = [usual | {"step": n, "kl": 0.01 + 0.2 * (n > 20)} for n in range(40)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert trend(rows).to_dict() == trend(pa.Table.from_pylist(rows)).to_dict()
    assert trend(rows).verdict == trend(path).verdict
    assert trend(rows, at=21).verdict == trend(path, at=21).verdict


def test_a_record_that_is_shown_has_its_tokens_in_colours() -> None:
    found = show([ONE, EMPTY], record="some", by="gradient")
    drawn = re.search('data:image/svg.xml;base64,([^"]+)', found._repr_html_())
    assert drawn is not None
    assert "record some: tokens by gradient" in base64.b64decode(drawn[1]).decode()
    assert {row["id"] for row in found.rows} == {"some"}
    assert found.to_dict() == show(EMPTY, by="gradient").to_dict()
    assert "svg" not in show([ONE, EMPTY])._repr_html_()


@pytest.mark.more
def test_trend_answers_the_questions_of_the_command() -> None:
    assert trend(RUN, at=30).to_dict() == answer("trend", RUN, "--at", "30")
    parts = trend(RUN, by="step")
    assert {one["part"] for one in answer("trend", RUN, "--by", "step")["parts"]} == {
        one.part for one in parts.parts
    }
    with pytest.raises(GrpoError, match="against cannot be combined with at"):
        trend(RUN, at=30, against=RUN)  # type: ignore[call-overload]


def _metric(finding: Any) -> str:
    return str(finding.metric)


def test_a_step_has_its_row_as_attributes_and_keys() -> None:
    step = grpo_cli.trend(RUN).steps[3]
    for name, value in answer("trend", RUN)["steps"][3].items():
        assert same(step[name], value) if name != "worst" else step.worst
        assert getattr(step, name) == step[name]
    assert pickle.loads(pickle.dumps(step)) == step
    with pytest.raises(AttributeError, match="no attribute 'kl_k4'; did you mean kl_k3"):
        _ = step.kl_k4


@pytest.mark.parametrize("package", HERE)
def test_a_frame_has_the_steps_of_a_run(package: str) -> None:
    steps = grpo_cli.trend(RUN).steps
    frame = getattr(steps, FRAMES[package])()
    rows = [{**one.fields()} for one in steps]
    for name in frame.column_names if package == "pyarrow" else frame.columns:
        given = frame[name].to_pylist() if package == "pyarrow" else frame[name].to_list()
        assert [None if one != one else one for one in given] == [row[name] for row in rows], name
    if package != "pandas":
        assert not any(one != one for one in given)  # unknown is null


def test_the_batches_are_rows_of_a_level() -> None:
    found = evaluate(RUN, batch="step")
    assert found.columns("batch")["loss"].tolist() == [one["loss"] for one in found.batches]
    kept = found.columns("batch", having="step>=10")["step"]
    assert len(kept) == sum(one["step"] >= 10 for one in found.batches)
    assert evaluate(RUN).columns("batch")["loss"].tolist() == [evaluate(RUN).loss]


def nested(value: Any) -> Any:
    """A list of lists as an array of arrays."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        return np.array(value) if isinstance(value, list) else value
    found = np.empty(len(value), dtype=object)
    found[:] = [np.array(one) for one in value]
    return found


def test_a_data_frame_is_read_by_its_rows() -> None:
    rows = [*read(DAPO)]
    table = pytest.importorskip("pyarrow").Table.from_pylist([{"id": 1, **ONE}, {"id": 2, **ONE}])
    assert evaluate(table, "dr").loss == evaluate([ONE, ONE], "dr").loss

    class Pandas:
        columns = ("a",)

        def to_dict(self, how: str) -> Any:
            return rows if how == "records" else {}

    assert evaluate(Pandas(), "dr").total == evaluate(rows, "dr").total  # type: ignore[arg-type]
    ones = [[1] * len(row) for row in ONE["log_probs"]]
    written = {**ONE, "mask": ones, "tokens": [["a"] * len(row) for row in ones]}
    cells = {key: nested(value) for key, value in written.items()}  # as pandas reads Parquet
    rows = [cells]
    assert evaluate(Pandas(), "dr").total == evaluate(written, "dr").total  # type: ignore[arg-type]
    del Pandas.to_dict
    with pytest.raises(GrpoError, match=r"a path or paths, got Pandas; a record"):
        evaluate(Pandas(), "dr")  # type: ignore[arg-type]


def same(found: Any, printed: Any) -> bool:
    return bool(json.loads(json.dumps(found)) == printed)


WITHOUT_EXAMPLE = ("Evaluated", "convert", "report")
"""A class whose methods have examples, and functions that write a file."""


@pytest.mark.parametrize("module", ["data", "evaluated", "evaluation", "questions", "runs"])
def test_the_examples_of_docstrings_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES.parent)
    made = import_module(f"grpo_cli.api.{module}")
    found = doctest.testmod(made, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    functions = [one for name, one in vars(made).items() if name in grpo_cli.__all__]
    for one in functions:
        if one.__module__ == made.__name__ and one.__name__ not in WITHOUT_EXAMPLE:
            assert all(word in one.__doc__ for word in (">>>", "Args:", "Returns:", "Raises:"))


@pytest.mark.more
def test_pages_and_converted_files_are_those_of_the_commands(tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("function.html", "command.html")]
    assert grpo_cli.report(RUN, pages[0]).last_good_step == 29
    printed("report", RUN, "-o", str(pages[1]))
    function, command = (re.sub("<code>grpo[^|]*?</code>", "", one.read_text()) for one in pages)
    assert function == command
    for name in ("a.jsonl", "a.parquet"):
        assert grpo_cli.convert(GRPO, tmp_path / name) == len(list(read(GRPO)))
        assert evaluate(tmp_path / name).loss == evaluate(GRPO).loss
    for write, name in ((grpo_cli.report, "a.pdf"), (grpo_cli.convert, "a.csv")):
        with pytest.raises(grpo_cli.UsageError, match="name ends in"):
            write(RUN, tmp_path / name)


def test_where_and_group_by_choose_records_for_every_function(tmp_path: Path) -> None:
    """They are those of ``evaluate``; a command that is printed has them as flags."""
    path = tmp_path / "steps.jsonl"
    rows = [ONE | {"step": step, "rewards": [step, 0.0]} for step in (1, 2, 3)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    loss = evaluate(path, where="step==2").loss
    assert compare(path, "grpo", where="step==2").variants[0].loss == loss
    assert match(path, loss=loss, where="step==2").matches[0].command.count("--where step==2") == 1
    assert check(path, where="step==2").records == 1
    assert diff(path, path, where="step==2").ok


def test_an_answer_is_short_in_a_shell() -> None:
    found = check([ONE, ONE])
    assert repr(found).startswith("Checked(ok: nothing found in 2 records")
    assert len(repr(found)) < 400
    assert {"findings", "to_dict"} <= {*dir(found)}
    assert {"conclusion", "sections", "table"}.isdisjoint(dir(found))
    found = evaluate(RUN)
    assert len(repr(found)) < 1000
    assert all(len(str(getattr(found, name))) < 200 for name in ("kl", "ratio", "clip", "gradient"))


PROMPTS = {
    "2 records, 2 groups, 4 responses": lambda: evaluate([ONE, ONE], "dr"),
    "each record a batch; mean loss": lambda: evaluate([ONE, ONE], batch="record"),
    "step        loss": lambda: evaluate([ONE | {"step": 1}, ONE | {"step": 2}], batch="step"),
    "2 of 4 tokens, largest |gradient": lambda: show([ONE, ONE], "dr", top=2),
    "variant ": lambda: compare([ONE, ONE], "dr,grpo"),
    "step  reward_mean": lambda: trend(RUN),
    "… 50 more rows": lambda: trend(RUN).steps,
    "severity  code": lambda: check(RUN, where="step==40"),
    "yours ": lambda: verify(ONE | {"expected": {"loss": 3.0}}, "dr"),
    "difference  variant": lambda: match(GRPO, loss=evaluate(GRPO).loss),
    "column ": lambda: diff([ONE | {"step": 1}], [ONE | {"step": 1, "rewards": [5.0, 0.0]}]),
    "the loss is": lambda: grpo_cli.explain([ONE], "dr"),
    "epsilon_high": lambda: grpo_cli.explain("dapo"),
}


@pytest.mark.more
@each("said", PROMPTS)
def test_a_prompt_shows_the_numbers_as_a_table(said: str) -> None:
    found = PROMPTS[said]()
    assert said in repr(found)
    table = [line for line in repr(found).splitlines()[1:] if not line.startswith("signature")]
    assert table
    if not isinstance(found, Sequence):
        assert re.search("<table>|<pre>", found._repr_html_())


class Tensor:
    """What has no more than numpy's protocol."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._values


def test_anything_with_numpys_protocol_is_an_array() -> None:
    tensors = {name: [*map(Tensor, one)] for name, one in ONE.items() if name != "rewards"}
    found = evaluate(tensors | {"rewards": Tensor(ONE["rewards"])}, "dr")
    assert found.loss == evaluate(ONE, "dr").loss


@pytest.mark.more
@pytest.mark.parametrize(
    ("found", "columns"),
    [
        (lambda: show([ONE, ONE], "dr", top=2), ["id", "ratio", "contribution"]),
        (lambda: check(RUN, where="step==40"), ["severity", "code", "message"]),
        (lambda: match(GRPO, loss=evaluate(GRPO).loss), ["value", "variant", "command"]),
        (lambda: verify(ONE | {"expected": {"loss": 3.0}}, "dr"), ["key", "yours", "grpo"]),
        (lambda: diff(RUN, SAMPLES / "run/healthy.jsonl.gz"), ["column", "step", "first"]),
    ],
)
def test_every_answer_with_rows_is_a_table_of_arrow(found: Any, columns: list[str]) -> None:
    table = found().to_arrow()
    assert table.num_rows
    assert {*columns} <= {*table.column_names}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda: evaluate(RUN, batch="step"), [">⋮<", ">mean of the batches<"]),
        (
            lambda: trend(RUN),
            ["<div><pre>step 30: ", "last good step: 29", "fix: divide", "\n  29 ", "▁"],
        ),
        (lambda: trend(SAMPLES / "run/healthy.jsonl.gz"), ["no fault found", "kl k3"]),
        (lambda: grpo_cli.explain([ONE], "dr"), ["\nwhy\n", "1  advantages", "4  sum"]),
    ],
)
def test_a_notebook_shows_what_was_found(found: Any, said: list[str]) -> None:
    page = found()._repr_html_()
    assert [one for one in said if one not in page] == []
    assert page.count("<th>") < 30


def test_findings_are_in_the_order_of_the_verdict() -> None:
    run = trend(RUN)
    assert run.findings == [one for event in run.events for one in event.findings]
    assert run.verdict.startswith(f"step {run.findings[0].onset}: ")
    assert f"; last good step {run.last_good_step}; " in run.headline
    assert f"Trend({run.headline})" == repr(run).split("\n")[0]


@pytest.mark.more
def test_printed_an_answer_has_what_its_command_prints() -> None:
    """Of many findings of a kind the first; the notices are counted below."""
    for words, found in (
        (("check", RUN), check(RUN)),
        (("verify", DAPO), verify(DAPO)),
        (("trend", RUN), trend(RUN)),
    ):
        printed = run(*words).stdout.replace("(--limit 0 for all)", "(.findings has all)").strip()
        assert str(found).partition("\n1 notice")[0].startswith(printed[:400]), words
        assert len(str(found).splitlines()) <= len(printed.splitlines()) + 1, words
    dead = [ONE | {"rewards": [1.0] * len(ONE["rewards"])} for _ in range(9)]
    assert str(check(dead)).count("so this group has no policy gradient") == 1
    assert "dead-group: 9 findings, the first (.findings has all): record 0: " in str(check(dead))


@pytest.mark.more
def test_data_in_memory_have_no_empty_command() -> None:
    lines = gzip.decompress(Path(RUN).read_bytes()).splitlines()
    (event,) = (one for one in trend([*map(json.loads, lines)]).events if one.severity != "info")
    assert event.commands
    assert all(one.startswith("show(data") for one in event.commands)
    wrong = [ONE | {"expected": {"loss": 1.0}}]
    assert "()" not in str(verify(wrong))


PAGES = [
    "clip",
    "dapo",
    "ratio",
    "clip/dual-capped",
    "padding",
    f"{SAMPLES}/run/trainer_state.json",
]


@pytest.mark.parametrize("name", PAGES)
def test_a_name_has_the_page_of_its_command(name: str) -> None:
    page = grpo_cli.explain(name)
    assert f"{page}\n" == f"{page!r}\n" == run("explain", name).stdout
    assert "<pre>" in page._repr_html_()


@pytest.mark.more
def test_trend_against_another_run_is_what_the_command_answers() -> None:
    healthy = str(SAMPLES / "run/healthy.jsonl.gz")
    found = trend(RUN, against=healthy)
    assert same(found.to_dict(), answer("trend", RUN, "--against", healthy))
    runs = [gzip.decompress(Path(one).read_bytes()).splitlines() for one in (RUN, healthy)]
    first, second = ([*map(json.loads, lines)] for lines in runs)
    assert trend(first, against=second).to_dict() == found.to_dict()
    assert "RUN RUN" not in found.notices[0]


def test_a_traceback_shows_the_callers_line_and_the_errors_public_name() -> None:
    with pytest.raises(InputError) as caught:
        evaluate({"log_probs": [[0.5]], "rewards": [1.0]})
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("File ") == 1
    assert "\ngrpo_cli.InputError: " in text
