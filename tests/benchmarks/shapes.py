"""Dumps as frameworks write them, and what a user would write instead of ``grpo eval``.

    python tests/benchmarks/shapes.py write trl dump.jsonl --megabytes 40
    python tests/benchmarks/shapes.py loop trl dump.jsonl     # decodes it, and nothing else
    python tests/benchmarks/shapes.py columns trl dump.jsonl  # and makes arrays of its columns
    python tests/benchmarks/shapes.py evaluated trl dump.jsonl  # and J of them
    python tests/benchmarks/shapes.py naive trl dump.jsonl    # prints J of GRPO, checks nothing

Log-probs are float32 written as the double that they are, as ``tolist`` of a tensor gives them.
The fields of TRL and verl are those that the hooks of this package write, with the settings of
``tests/data/rollouts``; ``tests/formats/dumps.py`` cites the sources of the other frameworks.
"""

from __future__ import annotations

import argparse
import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import count, islice, pairwise
from operator import iconcat
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import orjson

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

GROUP = 8
Object = dict[str, Any]
Group = tuple[Any, Any, Any, Any, Any]
"""New, old and reference log-probs of some responses (no reference: None), their advantages, and
(ε low, ε high, β)."""
USUAL = (0.2, 0.2, 0.04)


class Shape(NamedTuple):
    """A kind of dump.

    Attributes:
        title: what writes it, and its size.
        objects: an endless source of its lines or rows.
        groups: what a user's own script makes of an object.
        flags: what ``grpo`` needs to read it.
        suffix: of its files.
        commands: the commands that are timed.
        most: records, where the shape is about small files.
    """

    title: str
    objects: Callable[[np.random.Generator], Iterator[Object]]
    groups: Callable[[Iterable[Object]], Iterator[Group]]
    flags: tuple[str, ...] = ()
    suffix: str = ".jsonl"
    commands: tuple[str, ...] = ("check", "trend", "diff", "explain", "report")
    most: int | None = None


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

    def of_tokens(self, values: list[float]) -> list[list[float]]:
        return [[value] * len(row) for value, row in zip(values, self.ids, strict=True)]


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


# ---- hooks --------------------------------------------------------------------------------------


def trl(draw: np.random.Generator, tokens: int) -> Iterator[Object]:
    """``grpo_cli.hooks.trl``: a micro-batch a line; a step has eight (trl.made)."""
    for number in count():
        step = number // 8
        made = rollout(draw, tokens)
        record: Object = {
            "id": f"grpo/{number}",
            "step": step,
            "tokens": made.words,
            "completion_ids": made.ids,
            "per_token_logps": made.new,
            "old_per_token_logps": made.old,
            "ref_per_token_logps": made.ref,
            "advantages": made.advantages,
            "rewards": made.rewards,
            "hyperparameters": {
                "epsilon_low": 0.2,
                "epsilon_high": 0.2,
                "beta": 0.04,
                "max_completion_length": 2 * tokens,
                "num_items_in_batch": 8 * GROUP * tokens - step % 97,
                "gradient_accumulation_steps": 8,
                "steps_per_generation": 8,
            },
            "framework": {
                "name": "trl",
                "version": "1.16.0",
                "loss_type": "grpo",
                "importance_sampling_level": "token",
                "use_bias_correction_kl": True,
                "off_policy_mask_threshold": None,
                "scale_rewards": "group",
            },
        }
        yield record | {"expected": expected(record, "trl/grpo")}


def expected(record: Object, variant: str) -> Object:
    """The loss and its gradient, as the hooks record them."""
    from grpo_cli import evaluate

    found = evaluate(record, variant=variant)
    return {"loss": found.loss, "loss_gradient": [-np.array(row) for row in found.gradient]}


def verl(draw: np.random.Generator, tokens: int) -> Iterator[Object]:
    """``grpo_cli.hooks.verl``: a call of the policy loss a line (verl.made)."""
    for number in count():
        made = rollout(draw, tokens)
        record: Object = {
            "id": number,
            "log_probs_new": made.new,
            "log_probs_old": made.old,
            "advantages": made.of_tokens(made.advantages),
            "framework": {"name": "verl", "version": "0.9.1", "policy_loss": "vanilla"},
            "hyperparameters": {
                "epsilon_low": 0.2,
                "epsilon_high": 0.2,
                "beta": 0.0,
                "response_length": 2 * tokens,
                "clip_ratio_c": 3.0,
                "dp_size": 1,
                "batch_num_tokens": sum(map(len, made.ids)),
            },
            "step": number // 8,
        }
        yield record | {"expected": expected(record, "verl/vanilla")}


# ---- what frameworks write by themselves --------------------------------------------------------

PROMPT = "Solve the problem step by step, then give the answer in a box. " * 6


def verl_rows(draw: np.random.Generator) -> Iterator[Object]:
    """verl's ``rollout_data_dir``, with the log-probs of the batch put into its rows."""
    for number in count():
        made = rollout(draw, 250)
        for at in range(GROUP):
            yield {
                "input": PROMPT,
                "output": "".join(made.words[at]),
                "gts": str(number),
                "score": made.rewards[at],
                "step": number // 8,
                "uid": f"{number:08x}-0a1b-4c2d",
                "response_ids": made.ids[at],
                "log_probs": made.new[at],
                "old_log_probs": made.old[at],
                "ref_log_prob": made.ref[at],
                "response_mask": [1] * len(made.ids[at]),
            }


def verifiers(draw: np.random.Generator) -> Iterator[Object]:
    """``train/effective/traces.jsonl``: an episode a line, of two turns."""
    for number in count():
        made = rollout(draw, 250, 2)
        nodes: list[Object] = []
        for turn in range(2):
            prompt = draw.integers(0, 151_643, 60).tolist()
            ids = made.ids[turn]
            nodes.append(
                {
                    **({"parent": len(nodes) - 1} if nodes else {}),
                    "message": {"role": "user", "content": PROMPT},
                    "sampled": False,
                    "token_ids": prompt,
                    "mask": [False] * len(prompt),
                    "is_content": [],
                    "logprobs": [],
                }
            )
            nodes.append(
                {
                    "parent": len(nodes) - 1,
                    "message": {"role": "assistant", "content": "".join(made.words[turn])},
                    "sampled": True,
                    "token_ids": [99, *ids],
                    "mask": [False] + [True] * len(ids),
                    "logprobs": made.old[turn],
                    "advantages": [made.advantages[0]] * len(ids),
                    "reference_logprobs": made.ref[turn],
                }
            )
        yield {
            "id": f"episode-{number}",
            "task": {"name": "math", "prompt": PROMPT},
            "env": {"id": "math"},
            "group": {"id": f"g{number // 8}"},
            "run": {"type": "train", "id": "r", "work": {"type": "train", "step": number // 64}},
            "ok": True,
            "traces": [
                {
                    "id": f"trace-{number}",
                    "task": {"name": "math"},
                    "agent": {"name": "a"},
                    "nodes": nodes,
                    "rewards": {"right": {"score": made.rewards[0], "weight": 1.0}},
                }
            ],
        }


def prime_rl(draw: np.random.Generator) -> Iterator[Object]:
    """``token_exports/step_{N}/rank_{R}.jsonl``: a sequence a line, its prompt in it."""
    for number in count():
        made = rollout(draw, 250, 1)
        (ids,), (new,), (old,) = made.ids, made.new, made.old
        prompt = draw.integers(0, 151_643, 60).tolist()
        before: list[float] = [0.0] * len(prompt)
        size = len(prompt) + len(ids)
        ratio = (np.array(new) - np.array(old)).tolist()
        yield {
            "schema_version": 1,
            "step": number // 64,
            "export_step": number // 64,
            "rank": 0,
            "micro_step": number % 8,
            "micro_sequence_idx": number % 64,
            "export_sequence_idx": number,
            "run_id": None,
            "env_name": "math",
            "token_ids": prompt + ids,
            "position_ids": [*range(size)],
            "loss_mask": [False] * len(prompt) + [True] * len(ids),
            "advantages": before + [0.5] * len(ids),
            "losses": [{}] * size,
            "rewards": [None] * len(prompt) + made.rewards * len(ids),
            "inference_logprobs": before + old,
            "trainer_logprobs": before + new,
            "entropy": before + _floats(draw.exponential(0.5, len(ids))).tolist(),
            "mismatch_kl": [None] * len(prompt) + [0.001] * len(ids),
            "log_importance_ratio": before + ratio,
            "importance_ratio": before + np.exp(ratio).tolist(),
            "prob_delta": before + ratio,
            **{name: [False] * size for name in ("is_masked", "is_masked_high", "is_masked_low")},
        }


def unipo(draw: np.random.Generator) -> Iterator[Object]:
    """A header, then a step of two prompts a line."""
    yield {
        "type": "header",
        "task": "math",
        "algorithm": "grpo",
        "totalSteps": 100,
        "hparams": {"gamma": 1.0, "clip_eps": 0.2, "kl_coef": 0.04, "learning_rate": 1e-6},
    }
    for step in count():
        prompts = []
        for _ in range(2):
            made = rollout(draw, 150)
            prompts.append(
                {
                    "prompt": PROMPT,
                    "responses": [
                        {
                            "id": f"step{step}_{at}",
                            "reward": made.rewards[at],
                            "advantage": made.advantages[at],
                            "response_text": "".join(made.words[at]),
                            "response_length": len(made.ids[at]),
                            "tokens": {
                                "ids": made.ids[at],
                                "strings": made.words[at],
                                "log_probs": made.new[at],
                                "old_log_probs": made.old[at],
                                "ref_log_probs": made.ref[at],
                                "token_kl": [0.0] * len(made.ids[at]),
                                "token_objective": made.new[at],
                            },
                        }
                        for at in range(GROUP)
                    ],
                }
            )
        yield {"type": "step", "step": step, "metrics": {"reward": 0.4}, "prompts": prompts}


def openrlhf(draw: np.random.Generator) -> Iterator[Object]:
    """An Experience a line, with its prompts and labels as text."""
    for number in count():
        made = rollout(draw, 250)
        yield {
            "prompts": [PROMPT] * GROUP,
            "labels": [str(number)] * GROUP,
            "step": number // 8,
            "sequences": made.ids,
            "action_log_probs": made.new,
            "old_action_log_probs": made.old,
            "base_action_log_probs": made.ref,
            "action_mask": [[1] * len(row) for row in made.ids],
            "rewards": made.rewards,
            "info": {"kl": 0.01, "response_length": [len(row) for row in made.ids]},
        }


def slime(draw: np.random.Generator) -> Iterator[Object]:
    """The samples of ``train_data/{rollout_id}.pt``."""
    for number in count():
        made = rollout(draw, 1000)
        prompt = draw.integers(0, 151_643, 60)
        for at in range(GROUP):
            width = len(made.ids[at])
            yield {
                "data_parallel_rank": 0,
                "sample_index": number,
                "rollout_position": None,
                "tokens": np.concatenate([prompt, made.ids[at]]),
                "total_lengths": len(prompt) + width,
                "response_lengths": width,
                "rewards": made.advantages[at],
                "raw_reward": made.rewards[at],
                "truncated": 0,
                "loss_masks": np.ones(width, np.int32),
                **{
                    name: np.array(values, np.float32)
                    for name, values in {
                        "log_probs": made.new[at],
                        "ref_log_probs": made.ref[at],
                        "rollout_log_probs": made.old[at],
                        "advantages": [made.advantages[at]] * width,
                    }.items()
                },
            }


def rows(draw: np.random.Generator) -> Iterator[Object]:
    """Rows of a table: one response each, with its texts."""
    for one in verl_rows(draw):
        yield {name: one[name] for name in one if name not in ("response_mask", "gts")} | {
            "tokens": [WORDS[number % len(WORDS)] for number in one["response_ids"]]
        }


# ---- small records ------------------------------------------------------------------------------


def settings(draw: np.random.Generator, tokens: int = 150) -> Iterator[Object]:
    """ε and β that differ from record to record: sixteen runs of a sweep that write to one file."""
    for number in count():
        given = {"epsilon_low": 0.2, "epsilon_high": 0.2 + 0.02 * (number % 4)}
        yield _given(draw, number, tokens, given | {"beta": 0.01 * (number // 4 % 4 + 1)})


def tiny(draw: np.random.Generator) -> Iterator[Object]:
    """Two tokens of eight responses, each record with a β of its own."""
    for number in count():
        given = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.04 * 0.999**number}
        yield _given(draw, number, 2, given)


def _given(draw: np.random.Generator, number: int, tokens: int, given: Object) -> Object:
    made = rollout(draw, tokens)
    logs = {"log_probs_new": made.new, "log_probs_old": made.old, "log_probs_ref": made.ref}
    about = {"id": number, "step": number // 16}
    return about | logs | {"rewards": made.rewards, "hyperparameters": given}


def steps(draw: np.random.Generator) -> Iterator[Object]:
    """A step a record."""
    for step, one in enumerate(bare(draw, 4)):
        yield one | {"step": step}


def bare(draw: np.random.Generator, tokens: int = 250) -> Iterator[Object]:
    """Lists of numbers alone, which no trainer writes."""
    for number in count():
        made = rollout(draw, tokens)
        logs = {"log_probs_new": made.new, "log_probs_old": made.old, "log_probs_ref": made.ref}
        yield {"id": number, **logs, "rewards": made.rewards}


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


SHAPES = {
    "trl": Shape("TRL hook, 8 × 200 tokens", lambda draw: trl(draw, 200), of_records),
    "trl-short": Shape("TRL hook, 8 × 20 tokens", lambda draw: trl(draw, 20), of_records),
    "verl": Shape("verl hook, 8 × 250 tokens", lambda draw: verl(draw, 250), of_records),
    "settings": Shape("ε and β that alternate by record, 8 × 150", settings, of_records),
    "verl-rows": Shape(
        "verl rollout dump, one row per response", verl_rows, of_rows, ("--group-by", "uid")
    ),
    "verifiers": Shape("verifiers traces, 2 turns of 250", verifiers, of_traces),
    "prime-rl": Shape("prime-rl export, one sequence per line", prime_rl, of_exports),
    "slime": Shape("slime .pt, 1000 tokens", slime, of_samples, suffix=".pt"),
    "unipo": Shape("UNIPO, steps of 16 × 150", unipo, of_steps),
    "parquet": Shape(
        "Parquet, one row per response, with strings",
        rows,
        of_rows,
        ("--group-by", "uid"),
        ".parquet",
    ),
    "openrlhf": Shape("OpenRLHF-like, prompts as text", openrlhf, of_records),
    "tiny": Shape(
        "3,000 tiny records, each its own settings", tiny, of_records, commands=(), most=3_000
    ),
    "steps": Shape(
        "20,000 steps of one record of 8 × 4", steps, of_records, commands=("trend",), most=20_000
    ),
    "bare": Shape("only lists of numbers, 8 × 250", bare, of_records, commands=("check", "diff")),
}


# ---- files --------------------------------------------------------------------------------------


def write(name: str, path: Path, megabytes: float, seed: int = 7) -> Path:
    """Writes a dump of at least so many megabytes; of 0, the smallest that there is."""
    shape = SHAPES[name]
    found = shape.objects(np.random.default_rng(seed))
    fewest = GROUP if shape.groups in (of_rows, of_samples) else 2
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
    groups: Any, columns: dict[str, Any], widths: np.ndarray, objects: list[Object]
) -> tuple[list[float], np.ndarray]:
    """Sums over responses, of those that ``totals`` names, and every token's ratio."""
    names = (one + other for one, other in zip(LOGS, OTHER_LOGS, strict=True))
    logs = [next((columns[key] for key in each if key in columns), None) for each in names]
    advantages = _advantages(groups, columns, objects)
    if len(advantages) < len(logs[0]):
        advantages = np.repeat(advantages, widths)
    if groups is of_exports:
        kept = np.frombuffer(columns["loss_mask"], np.bool_)
        widths = np.add.reduceat(kept, np.cumsum(widths) - widths, dtype=np.int64)
        logs = [one if one is None else one[kept] for one in logs]
        advantages = advantages[kept]
    if groups is of_traces:
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


def _advantages(groups: Any, columns: dict[str, Any], objects: list[Object]) -> np.ndarray:
    """A number for each token or response."""
    if "advantages" in columns:
        return columns["advantages"]
    if groups is of_steps:
        prompts = [prompt for one in objects for prompt in one.get("prompts", ())]
        return np.array([one["advantage"] for each in prompts for one in each["responses"]])
    key = "score" if groups is of_rows else "rewards"
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
    advantages = _advantages(of_rows, {}, about.select(["score"]).to_pylist())
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
    for objects in _whole_groups(chunks) if SHAPES[name].groups is of_rows else chunks:
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
HOLDERS: Mapping[Any, Callable[[list[Object]], list[Object]]] = {
    of_traces: lambda objects: [node for one in objects for node in one["traces"][0]["nodes"]],
    of_steps: lambda objects: [
        response["tokens"]
        for one in objects
        for prompt in one.get("prompts", ())
        for response in prompt["responses"]
    ],
    of_samples: lambda objects: [sample for one in objects for sample in one["samples"]],
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
        return objective(SHAPES[name].groups(read(name, path)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "loop", "columns", "evaluated", "naive"))
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path")
    parser.add_argument("--megabytes", type=float, default=40.0)
    given = parser.parse_args()
    if given.what == "write":
        write(given.shape, Path(given.path), given.megabytes)
    elif given.what in ("loop", "columns"):
        (loop if given.what == "loop" else columns)(given.shape, given.path)
    else:
        print((naive if given.what == "naive" else evaluated)(given.shape, given.path))


if __name__ == "__main__":
    main()
