"""Every output format of every command, and the hooks' writer, over large made-up data.

    python tests/soak.py                       # some minutes
    python tests/soak.py --records 60          # the size that the tests run

Each command is a process of its own under ``PYTHONMALLOC=debug``, which fences every block of
memory: a library that writes past its buffer, as orjson 3.12.0 and 3.13.0 do, ends it with an abort
instead of a wrong byte some time later. The data are made to provoke that: columns of nothing but
numbers of 24 characters, in hundreds of records of all lengths, since what is past the end of a
buffer depends on where in it a list begins; int8 columns; extra fields nested deeply. What is
asserted: every command ends as it should (0, or 1 where the answer is no), with no traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LEVELS = ("batch", "record", "response", "token")
Command = list[str]


SCALES = ("e-300", "e-05")
"""Magnitudes at which a negative double of 17 digits takes 24 characters, as JSON writes them."""


def long_number(draw: random.Random, scale: str = SCALES[0]) -> float:
    """A negative number of 24 characters."""
    return -float(f"{draw.uniform(1, 9):.16f}{scale}")


def record(number: int, tokens: int, draw: random.Random) -> dict[str, Any]:
    """A record whose log ratios, advantages, contributions and gradients are all such numbers.

    The rewards have one magnitude, so that all but one of the advantages (r − r̄) are negative.
    """
    scale = SCALES[number % 2]
    lengths = [draw.randrange(1, tokens + 1) for _ in range(4)]
    value: dict[str, Any] = {"id": f"made-up-{number}"}
    for name in ("log_probs_new", "log_probs_old", "log_probs_ref", "log_probs_rollout"):
        value[name] = [[long_number(draw, scale) for _ in range(length)] for length in lengths]
    value["entropies"] = [[-long_number(draw) for _ in range(length)] for length in lengths]
    value["tokens"] = [["\x01" * draw.choice((1, 61)) for _ in range(n)] for n in lengths]
    value["token_ids"] = [[draw.choice((7, 2**53)) for _ in range(n)] for n in lengths]
    value["rewards"] = [float(f"{r:.16f}{scale}") for r in (8.7 + draw.random() / 10, 0, 0, 0)]
    value["meta"] = {"deep": deep(20, draw), "numbers": [long_number(draw) for _ in range(61)]}
    value["expected"] = {
        "loss": long_number(draw, scale),
        "loss_gradient": [[long_number(draw, scale) for _ in range(n)] for n in lengths],
        "metrics": {f"\x01{at}": long_number(draw) for at in range(70)},
    }
    return value


def deep(depth: int, draw: random.Random) -> Any:
    """Numbers at every level of a nesting."""
    value: Any = [long_number(draw) for _ in range(17)]
    for _ in range(depth):
        value = ["\x01" * 61, value, long_number(draw)]
    return value


def files(folder: Path, records: int, tokens: int, seed: int) -> None:
    """The inputs: records as lines, packed, and the int8 and half columns of an npz."""
    import gzip

    import numpy as np

    draw = random.Random(seed)
    made = [record(at, tokens * (15 if at % 20 == 0 else 1), draw) for at in range(records)]
    text = "".join(json.dumps(one) + "\n" for one in made)
    (folder / "in.jsonl").write_text(text)
    (folder / "few.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made[1:9]))
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(text.encode(), 1))
    shape = (8, 15 * tokens)
    np.savez(
        folder / "in.npz",
        log_probs_new=np.full(shape, -1.2345678901234567e-300),
        log_probs_old=np.full(shape, -1, np.int8),
        log_probs_ref=np.full(shape, -1.2345678901234567e-5, np.float32),
        mask=np.ones(shape, np.int8),
        token_ids=np.full(shape, -128, np.int8),
        rewards=np.arange(8, dtype=np.int8),
        entropies=np.full(shape, 1e-7, np.float16),
    )


def commands() -> Iterator[Command]:
    """Every command in every format that it writes, on each of the inputs."""
    for name in ("in.jsonl", "in.npz"):
        yield from _evaluations(name)
    for name in ("few.jsonl", "in.npz"):
        yield from _pages(name)
    yield ["eval", "in.jsonl.gz", "-v", "dr", "--json", "--level", "token", "--jobs", "2"]
    yield ["eval", "in.jsonl", "--advantage", "batch-whiten", "-f", "jsonl"]
    yield ["convert", "in.jsonl"]
    for name in ("formats", "variants"):
        yield from ([name], [name, "--json"])
    yield from (["explain", "grpo"], ["explain", "trl/grpo", "--json"])


def _evaluations(name: str) -> Iterator[Command]:
    for level in _LEVELS:
        for kind in ("table", "json", "jsonl", "csv"):
            limit = ["--limit", "0"] if kind != "table" else []
            yield ["eval", name, "-v", "dr", "--level", level, "-f", kind, *limit]
    yield ["eval", name, "-v", "trl/grpo", "--beta", "0.1", "--level", "token", "-f", "jsonl"]
    yield ["eval", name, "-v", "dr", "--level", "token", "--only", "gradient"]
    yield ["eval", name, "-v", "dr", "--level", "token", "-f", "jsonl", "-o", "out.jsonl"]


def _pages(name: str) -> Iterator[Command]:
    loss = ["--loss", "0.1", "-v", "dr", "--aggregate", "token-mean", "--kl", "none"]
    pages = {
        "compare": ["--variants", "grpo,dr,dapo,trl/grpo,verl/vanilla"],
        "match": loss, "explain": ["-v", "dr"],
        "check": ["--limit", "0"],
    }  # fmt: skip
    if name != "in.npz":  # which cannot say what it expects
        pages["verify"] = ["-v", "dr"]
    for command, flags in pages.items():
        yield from ([command, name, *flags], [command, name, *flags, "--json"])
    yield ["show", name, "-v", "dr", "--color", "always"]
    yield from (["show", name, "-v", "dr", f"--{kind}", f"page.{kind}"] for kind in ("html", "svg"))
    yield from (["convert", name, "-o", f"out.{kind}"] for kind in ("jsonl", "parquet"))


WRITER = """
import sys
import numpy as np
from grpo_cli.hooks.writer import Writer

draw = np.random.default_rng(int(sys.argv[1]))
for path in ("hook.jsonl", "hook.jsonl.gz"):
    with Writer(path) as writer:
        for size in (*range(1, int(sys.argv[2])), 2701, 30000):
            exact = -draw.uniform(1, 9, size) * 10.0 ** draw.choice([-300, -5])
            record = {
                "id": size,
                "log_probs_new": [exact, np.full(size, -1.2345678901234567e-300)],
                "mask": np.ones((3, size), np.int8),
                "rewards": np.full(size, -128, np.int8),
                "log_probs_old": exact.astype(np.float32),
                "loss_gradient": [exact * 1.0000000000000002, exact],
                "tokens": ["\\x01" * 61] * 10 + [-1.2345678901234567e-300] * 17,
                "deep": [[[[[["\\x01" * 61, exact]]]]]],
            }
            writer.write(lambda record=record: record)
"""


def ended(name: str, code: int) -> str:
    """What is wrong with an exit code; empty where it is as it should be."""
    no = name.split()[0] in ("verify", "check", "match") and code == 1
    if code == 0 or no:
        return ""
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"


def soak(folder: Path, every: list[Command], sizes: int) -> list[str]:
    """Runs the commands, and the writer; returns what failed, a line each."""
    environment = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    runs = [(" ".join(one), ["-m", "grpo_cli", *one]) for one in every]
    runs += [(f"hooks' writer, seed {n}", ["-c", WRITER, str(n), str(sizes)]) for n in (1, 2)]
    failed = []
    for name, words in runs:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environment, check=False, timeout=3600,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        bad = ended(name, done.returncode)
        if bad or b"Traceback" in done.stderr:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            failed.append(f"{name}: {bad or 'a traceback'}: {' '.join(said[:2])[:200]}")
    return failed


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=80, help="of a response, 15 times in some")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    import orjson

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        files(Path(folder), given.records, given.tokens, given.seed)
        every = [*commands()]
        failed = soak(Path(folder), every, given.records)
    seconds = time.monotonic() - began
    print(*failed, sep="\n")
    print(
        f"orjson {orjson.__version__}: {len(every) + 2} runs, {len(failed)} failed, {seconds:.0f} s"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
