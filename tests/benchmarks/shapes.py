"""Dumps as frameworks write them, and what a user would write instead of ``grpo eval``.

A shape is an entry of ``shapes.json``. ``bench.py`` times what is here, by name: ``loop``,
``columns``, ``evaluated``, ``compared``, ``tracked`` and ``naive``.

Log-probs are float32 written as the double that they are, as ``tolist`` of a tensor gives them.
The fields of TRL and verl are those that the hooks of this package write, with the settings of
``tests/data/rollouts``; ``tests/formats/dumps.json`` cites the sources of the other frameworks.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from itertools import count, islice, pairwise
from operator import iconcat
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import orjson

GROUP = 8
Object = dict[str, Any]
Group = tuple[Any, Any, Any, Any, Any]
"""New, old and reference log-probs of some responses (no reference: None), their advantages, and
(ε low, ε high, β)."""
USUAL = (0.2, 0.2, 0.04)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of dump.

    Attributes:
        name, title: what writes it, and its size.
        source: where its fields are from.
        groups: what a user's own script makes of an object: a function below.
        object: a line or row, or several. In it ``"=…"`` is an expression, of ``made`` (a
            rollout), ``number``, ``tokens`` and ``draw``; ``{"for": name, "in": …, "each": …}``
            is a list. A name: the object of that shape.
        tokens, responses: of the rollout; 0: the object draws by itself.
        header: what comes before.
        expected: the row whose loss and gradient the records have.
        flags: what ``grpo`` needs to read it.
        suffix: of its files.
        commands: the commands that are timed.
        most: records, where the shape is about small files.
    """

    name: str
    title: str
    groups: str
    object: Any
    source: str = ""
    tokens: int = 0
    responses: int = GROUP
    header: Object | None = None
    expected: str = ""
    flags: tuple[str, ...] = ()
    suffix: str = ".jsonl"
    commands: tuple[str, ...] = ("check", "trend", "diff", "explain", "report")
    most: int | None = None

    def objects(self, draw: np.random.Generator) -> Iterator[Object]:
        """An endless source of its lines or rows."""
        if self.header:
            yield self.header
        template = SHAPES[self.object].object if isinstance(self.object, str) else self.object
        for number in count():
            names = {"draw": draw, "number": number, "tokens": self.tokens}
            if self.tokens:
                names["made"] = rollout(draw, self.tokens, self.responses)
            yield from self._judged(filled(template, names))

    def _judged(self, made: Any) -> Iterator[Object]:
        if isinstance(made, list):
            for one in made:
                yield from self._judged(one)
        else:
            yield made | ({"expected": expected(made, self.expected)} if self.expected else {})


def filled(template: Any, names: dict[str, Any]) -> Any:
    """A template with its expressions' values, which are computed in its order."""
    if isinstance(template, str):
        return eval(_code(template[1:]), globals() | names) if template[:1] == "=" else template
    if isinstance(template, list):
        return [filled(one, names) for one in template]
    if not isinstance(template, dict):
        return template
    if "for" in template:
        values = eval(_code(template["in"]), globals() | names)
        name, each = template["for"], template["each"]
        return [filled(each, names | {name: value}) for value in values]
    return {key: filled(value, names) for key, value in template.items()}


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, expression, "eval")


# ---- numbers ------------------------------------------------------------------------------------

WORDS = [
    f"{start}{end}"
    for start in (" ", "", "Ġ")
    for end in ["the", "of", "so", "we", "12", "=", "+", "x2", "(a", "then"]
]


class Rollout(NamedTuple):
    """Eight responses: ids, words, and log-probs as lists."""

    ids: list[list[int]]
    words: list[list[str]]
    new: list[list[float]]
    old: list[list[float]]
    ref: list[list[float]]
    rewards: list[float]
    advantages: list[float]

    @property
    def size(self) -> int:
        """The tokens of the first response."""
        return len(self.ids[0])

    @property
    def moved(self) -> np.ndarray:
        """New less old log-probs of the first response."""
        return np.array(self.new[0]) - np.array(self.old[0])


def rollout(draw: np.random.Generator, tokens: int, responses: int = GROUP) -> Rollout:
    widths = draw.integers(max(1, tokens // 2), tokens * 3 // 2 + 1, responses)
    ids = [draw.integers(0, 151_643, width).tolist() for width in widths]
    old = [_floats(-draw.exponential(0.6, width)) for width in widths]
    new, ref = ([_near(row, spread, draw) for row in old] for spread in (0.05, 0.1))
    rewards = draw.integers(0, 2, responses).astype(float)
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    words = [[WORDS[one % len(WORDS)] for one in row] for row in ids]
    lists = [[row.tolist() for row in rows] for rows in (new, old, ref)]
    return Rollout(ids, words, *lists, rewards.tolist(), _floats(advantages).tolist())


def _floats(values: np.ndarray) -> np.ndarray:
    """float32 as the doubles that they are."""
    return values.astype(np.float32).astype(np.float64)


def _near(row: np.ndarray, spread: float, draw: np.random.Generator) -> np.ndarray:
    return _floats(-np.abs(row + draw.normal(0, spread, len(row))))


# ---- what objects are made of --------------------------------------------------------------------

PROMPT = "Solve the problem step by step, then give the answer in a box. " * 6


def expected(record: Object, variant: str) -> Object:
    """The loss and its gradient, as the hooks record them."""
    from grpo_cli import evaluate

    found = evaluate(record, variant=variant)
    return {"loss": found.loss, "loss_gradient": [-np.array(row) for row in found.gradient]}


def prompt_of(draw: np.random.Generator) -> list[int]:
    return draw.integers(0, 151_643, 60).tolist()


def asked(draw: np.random.Generator, at: int) -> Object:
    """A node of a trace that the user wrote."""
    return {
        **({"parent": at - 1} if at else {}),
        "message": {"role": "user", "content": PROMPT},
        "sampled": False,
        "token_ids": prompt_of(draw),
        "mask": [False] * 60,
        "is_content": [],
        "logprobs": [],
    }


def answered(made: Rollout, at: int) -> Object:
    """A node of a trace that was sampled."""
    ids, turn = made.ids[at // 2], at // 2
    return {
        "parent": at - 1,
        "message": {"role": "assistant", "content": "".join(made.words[turn])},
        "sampled": True,
        "token_ids": [99, *ids],
        "mask": [False] + [True] * len(ids),
        "logprobs": made.old[turn],
        "advantages": [made.advantages[0]] * len(ids),
        "reference_logprobs": made.ref[turn],
    }


# ---- a script of one's own ----------------------------------------------------------------------


def objective(groups: Iterable[Group]) -> float:
    """J of GRPO: the mean over responses of their tokens' means."""
    total, responses = 0.0, 0
    for news, olds, refs, advantages, (low, high, beta) in groups:
        for at, advantage in enumerate(advantages):
            new, old, a = (np.array(one, float) for one in (news[at], olds[at], advantage))
            ratio = np.exp(new - old)
            value = np.minimum(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)
            if refs is not None:
                gap = np.array(refs[at]) - new
                value -= beta * (np.exp(gap) - gap - 1)
            total += value.mean()
            responses += 1
    return total / responses


def centred(rewards: Any) -> Any:
    rewards = np.array(rewards, float)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8)


def of_records(objects: Iterable[Object]) -> Iterator[Group]:
    for one in objects:
        given = one.get("hyperparameters")
        bounds = (given["epsilon_low"], given["epsilon_high"], given["beta"]) if given else USUAL
        if "per_token_logps" in one:
            names = ("per_token_logps", "old_per_token_logps", "ref_per_token_logps")
        elif "action_log_probs" in one:
            names = ("action_log_probs", "old_action_log_probs", "base_action_log_probs")
        else:
            names = ("log_probs_new", "log_probs_old", "log_probs_ref")
        advantages = one["advantages"] if "advantages" in one else centred(one["rewards"])
        yield (*(one.get(name) for name in names), advantages, bounds)


def of_rows(objects: Iterable[Object]) -> Iterator[Group]:
    waiting: dict[str, list[Object]] = {}
    for one in objects:
        waiting.setdefault(one["uid"], []).append(one)
        if len(waiting[one["uid"]]) == GROUP:
            group = waiting.pop(one["uid"])
            names = ("log_probs", "old_log_probs", "ref_log_prob")
            logs = [[row[name] for row in group] for name in names]
            yield (*logs, centred([row["score"] for row in group]), USUAL)


def of_traces(objects: Iterable[Object]) -> Iterator[Group]:
    for one in objects:
        nodes = [node for node in one["traces"][0]["nodes"] if node["sampled"]]
        logs, refs, advantages = (
            np.array([value for node in nodes for value in node[name]])
            for name in ("logprobs", "reference_logprobs", "advantages")
        )
        yield [logs], [logs], [refs], [advantages], USUAL


def of_exports(objects: Iterable[Object]) -> Iterator[Group]:
    for one in objects:
        mask = np.array(one["loss_mask"])
        names = ("trainer_logprobs", "inference_logprobs", "advantages")
        new, old, advantages = (np.array(one[name])[mask] for name in names)
        yield [new], [old], None, [advantages], USUAL


def of_steps(objects: Iterable[Object]) -> Iterator[Group]:
    for one in objects:
        for prompt in one.get("prompts", ()):
            tokens = [response["tokens"] for response in prompt["responses"]]
            names = ("log_probs", "old_log_probs", "ref_log_probs")
            logs = [[each[name] for each in tokens] for name in names]
            yield (*logs, [response["advantage"] for response in prompt["responses"]], USUAL)


def of_samples(objects: Iterable[Object]) -> Iterator[Group]:
    for one in objects:
        samples = one["samples"]
        logs = [[sample[name] for sample in samples] for name in ("log_probs", "ref_log_probs")]
        yield logs[0], logs[0], logs[1], [sample["advantages"] for sample in samples], USUAL


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_bytes())
SHAPES = {one["name"]: Shape(**one) for one in _TABLE}


# ---- files --------------------------------------------------------------------------------------


def write(name: str, path: Path, megabytes: float, seed: int = 7) -> Path:
    """Writes a dump of at least so many megabytes; of 0, the smallest that there is."""
    shape = SHAPES[name]
    found = shape.objects(np.random.default_rng(seed))
    fewest = GROUP if shape.groups in ("of_rows", "of_samples") else 2
    least = fewest if not megabytes else shape.most or fewest
    most = 0.0 if shape.most else megabytes * 1e6
    if shape.suffix == ".jsonl":
        _write_lines(path, found, least, most)
    elif shape.suffix == ".pt":
        _write_torch(path, [*islice(found, max(least, int(most / 36_000)))])
    else:
        _write_parquet(path, [*islice(found, max(least, int(most / 7_500) // GROUP * GROUP))])
    return path


def _write_lines(path: Path, objects: Iterator[Object], least: int, most: float) -> None:
    from grpo_cli.hooks.writer import line_of

    with path.open("wb") as stream:
        for number in count(1):
            stream.write(line_of(next(objects)))
            if number >= least and stream.tell() >= most and number % GROUP == 0:
                return


def _write_parquet(path: Path, found: list[Object]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(found)
    pq.write_table(table, path, compression="zstd", row_group_size=max(GROUP, len(found) // 8))


def _write_torch(path: Path, samples: list[Object]) -> None:
    """As ``torch.save`` writes it: tensors of ``_rebuild_tensor_v2`` over named storages."""
    rewards = [sample.pop("raw_reward") for sample in samples]
    for at, sample in enumerate(samples):
        sample["rollout_position"] = at
    head: Object = {"format_version": 2, "rollout_id": 7, "rank": 0, "raw_reward": rewards}
    stream = io.BytesIO()
    saver = _Saver(stream)
    saver.dump(head | {"samples": samples})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("7/data.pkl", stream.getvalue())
        archive.writestr("7/byteorder", "little")
        for key, data in saver.storages.items():
            archive.writestr(f"7/data/{key}", data)


class _Saver(pickle.Pickler):
    """Pickles arrays as torch's tensors."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=2)
        self.storages: dict[str, bytes] = {}
        torch, utils = ModuleType("torch"), ModuleType("torch._utils")
        for name in ("FloatStorage", "LongStorage", "IntStorage"):
            setattr(torch, name, type(name, (), {"__module__": "torch"}))

        def _rebuild_tensor_v2() -> None: ...

        _rebuild_tensor_v2.__module__ = "torch._utils"
        _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
        utils._rebuild_tensor_v2 = _rebuild_tensor_v2  # type: ignore[attr-defined]
        self._torch, self._rebuild = torch, _rebuild_tensor_v2
        sys.modules |= {"torch": torch, "torch._utils": utils}

    def persistent_id(self, value: Any) -> Any:
        return value.parts if isinstance(value, _Stored) else None

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return NotImplemented
        kind = {"f": "FloatStorage", "i": "LongStorage"}[value.dtype.kind]
        kind = "IntStorage" if value.dtype == np.int32 else kind
        key = str(len(self.storages))
        self.storages[key] = value.tobytes()
        parts = ("storage", getattr(self._torch, kind), key, "cpu", value.size)
        given = (_Stored(parts), 0, (value.size,), (1,), False, OrderedDict())
        return self._rebuild, given


class _Stored(NamedTuple):
    """The numbers of a tensor, which are in a file of their own."""

    parts: tuple[Any, ...]


def read(name: str, path: str) -> Iterator[Object]:
    """The objects of a dump, as a script of one's own reads them."""
    suffix = SHAPES[name].suffix
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches(use_threads=False):
            yield from batch.to_pylist()
    elif suffix == ".pt":
        from grpo_cli.records.tables.files import Rows
        from grpo_cli.records.tables.pieces import decoded

        whole = Rows(path, path, "torch", None, 0, 0)
        yield from (one.value for chunk in decoded(whole) for one in chunk.items)
    else:
        with open(path, "rb") as stream:  # noqa: PTH123
            yield from map(orjson.loads, stream)


def loop(name: str, path: str) -> None:
    """The floor: the file's own parser over all of it, and nothing else."""
    if SHAPES[name].suffix == ".parquet":
        import pyarrow.parquet as pq

        for _ in pq.ParquetFile(path).iter_batches(use_threads=False):
            pass
        return
    for _ in read(name, path):
        pass


def columns(name: str, path: str) -> None:
    """The least that reading takes: the file decoded, the columns that are read as arrays, checked.

    Checked are the keys of objects, types, lengths, masks, and that numbers are finite; of a
    table also that its texts are UTF-8. There is no J.
    """
    for _ in _columns(name, path):
        pass


LOGS = (
    ("log_probs_new", "per_token_logps", "action_log_probs", "trainer_logprobs", "logprobs"),
    ("log_probs_old", "old_per_token_logps", "old_action_log_probs", "inference_logprobs"),
    ("log_probs_ref", "ref_per_token_logps", "base_action_log_probs", "reference_logprobs"),
)
OTHER_LOGS = (("log_probs",), ("old_log_probs",), ("ref_log_prob", "ref_log_probs"))


def evaluated(name: str, path: str) -> float:
    """The least that ``eval`` takes: ``columns``, and all of ``totals``, of which it returns J."""
    return totals(name, path)["objective"]


def totals(name: str, path: str) -> dict[str, float]:
    """What ``eval --level batch`` says of GRPO, by numpy on flat arrays.

    Rows are joined by keys that were decoded with them; the sums are numpy's, not exact.
    """
    shape, sums, extremes, steps = SHAPES[name], np.zeros(8), [], set()
    with np.errstate(all="ignore"):
        for columns, widths, objects in _columns(name, path):
            steps.update(one.get("step") for one in objects)
            found, ratio = _response_sums(shape.groups, columns, widths, objects)
            sums += found
            extremes += [ratio.min(), ratio.max()]
    responses, tokens, policy, kl, ratio, low, high, squares = sums.tolist()
    return {
        "objective": (policy - kl) / responses,
        "policy": policy / responses,
        "responses": responses,
        "tokens": tokens,
        "clip_fraction_low": low / tokens,
        "clip_fraction_high": high / tokens,
        "ratio_mean": ratio / tokens,
        "ratio_min": min(extremes),
        "ratio_max": max(extremes),
        "gradient_norm": squares**0.5 / responses,
    }


def _response_sums(
    groups: str, columns: dict[str, Any], widths: np.ndarray, objects: list[Object]
) -> tuple[list[float], np.ndarray]:
    """Sums over responses, of those that ``totals`` names, and every token's ratio."""
    names = (one + other for one, other in zip(LOGS, OTHER_LOGS, strict=True))
    logs = [next((columns[key] for key in each if key in columns), None) for each in names]
    advantages = _advantages(groups, columns, objects)
    if len(advantages) < len(logs[0]):
        advantages = np.repeat(advantages, widths)
    if groups == "of_exports":
        kept = np.frombuffer(columns["loss_mask"], np.bool_)
        widths = np.add.reduceat(kept, np.cumsum(widths) - widths, dtype=np.int64)
        logs = [one if one is None else one[kept] for one in logs]
        advantages = advantages[kept]
    if groups == "of_traces":
        widths = _of_paths(columns, widths, objects)
    new, old, ref = logs
    low, high, beta = _bounds(objects, widths)
    ratio = np.exp(new - (new if old is None else old))
    values = np.minimum(ratio * advantages, np.clip(ratio, 1 - low, 1 + high) * advantages)
    below, above = (ratio < 1 - low) & (advantages < 0), (ratio > 1 + high) & (advantages > 0)
    slope = np.where(below | above, 0.0, ratio * advantages)
    starts, kl = np.cumsum(widths) - widths, 0.0
    if ref is not None:
        gap = ref - new
        grown = np.exp(gap)
        penalty = beta * (grown - gap - 1)
        slope -= beta * (1 - grown)
        kl = float((np.add.reduceat(penalty, starts) / widths).sum())
    policy = float((np.add.reduceat(values, starts) / widths).sum())
    squares = float((np.add.reduceat(slope * slope, starts) / widths**2).sum())
    clipped = [float(np.count_nonzero(one)) for one in (below, above)]
    counts = [float(len(widths)), float(len(ratio))]
    return [*counts, policy, kl, float(ratio.sum()), *clipped, squares], ratio


def _of_paths(columns: dict[str, Any], widths: np.ndarray, objects: list[Object]) -> np.ndarray:
    """The tokens of each trace, whose nodes are one path and have a log-prob where sampled."""
    traces = [one["traces"][0]["nodes"] for one in objects]
    for nodes in traces:
        assert [node.get("parent") for node in nodes] == [None, *range(len(nodes) - 1)]
    masks = [node["mask"] for nodes in traces for node in nodes]
    sizes = np.array([*map(len, masks)])
    kept = np.frombuffer(columns["mask"], np.bool_)
    sampled = np.add.reduceat(kept, np.cumsum(sizes) - sizes, dtype=np.int64)
    assert (sampled[sampled > 0] == widths[widths > 0]).all()
    count = [*map(len, traces)]
    return np.add.reduceat(sampled, np.cumsum(count) - count)


def _advantages(groups: str, columns: dict[str, Any], objects: list[Object]) -> np.ndarray:
    """A number for each token or response."""
    if "advantages" in columns:
        return columns["advantages"]
    if groups == "of_steps":
        prompts = [prompt for one in objects for prompt in one.get("prompts", ())]
        return np.array([one["advantage"] for each in prompts for one in each["responses"]])
    key = "score" if groups == "of_rows" else "rewards"
    rewards = np.array([one[key] for one in objects], float).reshape(-1, GROUP)
    spread = rewards.std(axis=1, ddof=1, keepdims=True) + 1e-8
    return ((rewards - rewards.mean(axis=1, keepdims=True)) / spread).ravel()


def _bounds(objects: list[Object], widths: np.ndarray) -> Any:
    """ε low, ε high and β; of each token where the records' differ."""
    if "hyperparameters" not in objects[0]:
        return USUAL
    given = [one["hyperparameters"] for one in objects]
    each = [(one["epsilon_low"], one["epsilon_high"], one["beta"]) for one in given]
    if len(set(each)) == 1:
        return each[0]
    return np.repeat(np.array(each).T, widths.reshape(-1, GROUP).sum(axis=1), axis=1)


def _table_columns(path: str) -> Iterator[tuple[dict[str, Any], np.ndarray, list[Object]]]:
    """The columns of a table; its advantages come from the column of scores, read before."""
    import pyarrow.parquet as pq

    file, first = pq.ParquetFile(path), 0
    about = file.read(["uid", "score"], use_threads=False)
    changes = np.flatnonzero(np.diff(np.unique(about["uid"], return_inverse=True)[1]))
    assert not ((changes + 1) % GROUP).any()
    advantages = _advantages("of_rows", {}, about.select(["score"]).to_pylist())
    for batch in file.iter_batches(use_threads=False):
        found: dict[str, Any] = {"advantages": advantages[first : first + len(batch)]}
        for key, column in zip(batch.schema.names, batch.columns, strict=True):
            if hasattr(column, "flatten"):
                values, widths = column.flatten(), column.value_lengths().to_numpy()
                if values.type == "string":
                    column.validate(full=True)
                else:
                    found[key] = _check([values.to_numpy()], is_mask=False)
        first += len(batch)
        yield found, widths, [{}]


def _columns(name: str, path: str) -> Iterator[tuple[dict[str, Any], np.ndarray, list[Object]]]:
    """The columns of objects, key by key, how many tokens each response has, and the objects."""
    from grpo_cli.engine.memory import settle

    settle()
    if SHAPES[name].suffix == ".parquet":
        yield from _table_columns(path)
        return
    holders = HOLDERS.get(SHAPES[name].groups, list)
    chunks = _chunks(name, path)
    for objects in _whole_groups(chunks) if SHAPES[name].groups == "of_rows" else chunks:
        set(map(tuple, objects))
        found = holders(objects)
        if "hyperparameters" in objects[0]:
            given = [one["hyperparameters"] for one in objects]
            found = [*found, {key: [one[key] for one in given] for key in ("epsilon_high", "beta")}]
        widths: list[int] = []
        made: dict[str, Any] = {}
        lengths = {}
        for key in dict.fromkeys(key for one in found[:2] + found[-1:] for key in one):
            values = [one[key] for one in found if key in one]
            if key in UNREAD or not isinstance(values[0], list | np.ndarray):
                continue
            rows = reduce(iconcat, values, []) if isinstance(values[-1][0], list) else values
            before, widths = widths, [*map(len, rows)]
            before == widths  # noqa: B015
            made[key], lengths[key] = _check(rows, is_mask="mask" in key), widths
        tokens = next((one for key, one in lengths.items() if "log" in key), [])
        if tokens:
            yield made, np.array(tokens), objects


def compared(name: str, path: str) -> None:
    """The least that ``check`` takes: ``columns``, ids as numbers, and what its rules compare.

    Of each pair of log-probs that is the difference, against that of the neighbours too; weights,
    probabilities and their correlation by response; of each column a hash of every response.
    """
    for found, widths, _ in _columns(name, path):
        found = {key: one for key, one in found.items() if len(one) == widths.sum()}
        [np.array(one) for one in found.values() if isinstance(one, list) and type(one[0]) is int]
        starts = np.cumsum(widths) - widths
        logs = [one for key, one in found.items() if "log" in key and len(one)]
        with np.errstate(all="ignore"):
            for one in logs:
                np.add.reduceat(one.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15), starts)
            for first, second in pairwise(logs):
                _compare(first, second, starts)


def _compare(first: np.ndarray, second: np.ndarray, starts: np.ndarray) -> None:
    moved, size = first - second, np.abs(first - second)
    nearer = [
        np.abs(first[:-1] - second[1:]) < size[:-1],
        np.abs(first[1:] - second[:-1]) < size[1:],
    ]
    p, q = np.exp(first), np.exp(second)
    sums = [moved, moved * moved, size, np.exp(moved), p, q, p * p, q * q, p * q]
    for values in (*sums, moved > 0, size / (1.0 - np.maximum(p, q)), *nearer):
        np.add.reduceat(values, np.minimum(starts, len(values) - 1))


_WINDOW = 30


def tracked(name: str, path: str) -> None:
    """The least that ``trend`` takes of records that are a step each: ``columns``, the means of a
    dozen numbers of each step, and the median and MAD of the 30 steps before each.
    """
    series = []
    for found, widths, _ in _columns(name, path):
        new, old, ref = (one for key, one in found.items() if "log" in key)
        starts, groups = np.cumsum(widths) - widths, np.arange(0, len(widths), GROUP)
        ratio, gap = np.exp(new - old), ref - new
        numbers = [new, ratio, ratio * ratio, np.clip(ratio, 0.8, 1.2), np.abs(new - old), gap]
        numbers += [np.exp(gap) - gap - 1.0, ratio > 1.2, ratio < 0.8, gap * gap]
        means = [np.add.reduceat(values, starts) / widths for values in (*numbers, new * gap)]
        series.append([np.add.reduceat(one, groups) / GROUP for one in (*means, widths)])
    windows = np.lib.stride_tricks.sliding_window_view
    for one in np.concatenate(series, axis=1):
        past = windows(one, min(_WINDOW, len(one)))
        middle = np.sort(past, axis=1)[:, past.shape[1] // 2, None]
        np.sort(np.abs(past - middle), axis=1)


UNREAD = {"prompts", "labels", "losses", "position_ids", "log_importance_ratio", "prob_delta"}
UNREAD |= {"importance_ratio", "mismatch_kl", "is_masked", "is_masked_high", "is_masked_low"}
UNREAD |= {"is_content", "token_kl", "token_objective", "rewards"}
"""Lists that nothing reads; of rewards there are too few to count."""
HOLDERS: Mapping[str, Callable[[list[Object]], list[Object]]] = {
    "of_traces": lambda objects: [node for one in objects for node in one["traces"][0]["nodes"]],
    "of_steps": lambda objects: [
        response["tokens"]
        for one in objects
        for prompt in one.get("prompts", ())
        for response in prompt["responses"]
    ],
    "of_samples": lambda objects: [sample for one in objects for sample in one["samples"]],
}
"""The dicts that have the columns, where the objects have none."""


def _chunks(name: str, path: str) -> Iterator[list[Object]]:
    """Objects, as many together as stay in cache."""
    if SHAPES[name].suffix == ".jsonl":
        with open(path, "rb") as stream:  # noqa: PTH123
            while lines := stream.readlines(1 << 18):
                yield [*map(orjson.loads, lines)]
    else:
        objects = read(name, path)
        while some := [*islice(objects, 64)]:
            yield some


def _whole_groups(chunks: Iterator[list[Object]]) -> Iterator[list[Object]]:
    """Rows of whole groups, which follow each other."""
    waiting: list[Object] = []
    for some in chunks:
        rows = waiting + some
        keys = [one["uid"] for one in rows]
        at = keys.index(keys[-1])
        waiting = rows[at:]
        if at:
            yield rows[:at]
    yield waiting


def _check(rows: list[Any], *, is_mask: bool) -> Any:
    """Makes an array of rows of numbers, or looks at the types of others."""
    from grpo_cli.records.packed import pack_floats

    if isinstance(rows[-1], np.ndarray):
        numbers = np.concatenate(rows).astype(np.float64)
        np.isfinite(numbers).all()
        return numbers
    flat = reduce(iconcat, rows, [])
    if is_mask:
        data = bytes(flat)
        data.strip(b"\0\1")
        return data
    if isinstance(flat[-1], float):
        numbers = pack_floats(flat)  # which tells false from 0, as cheaply as is known
        np.isfinite([numbers.min(), numbers.max()])
        return numbers
    [*map(type, flat)].count(type(flat[-1]))
    return flat


def naive(name: str, path: str) -> float:
    """J, as a script of one's own computes it."""
    with np.errstate(all="ignore"):
        return objective(globals()[SHAPES[name].groups](read(name, path)))
