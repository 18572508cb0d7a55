"""Prints how fast ``grpo eval`` is, as ratios taken in one run; nothing here is asserted.

    python tests/benchmarks/bench.py            # about six minutes, 450 MB in a temporary folder
    python tests/benchmarks/bench.py --small    # a tenth of it

Times on a shared machine are noisy, and the noise only ever adds: every pair is run in turns, and
the ratio of the two best times is printed.

Where the time goes (process time stage by stage, without the start of Python; one job, groups of
8 with reference; in shares of the parse loop's own time). Responses of ~1000 tokens, 1.5 in all:
reading 0.1, ``orjson.loads`` and what is around it 0.8, packing Python floats into arrays 0.3
(``struct.pack`` of whole columns: 8 ns a number against 18 for ``np.fromiter`` and 26 for
``np.array``, and it refuses strings and nulls), numpy 0.3, of which ``expm1`` of k3, which has no
vector code, is a sixth. Responses of ~8 tokens, 2.1 in all: reading 0.15, ``orjson.loads`` and the
objects around it 0.9, packing 0.5, numpy and totals 0.45. To the second, which takes half a second,
the start of the command adds some 0.15 s, or 0.5, that is in what is printed below.

What helped, in the order of what it brought: lines found in one buffer that is filled again and
again (``find`` of each newline is four times as fast as ``count`` or ``split``, and no page is
new; half of the reading, and all but a tenth of what the process that cuts files for others does);
objects decoded, looked at and packed by the handful of 128 KiB, and none of them kept any longer
(keeping one record of each stretch cost a sixth with long lines); stretches of 4 MiB, not 1 (a
twelfth); a collector and a C library told to leave the lists and the pages alone
(``engine/memory.py``, a tenth); exact sums that take numbers apart by their bits, eight exponents
to a bin (24 numbers: 22 µs → under 1); the clip worked out in place.

What was tried and is not here: larger pieces of text before packing (the Python objects leave the
cache), packing straight into one array, or row by row (no gain), ``array.array`` and
``np.fromiter`` (slower), ``math.fsum`` for the totals (exact too, but three times slower than
adding up integers by exponent). pysimdjson: its ``as_buffer`` flattens long lines 1.7 times faster
than ``orjson.loads`` and ``struct.pack`` (0.22 s against 0.37), but the nesting is lost in it, so
that widths must be asked for and brackets counted; with that a prototype of all of eval gained
1.2 times (0.54 s against 0.64, the parse loop 0.41). The mark for a dependency was 1.5.

What depends on the machine: all of this moves a lot of memory, json and torch less of it. Where
other tenants of the machine are at its memory, the scripts come closer: the numpy script took from
5.1 to 7.8 times as long as the parse loop, which is the most that anything which calls orjson can
be ahead of it (it is the product of the first and the third ratio below). Two jobs share the memory
too: 1.6 to 1.8 times as fast as one.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "grpo_cli"
TURNS = 7


def write(path: Path, records: int, tokens: int, rng: np.random.Generator) -> Path:
    """Writes a dump: groups of 8, ~``tokens`` tokens a response, with reference."""
    with path.open("wb") as stream:
        for number in range(records):
            lengths = rng.integers(max(1, tokens * 3 // 4), tokens * 5 // 4 + 1, 8)
            new = [-rng.exponential(0.5, length) - 1e-9 for length in lengths]
            record = {
                "id": number,
                "log_probs_new": [row.tolist() for row in new],
                "log_probs_old": [near(row, 0.05, rng) for row in new],
                "log_probs_ref": [near(row, 0.1, rng) for row in new],
                "rewards": rng.integers(0, 2, 8).astype(float).tolist(),
            }
            stream.write(orjson.dumps(record) + b"\n")
    return path


def near(row: np.ndarray, spread: float, rng: np.random.Generator) -> list[float]:
    return (-np.abs(row + rng.normal(0, spread, len(row)))).tolist()


def parse(path: Path) -> None:
    """The floor: decoding the file and nothing else."""
    with path.open("rb") as stream:
        for line in stream:
            orjson.loads(line)


def script(path: Path) -> None:
    """What one writes in ten minutes: json, and the textbook's functions in a loop."""
    total = 0.0
    with path.open() as stream:
        for line in stream:
            record = json.loads(line)
            rewards = np.array(record["rewards"])
            advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-8)
            value = 0.0
            for i, advantage in enumerate(advantages):
                new, old, ref = (
                    np.array(record[f"log_probs_{name}"][i]) for name in ("new", "old", "ref")
                )
                ratio = np.exp(new - old)
                clipped = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
                kl = np.exp(ref - new) - (ref - new) - 1
                value += (clipped - 0.04 * kl).mean()
            total += value / len(advantages)


def torch_script(path: Path) -> None:
    """The same with torch on the CPU: pad, mask, TRL's formula."""
    import torch

    with path.open() as stream:
        for line in stream:
            record = json.loads(line)
            rewards = torch.tensor(record["rewards"])
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
            new, old, ref = (
                torch.nn.utils.rnn.pad_sequence(
                    [torch.tensor(row) for row in record[f"log_probs_{name}"]], batch_first=True
                )
                for name in ("new", "old", "ref")
            )
            mask = (new != 0).float()
            ratio = torch.exp(new - old)
            free = ratio * advantages[:, None]
            clipped = torch.min(free, torch.clamp(ratio, 0.8, 1.2) * advantages[:, None])
            loss = -clipped + 0.04 * (torch.exp(ref - new) - (ref - new) - 1)
            ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def grpo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grpo_cli", "eval", *arguments]


def here(function: str, path: Path) -> list[str]:
    code = f"import bench, pathlib; bench.{function}(pathlib.Path({str(path)!r}))"
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); {code}"]


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def ratio(above: list[str], below: list[str], *, start: float = 0.0) -> float:
    """Two commands' times, each the best of its turns and less ``start``, which both have."""
    pairs = [(seconds(above), seconds(below)) for _ in range(TURNS)]
    over, under = (min(times) - start for times in zip(*pairs, strict=True))
    return over / under


def peak(command: list[str]) -> float:
    """The largest resident memory, MB, of a command and its workers together at most."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True
    )
    return float(found.stdout)


def show(what: str, value: float, target: str) -> None:
    print(f"{what:<64}{value:>7.2f}   target {target}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    scale = 10 if parser.parse_args().small else 1
    compileall.compile_dir(PACKAGE, quiet=1)  # as whatever pip installs
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        long = write(Path(folder) / "long.jsonl", 900 // scale, 1000, rng)
        short = write(Path(folder) / "short.jsonl", 20_000 // scale, 8, rng)
        tiny = write(Path(folder) / "tiny.jsonl", 1, 1, rng)
        report(long, short, tiny)


def report(long: Path, short: Path, tiny: Path) -> None:
    one = ("--level", "batch", "--jobs", "1")
    empty = [sys.executable, "-c", "import orjson, numpy, json"]
    start = min(seconds(empty) for _ in range(TURNS))
    for path, target in ((long, "<= 1.7"), (short, "<= 2.8")):
        value = ratio(grpo(str(path), *one), here("parse", path), start=start)
        show(f"eval --level batch --jobs 1 / orjson loop, {path.stem}", value, target)
    for path in (long, short):
        value = ratio(here("script", path), grpo(str(path), *one), start=start)
        show(f"numpy script / eval, {path.stem}", value, ">= 4")
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch is not installed: not compared")
    else:
        value = ratio(here("torch_script", long), grpo(str(long), *one), start=start)
        show("torch script / eval, long", value, ">= 5")
    two = ("--level", "batch", "--jobs", "2")
    value = ratio(grpo(str(long), *one), grpo(str(long), *two), start=start)
    show(f"--jobs 1 / --jobs 2, long ({os.cpu_count()} cores)", value, ">= 1.6")
    token = ("--level", "token", "--format", "jsonl", "--jobs", "1")
    value = ratio(grpo(str(long), *token), grpo(str(long), *one), start=start)
    show("--level token --format jsonl / --level batch, long", value, "<= 6")
    show("peak memory of --jobs 1, MB, long", peak(grpo(str(long), *one)), "<= 220, flat")
    show("peak memory of --jobs 1, MB, short", peak(grpo(str(short), *one)), "<= 220, flat")
    packages = [sys.executable, "-c", "import typer, numpy, orjson, rich, rich.table"]
    value = ratio(grpo(str(tiny)), packages)
    show("eval of a tiny file / importing the four packages", value, "<= 1.6")


if __name__ == "__main__":
    main()
