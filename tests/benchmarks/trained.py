"""Prints what ``grpo trend`` finds in runs that TRL really trains, with the faults that end runs.

    python tests/benchmarks/trained.py FOLDER --seeds 3 --train  # two minutes each
    python tests/benchmarks/trained.py FOLDER --seeds 3 --judge  # what is there, judged again

A Qwen2 of two layers, made at random, is trained for 200 steps and recorded by the project's hook;
a fault holds from step 100 on. It is judged as the simulated runs are (``runs.py``). It needs the
extra ``parity``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

import torch  # noqa: E402
from parity import runs as parity_runs  # noqa: E402
from parity import tiny  # noqa: E402
from parity.runs import Fault, Run  # noqa: E402
from running import kinds  # noqa: E402
from running.judge import Answer, Verdict, ask, judge, looked  # noqa: E402
from running.kinds import DOWN, EITHER, UP, Kind  # noqa: E402
from runs import HEAD, prefixes, row  # noqa: E402
from trials.score import table  # noqa: E402

STEPS, ONSET = 200, 100
LEARNT = {
    kinds.KL: EITHER,
    kinds.SHARP: EITHER,
    r"reward_.*|groups_.*|length_.*|at_longest|truncated|repetition": EITHER,
    r"gradient_norm|longest_quarter": EITHER,
}


def healthy(run: Run, since: int) -> None:
    """Nothing is wrong."""


def rate_once(run: Run, since: int) -> None:
    """Twenty times the learning rate, for one step."""
    if since < 2:
        parity_runs.change_rate(run, 20.0 if since == 0 else 1.0 / 20.0)


def temperature(run: Run, since: int) -> None:
    """The engine samples at 0.7 while the trainer scores at 1."""
    parity_runs.temperature(run, since)


def poisoned(run: Run, since: int) -> None:
    """A reward of a million, once."""

    def pay(completions: list[str], **_: object) -> list[float]:
        return [1e6, *tiny.letters(completions)[1:]]

    run.pay = pay if since == 0 else tiny.letters


def _paying(reward: Callable[[str], float], rate: float) -> Fault:
    """Only this is paid for, the learning rate is so many times as high, and the KL is not paid."""

    def pay(completions: list[str], **_: object) -> list[float]:
        return [reward(text) for text in completions]

    def hold(run: Run, since: int) -> None:
        run.pay, run.trainer.beta = pay, 1e-9
        if since == 0:
            parity_runs.change_rate(run, rate)

    return hold


def _letters(text: str) -> float:
    return tiny.letters([text])[0]


def _repeated(text: str) -> float:
    return sum(map(str.__eq__, text, text[1:])) / max(len(text), 1)


def _arbitrary(text: str) -> float:
    return zlib.crc32(text.encode()) % 97 / 97


def halved(run: Run, since: int) -> None:
    """The reference moves, once, more than half of the way to the policy."""
    if since == 0:
        policy, reference = run.trainer.model.state_dict(), run.trainer.ref_model.state_dict()
        moved = {name: value.lerp(policy[name], 0.5) for name, value in reference.items()}
        run.trainer.ref_model.load_state_dict(moved)


def periodic(run: Run, since: int) -> None:
    """The engine is off by thirty times as much at every fifth step."""
    run.noise = parity_runs.NOISE * (30.0 if since % 5 == 0 else 1.0)


def dead(run: Run, since: int) -> None:
    """A group more is paid the same for all its completions, every seventh step."""
    equal = 4 * min(since // 7 + 1, 4)

    def pay(completions: list[str], **_: object) -> list[float]:
        return [1.0] * equal + tiny.letters(completions)[equal:]

    run.pay = pay


def longer(run: Run, since: int) -> None:
    """Length is paid for, more and more, and completions may be twice as long."""
    run.trainer.generation_config.max_new_tokens = 16 + min(since, 16)
    weight = min((since + 1) / 20, 1.0)

    def pay(completions: list[str], **_: object) -> list[float]:
        shares = tiny.letters(completions)
        return [s + weight * len(text) / 12 for s, text in zip(shares, completions, strict=True)]

    run.pay = pay


def truncated(run: Run, since: int) -> None:
    """Completions are cut, by a token more every other step, down to four."""
    run.trainer.generation_config.max_new_tokens = max(15 - since // 2, 4)


def infinite(run: Run, since: int) -> None:
    """A reward is infinite, once: advantages are NaN, and the optimizer skips the step."""

    def pay(completions: list[str], **_: object) -> list[float]:
        return [float("inf"), *tiny.letters(completions)[1:]]

    run.pay = pay if since == 0 else tiny.letters


FAULTS: dict[str, Fault] = {
    "healthy": healthy,
    "rate-once": rate_once,
    "temperature": temperature,
    "poisoned": poisoned,
    "collapse": _paying(_letters, 8.0),
    "loops": _paying(_repeated, 5.0),
    "kl": _paying(_arbitrary, 15.0),
    "kl-halved": halved,
    "periodic": periodic,
    "dead": dead,
    "truncated": truncated,
    "length": longer,
    "infinite": infinite,
}
SIMULATED = {kind.name: kind for kind in kinds.KINDS}
RATE_ONCE = SIMULATED["learning rate × 20, one step"]
TEMPERATURE = SIMULATED["temperature 0.7 in the engine"]
COLLAPSE = SIMULATED["entropy, gradual"]
LOOPS = SIMULATED["loops → 70 %"]
JUDGED = {
    "healthy": kinds.HEALTHY_RUN,
    "rate-once": replace(RATE_ONCE, signs={**LEARNT, kinds.RATIOS: EITHER}),
    "temperature": replace(TEMPERATURE, signs={**kinds.MISMATCH_UP, kinds.SHARP: DOWN}),
    "poisoned": Kind("a reward of 10⁶", None, {r"reward.*": UP}, marked=True, within=1),
    "collapse": replace(COLLAPSE, signs={**COLLAPSE.signs, kinds.KL: UP}),
    "loops": replace(LOOPS, signs={**LOOPS.signs, kinds.KL: UP}),
    "kl": replace(SIMULATED["KL, exponential"], signs={kinds.KL: UP, "objective": DOWN}),
    "kl-halved": SIMULATED["KL halved"],
    "periodic": SIMULATED["mismatch × 30, every fifth step"],
    "dead": SIMULATED["dead groups → 100 %"],
    "truncated": Kind(
        "completions cut", None, {r"truncated|at_longest": UP, "length_.*": DOWN}, within=24
    ),
    "length": SIMULATED["length hacking"],
    "infinite": replace(SIMULATED["a step with NaN"], name="advantages of NaN, one step"),
}


@contextmanager
def _skipping() -> Iterator[None]:
    """Lets optimizers skip gradients that are not finite, as trainers of large models do."""
    step = torch.optim.AdamW.step

    def stepped(self: torch.optim.AdamW, *args: object, **more: object) -> object:
        slopes = [one.grad for group in self.param_groups for one in group["params"]]
        if all(bool(torch.isfinite(one).all()) for one in slopes if one is not None):
            return step(self, *args, **more)
        return None

    torch.optim.AdamW.step = stepped  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.optim.AdamW.step = step  # type: ignore[method-assign]


def train(model: str, folder: Path, fault: str, seed: int) -> Path:
    """One run; the path of what was recorded."""
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 16,
        "max_steps": STEPS,
        "learning_rate": 1.5e-4,  # at 5e-4 the policy is done after 150 steps: all groups equal
        "num_iterations": 2 if fault == "rate-once" else 1,
    }
    with _skipping():
        return parity_runs.train(model, folder, fault, seed, faults=FAULTS, onset=ONSET, **settings)


def verdict(path: Path, fault: str, seed: int) -> Verdict:
    """What is found in a run as it goes on."""
    kind, lines = JUDGED[fault], path.read_bytes().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "run.jsonl"

        def ask_first(count: int) -> Answer:
            part.write_bytes(b"".join(lines[:count]))
            return ask(part, count, "-v", "trl/grpo")

        looks = prefixes(kind, ONSET, 10, small=False, steps=STEPS)
        answers = looked(ask_first, kind, ONSET, looks)
    return judge(kind, seed, ONSET, answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=10_000)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--judge", action="store_true", help="train nothing")
    parser.add_argument("--train", action="store_true", help="judge nothing")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    given.folder.mkdir(parents=True, exist_ok=True)
    model = tiny.save(Path(tempfile.mkdtemp()))
    rows = []
    for fault in given.faults.split(","):
        verdicts = []
        for seed in range(given.first, given.first + given.seeds):
            path = given.folder / f"{fault}-{seed}.jsonl"
            if not path.exists() and not given.judge:
                train(model, given.folder, fault, seed)
            if path.exists() and not given.train:
                verdicts.append(verdict(path, fault, seed))
        if verdicts:
            rows.append(row("TRL", JUDGED[fault], verdicts))
            for one in verdicts:
                for said in [*one.false[:2], *one.opposite[:1], *one.untrue[:1], *one.lost[:1]]:
                    print(f"  {fault} seed {one.seed}: {said}", file=sys.stderr)
    if rows:
        print(table(HEAD, rows))


if __name__ == "__main__":
    main()
