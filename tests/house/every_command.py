"""Every command on every sample, every row and every choice on a made-up batch: what is printed.

    python tests/house/every_command.py record before.json    # in the tree as it was
    python tests/house/every_command.py record after.json     # in the tree as it is
    python tests/house/every_command.py compare before.json after.json

Words behind the file's name, as ``record after.json match trend``, keep to commands of these names.

A change that moves code must leave every byte as it was. ``compare`` prints each command whose
output, messages or exit code differ, and exits with 1 if any does. The version number at the end of
signatures is not compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
_VERSION = re.compile(r"v:\d+\.\d+\.\d+")
_STAGES = ("advantage", "ratio", "surrogate", "kl", "correction", "aggregate")
NEEDED = {
    "max_completion_length": 20,
    "response_length": 20,
    "num_items_in_batch": 40,
    "batch_num_tokens": 40,
    "global_batch_size": 8,
    "clip_cov_seed": 1,
    "loss_denominator": 30,
}
"""Values of hyperparameters that have no usual one."""


def made_up(seed: int, groups: int = 2) -> dict:
    """A record with every column that a row may ask for; log-probs far enough apart to clip."""
    draw = random.Random(seed)
    record: dict = {"id": f"made-up-{seed}", "group_ids": [], "rewards": []}
    columns = ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout")
    for name in (*columns, "entropies", "tokens", "mask"):
        record[name] = []
    for group in range(groups):
        for _ in range(4):
            length = draw.randint(2, 9)
            old = [-draw.expovariate(0.8) - 0.01 for _ in range(length)]
            near = [[min(x + draw.gauss(0.0, 0.3), -1e-3) for x in old] for _ in range(3)]
            for name, values in zip(columns, (near[0], old, near[1], near[2]), strict=True):
                record[name].append(values)
            record["entropies"].append([draw.uniform(0.05, 2.0) for _ in range(length)])
            record["tokens"].append(
                [draw.choice([" the", "cat", "=", " 4"]) for _ in range(length)]
            )
            record["mask"].append([int(at != 1 or length < 4) for at in range(length)])
            record["group_ids"].append(f"g{group}")
            record["rewards"].append(round(draw.random(), 2))
    return record


def files(folder: Path) -> None:
    """The inputs, in a folder that every run starts in."""
    for name in ("samples", "rollouts", "data"):
        source = {"samples": ROOT / "samples", "rollouts": TESTS / "data" / "rollouts"}.get(
            name, TESTS / "data"
        )
        (folder / name).symlink_to(source)
    lines = [json.dumps(made_up(seed)) for seed in range(3)]
    (folder / "made_up.jsonl").write_text("\n".join(lines) + "\n")
    dead = made_up(7) | {"rewards": [1.0] * 8}
    (folder / "dead.jsonl").write_text(json.dumps(dead) + "\n")
    single = made_up(8)
    for name in ("log_probs_rollout", "log_probs_ref", "entropies", "mask"):
        single.pop(name)
    single["log_probs_old"] = single["log_probs_new"]
    single["advantages"] = [0.5, -0.5] * 4
    (folder / "on_policy.json").write_text(json.dumps(single, indent=1))
    single_groups = [json.dumps(made_up(seed, 1)) for seed in range(20, 26)]
    stepped = [json.dumps(made_up(seed, 1) | {"step": seed // 2}) for seed in range(20, 60)]
    (folder / "steps.jsonl").write_text("\n".join(stepped) + "\n")
    (folder / "groups.jsonl").write_text("\n".join(single_groups) + "\n")


def commands(folder: Path) -> Iterator[list[str]]:
    """Everything that is run."""
    registry = importlib.import_module("grpo_cli.variants")
    yield ["variants"]
    yield ["variants", "--json"]
    yield ["formats"]
    yield ["formats", "--json"]
    yield ["--help"]
    samples = sorted(f"samples/{path.name}" for path in (ROOT / "samples").glob("*.json*"))
    data = sorted(f"rollouts/{path.name}" for path in (TESTS / "data" / "rollouts").glob("*.jsonl"))
    data += sorted(f"data/{path.name}" for path in (TESTS / "data").glob("*.jsonl"))
    for sample in samples:
        variant = "dr" if "dr_" in sample else "grpo"
        for level in ("batch", "record", "response", "token"):
            for kind in ("table", "json", "jsonl", "csv"):
                yield ["eval", sample, "-v", variant, "--level", level, "-f", kind]
        yield ["eval", sample, "-v", variant, "--only", "loss"]
        for command in ("compare", "explain", "check", "verify", "show", "convert"):
            yield [command, sample]
        yield ["match", sample, "--loss", "0.1"]
        yield ["show", sample, "-v", variant, "--html", "page.html"]
        yield ["show", sample, "-v", variant, "--svg", "page.svg"]
        yield ["eval", sample, "--on-error", "skip", "--json"]
    plan = importlib.import_module("grpo_cli.variants.plan").plan
    for name in registry.VARIANTS:
        needed = _needed(plan(name).takes())
        yield ["explain", name]
        yield ["explain", name, "--json"]
        yield ["eval", "made_up.jsonl", "-v", name, "--level", "token", "--json"]
        yield ["eval", "made_up.jsonl", "-v", name, "--level", "token", "--json", *needed]
        yield ["eval", "made_up.jsonl", "-v", name, "--batch", "record", *needed]
        yield ["eval", "made_up.jsonl", "-v", name, "-p", "entropy_coef=0.1", *needed]
        yield ["explain", "made_up.jsonl", "-v", name, *needed]
    objective = importlib.import_module("grpo_cli.variants")
    stages = getattr(objective, "STAGES", None)
    if stages is None:
        stages = importlib.import_module("grpo_cli.objective.objective").STAGES
    for stage in _STAGES:
        for choice in stages[stage].choices:
            needed = _needed(plan("grpo", stages={stage: choice}).takes())
            base = ["eval", "made_up.jsonl", "-v", "grpo", f"--{stage}", choice, *needed]
            yield [*base, "--level", "token", "-f", "json"]
            yield [*base, "--level", "batch", "-f", "json", "--batch", "record"]
    for file in (*data, "made_up.jsonl", "dead.jsonl", "on_policy.json", "groups.jsonl"):
        yield ["eval", file, "--json", "--level", "response", "--on-error", "skip"]
        yield ["eval", file, "-v", "dr", "--level", "token", "-f", "csv"]
        yield ["verify", file, "--json"]
        yield ["verify", file]
        yield ["check", file, "--json"]
        yield ["check", file]
        yield ["explain", file, "-v", "dr"]
        yield ["explain", file, "-v", "dapo", "--json"]
        yield ["compare", file, "-v", "all", "--json"]
        yield ["compare", file]
        yield ["convert", file]
        yield ["show", file, "-v", "dr", "--color", "always"]
        yield ["show", file, "-v", "dr", "--by", "ratio", "--html", "page.html"]
        yield ["report", file, "-v", "dr", "--step", "file"]
        yield ["trend", file, "-v", "dr", "--step", "file", "--json"]
        yield ["match", file, "--logged", "loss=expected.loss", "--json"]
        for kind in ("md", "jsonl"):
            yield ["eval", file, "-v", "dr", "-f", kind, "--batch", "record"]
    steps = ["samples/run", "steps.jsonl"]
    for file in steps:
        for word in ((), ("--json",), ("-f", "csv"), ("-f", "jsonl"), ("-f", "md")):
            yield ["trend", file, *word]
            yield ["diff", file, "steps.jsonl", *word]
        yield ["report", file, "-o", "page.html"]
        yield ["eval", file, "--batch", "step", "--json"]
        yield ["compare", file, "-v", "all", "--json"]
        yield ["explain", file]
        yield ["check", file, "--json"]
    for topic in importlib.import_module("grpo_cli.commands.help.words").topics():
        yield ["help", topic]
    for file in ("made_up.jsonl", "groups.jsonl", "samples/arithmetic.jsonl"):
        for loss in ("0.0256", "0.012345678", "-0.1"):
            yield ["match", file, "--loss", loss, "--json"]
    yield ["eval", "missing.jsonl"]
    yield ["eval", "made_up.jsonl", "-v", "nothing"]
    yield ["eval", "made_up.jsonl", "--kl", "k9"]


def _needed(takes: set[str]) -> list[str]:
    return [
        word
        for name, value in NEEDED.items()
        if name in takes
        for word in ("-p", f"{name}={value}")
    ]


def main_function() -> object:
    """The command line's entry point, wherever this tree has it."""
    for module in ("grpo_cli.commands.main", "grpo_cli.cli.main"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError:
            continue
    raise SystemExit("no command line found")


def _start(folder: str) -> None:
    os.chdir(folder)
    os.environ.update(COLUMNS="100", TERM="xterm-256color", COLORTERM="truecolor")
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS"):
        os.environ.pop(name, None)


def run(command: list[str]) -> tuple[str, dict]:
    """One command in this process: exit code, both streams, and the page that it wrote."""
    from typer.testing import CliRunner

    sys.argv = ["grpo", *command]  # pages have the command that made them
    own = tempfile.mkdtemp(dir=".")
    written = [f"{own}/{word}" if word in ("page.html", "page.svg") else word for word in command]
    with contextlib.redirect_stdout(io.StringIO()):
        result = CliRunner().invoke(main_function().application(), written)
    page = "".join(path.read_text() for path in sorted(Path(own).iterdir()))
    out, err = (_VERSION.sub("v:V", text) for text in (result.stdout, result.stderr))
    err = err.replace(own, ".")
    crash = (
        ""
        if result.exception is None or isinstance(result.exception, SystemExit)
        else (repr(result.exception))
    )
    digest = hashlib.sha256((out + _VERSION.sub("v:V", page)).encode()).hexdigest()
    return " ".join(command), {
        "code": result.exit_code,
        "stdout": digest,
        "stderr": err,
        "crash": crash,
        "head": out[:20000],
    }


def record(path: str, *only: str) -> None:
    """Runs everything, or some commands, and keeps what they printed."""
    place = Path(path).resolve()
    with tempfile.TemporaryDirectory() as folder:
        files(Path(folder))
        everything = [one for one in commands(Path(folder)) if not only or one[0] in only]
        with Pool(initializer=_start, initargs=(folder,)) as pool:
            found = dict(pool.map(run, everything, chunksize=8))
    place.write_text(json.dumps(found, indent=0))
    print(f"{len(found)} commands")


def compare(before: str, after: str) -> int:
    """Prints what differs; how many commands do."""
    old, new = (json.loads(Path(path).read_text()) for path in (before, after))
    commands_run = {command.split()[0] for command in new}
    old = {command: one for command, one in old.items() if command.split()[0] in commands_run}
    differing = 0
    for command in dict.fromkeys([*old, *new]):
        left, right = old.get(command), new.get(command)
        if left == right:
            continue
        differing += 1
        print(f"--- grpo {command}")
        for key in ("code", "crash", "stderr", "head"):
            one, other = (None if side is None else side[key] for side in (left, right))
            if one != other:
                print(f"    {key}:\n      {_first(one, other)}\n      {_first(other, one)}")
    print(f"{differing} of {len(old)} differ")
    return int(differing > 0)


def _first(one: object, other: object) -> str:
    """Where two texts part."""
    left, right = str(one), str(other)
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    return repr(left[max(at - 60, 0) : at + 120])


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    else:
        sys.exit(compare(sys.argv[2], sys.argv[3]))
