"""A convention drawn at random, as the words of ``grpo eval`` that compute its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trials.product import Answer, Record, place, printed_value, run
from trials.score import Count, Task, counted
from trials.simulate.batches import records as write_records
from trials.simulate.batches import simulate
from trials.simulate.policies import Dump, Moves, Random, Rewards, Setup, Sharpness, Text

_LOSSES = {
    "": "grpo dr dapo gspo rloo bnpo cispo lite-ppo opo gpg grpo-k1 grpo-unbiased-kl dapo-prompt "
    "max-rl sapo gmpo dual-clip deepseek-v3.2 reinforce++-baseline",
    "trl/": "grpo bnpo dr_grpo dapo cispo gspo sapo rloo",
    "verl/": "vanilla gspo cispo sapo gpg",
    "openrlhf/": "ppo dr_grpo gspo",
    "nemo-rl/": "grpo dapo gspo",
    "slime/": "grpo gspo",
    "areal/": "grpo dapo",
    "skyrl/": "regular",
    "roll/": "ppo",
    "prime-rl/": "grpo",
    "open-instruct/": "grpo",
    "ms-swift/": "grpo dapo",
    "tinker/": "ppo",
    "unsloth/": "dapo",
    "liger/": "dapo",
}
ROWS = [f"{framework}{name}" for framework, names in _LOSSES.items() for name in names.split()]
"""The rows of papers and frameworks that numbers come from."""

DEVIATIONS = (
    ("--aggregate", "token-mean"),
    ("--aggregate", "response-mean"),
    ("--aggregate", "token-sum"),
    ("--aggregate", "token-sum-norm"),
    ("--aggregate", "prompt-mean"),
    ("--aggregate", "sum"),
    ("--advantage", "group-mean"),
    ("--advantage", "leave-one-out"),
    ("--advantage", "group-std", "-p", "std_ddof=0", "-p", "std_eps=1e-8", "-p", "std_min=0"),
    ("--kl", "k1"),
    ("--kl", "k2"),
    ("--kl", "k3"),
    ("--kl", "none"),
    ("--surrogate", "unclipped"),
    ("--ratio", "sequence"),
    ("--ratio", "token"),
)
"""What people change in one: a stage at a time."""

FACTORS = ("1", "1", "1", "1", "-1", "/", "/", "*", "-/")
"""As it is, the other sign, divided or multiplied by the accumulation steps."""


@dataclass(frozen=True)
class Truth:
    """The convention behind a number.

    Attributes:
        words: of ``grpo eval``, without the file.
        factor: what its loss is multiplied by.
        constants: the ε and β in the words, where the question does not tell them.
    """

    words: tuple[str, ...]
    factor: float
    constants: dict[str, float]

    def value(self, path: str) -> float | None:
        """The number that would be logged; None where the convention cannot be evaluated."""
        answer = run("eval", path, *self.words, "--level", "batch")
        found = ((answer.document or {}).get("total") or {}).get("loss")
        return None if answer.code or found is None else self.factor * float(found)


def drawn(random: Random, steps: int, *, known: bool) -> Truth:
    """A row, none to two deviations, and a factor; ε and β besides where nobody knows them."""
    words = ["-v", str(random.choice(ROWS))]
    changed: set[str] = set()
    for _ in range(int(random.choice([0, 1, 2], p=[0.4, 0.4, 0.2]))):
        deviation = DEVIATIONS[int(random.integers(len(DEVIATIONS)))]
        if deviation[0] not in changed:
            changed.add(deviation[0])
            words += deviation
    factor = str(random.choice(FACTORS))
    times = -1.0 if factor.startswith("-") else 1.0
    times = times / steps if factor.endswith("/") else times * steps if factor == "*" else times
    constants = {} if known else _constants(random)
    return Truth(tuple(words), times, constants)


def _constants(random: Random) -> dict[str, float]:
    """ε and β as people choose them: half of the time the usual ones, else other round numbers."""
    usual = random.random() < 0.5
    return {
        "epsilon": 0.2 if usual else float(random.choice([0.1, 0.15, 0.25, 0.3])),
        "beta": float(
            random.choice([0.001, 0.01, 0.04, 0.1] if usual else [0.003, 0.005, 0.02, 0.05, 0.15])
        ),
    }


def unequal(random: Random) -> dict[str, float]:
    """An ε on either side, as people choose them."""
    low, high = random.choice([0.1, 0.15, 0.2]), random.choice([0.22, 0.25, 0.28, 0.3])
    return {"epsilon-low": float(low), "epsilon-high": float(high)}


def hyperparameters(random: Random, steps: int) -> dict[str, Any]:
    """What a record says that tells its hyperparameters."""
    return {
        "epsilon_low": 0.2,
        "epsilon_high": float(random.choice([0.2, 0.28])),
        "beta": float(random.choice([0.0, 0.01, 0.04])),
        "max_completion_length": 64,
        "gradient_accumulation_steps": steps,
    }


def rounded(value: float, digits: int) -> str:
    """A number with so many significant digits, zeros kept, as a log prints it."""
    return str(np.format_float_positional(value, digits, unique=False, fractional=False, trim="k"))


def with_constants(line: str, constants: dict[str, float]) -> str:
    """A printed command with its ε and β set to the truth's (they are solved for, not exact)."""
    words = line.split(" ")
    for at, word in enumerate(words):
        for name, value in constants.items():
            if word.startswith(f"--{name}") and at + 1 < len(words):
                words[at + 1] = repr(value)
            elif word.startswith(name) and "=" in word and words[at - 1] == "-p":
                words[at] = f"{word.partition('=')[0]}={value!r}"
    return " ".join(words)


def flags(words: Sequence[str], constants: dict[str, float], path: str) -> tuple[str, ...] | None:
    """The words with those of ε and β that the convention takes; None where it takes neither."""
    taken = tuple(words)
    for name, value in constants.items():
        more = (*taken, f"--{name}", repr(value))
        if run("eval", path, *more, "--level", "batch").code == 0:
            taken = more
    return taken if taken != tuple(words) else None


# ---- the batches ---------------------------------------------------------------------------------


_SETUP = Setup(
    prompts=3,
    group=4,
    sharpness=Sharpness(sure=0.3, sure_to=12.0),
    moves=Moves(update=0.3, reference=0.3, same_pass=False),
    text=Text(length=20, spread=0.5, shortest=3, longest=60),
    dump=Dump(ref=True, rollout=True, layout="group"),
)


def logged(random: Random, hyper: dict[str, Any]) -> list[Record]:
    """A batch as a user has it: three groups, a record each, ratios that clip, a reference."""
    kind = str(random.choice(["binary", "continuous", "shaped"]))
    whole = "record" if random.random() < 0.5 else "group"
    setup = replace(_SETUP, rewards=Rewards(kind=kind), dump=replace(_SETUP.dump, layout=whole))
    return _told(write_records(simulate(setup, random), setup.dump, random, "logged"), hyper)


def richer(random: Random, hyper: dict[str, Any]) -> list[Record]:
    """The probe: more groups, of unequal sizes and spreads, and everything further apart.

    Two conventions that give one number here are one convention under two names. No log ratio is
    beyond ±2, so that a dual clip at 3 shows, but a clamp at 10 or 20, which never acts, does not.
    """
    setup = replace(
        _SETUP,
        prompts=5,
        group=6,
        uneven=True,
        moves=Moves(stale=0.3, update=0.9, reference=0.9, same_pass=False),
        rewards=Rewards(kind="continuous"),
        dump=replace(_SETUP.dump, layout="group"),
    )
    batch = simulate(setup, random)
    old = batch.columns["log_probs_old"]
    for name, values in batch.columns.items():
        batch.columns[name] = np.minimum(np.clip(values, old - 1.0, old + 2.0), 0.0)
    made = write_records(batch, setup.dump, random, "probe")
    for at, record in enumerate(made):
        record["rewards"] = [0.3 + (1.0 + at) * reward for reward in record["rewards"]]
    return _told(made, hyper)


def _told(made: list[Record], hyper: dict[str, Any]) -> list[Record]:
    for record in made:
        if hyper:
            record["hyperparameters"] = dict(hyper)
    return made


# ---- the judge -----------------------------------------------------------------------------------


_SAME = 1e-3
"""How far off two values of one convention are on the probe: an eps in a std makes as much."""


@dataclass(frozen=True)
class Question:
    """A number, the records that it was logged of, and where it came from."""

    data: list[Record]
    probe: list[Record]
    truth: Truth
    value: float
    text: str


def judged(asked: Question, matches: list[dict[str, Any]]) -> tuple[bool, bool]:
    """Whether the truth stands first, and whether it is listed at all.

    A convention is the truth where it gives the truth's value on the probe, with the truth's ε
    where it says that the number leaves ε open. One that differs there but gives the very same
    number on the data may stand first, if the truth is listed beside it: the data cannot tell them
    apart.
    """
    probe = place(asked.probe, "probe")
    wanted = asked.truth.value(probe)
    places = [at for at, one in enumerate(matches) if _is(asked.truth, one, probe, wanted)]
    if not places:
        return False, False
    alike = near(float(matches[0]["value"]), asked.value, 1e-9)
    return places[0] == 0 or alike, True


def _is(truth: Truth, one: dict[str, Any], probe: str, wanted: float | None) -> bool:
    line = with_constants(_with_open(one), truth.constants)
    found = printed_value(line, probe)
    return found is not None and wanted is not None and near(found, wanted, _SAME)


def _with_open(one: dict[str, Any]) -> str:
    """Its command, in which what the number leaves open is said, so that it can be replaced."""
    line = str(one.get("command", ""))
    flags = [f"--{name.replace('_', '-')}" for name in one.get("any_from", ())]
    head, level, rest = line.partition(" --level ")
    return head + "".join(f" {flag} 0.2" for flag in flags if flag not in head) + level + rest


def near(one: float, other: float, within: float) -> bool:
    return abs(one - other) <= within * max(abs(one), abs(other))


def said_chance(document: Any) -> bool:
    """Whether the answer says that such a number is hit by chance: in words, or as a count."""
    if isinstance(document, dict):
        for key, value in document.items():
            if "chance" in key.lower() and _much(value):
                return True
        return any(said_chance(value) for value in document.values())
    if isinstance(document, list):
        return any(said_chance(value) for value in document)
    return isinstance(document, str) and "chance" in document.lower()


def _much(value: Any) -> bool:
    """A count of 0.3 and more (or True): not "well below 1"."""
    return isinstance(value, bool | int | float) and float(value) >= 0.3


# ---- the questions -------------------------------------------------------------------------------


Counts = dict[str, Count]

FIRST = "match, hyperparameters known, 4 digits given: the truth stands first"
WRONG = "match, hyperparameters known, 4 digits given: one convention is named, and it is wrong"
SOLVED = "match, hyperparameters unknown, 8 digits: the truth stands first"
CHANCE = {
    digits: f'match, a random number of {digits} digits is "reproduced"' for digits in (4, 5, 6)
}
ADVISED = "match, known 4 digits, with --rtol where nothing is found: the truth stands first"
COMMAND = "match: the printed command gives the printed value"

ASKED = {
    "known 4": 16,
    "known 6": 6,
    "known 8": 6,
    "unknown 8": 12,
    "unknown 4": 4,
    "unequal 8": 2,
} | {f"chance {digits}": 6 for digits in CHANCE}
"""Questions of each kind, in terms of the seeds."""
_TRIES = 60


def tasks(first: int, seeds: int) -> Iterator[Task]:
    for name, times in ASKED.items():
        for seed in range(first, first + times * seeds):
            yield Task("match", name, seed)


def question(task: Task) -> Question:
    """What is asked: drawn until the convention can be evaluated and the number is not 0."""
    what, _, digits = task.name.partition(" ")
    random = task.random()
    for _ in range(_TRIES):
        steps = int(random.choice([2, 4, 8]))
        known = what == "known"
        hyper = hyperparameters(random, steps) if known else {}
        if what == "unequal":
            hyper = {"beta": float(random.choice([0.0, 0.01, 0.04]))}
        data, probe = logged(random, hyper), richer(random, hyper)
        truth, path = drawn(random, steps, known=known), place(data)
        if what == "unequal":
            truth = replace(truth, constants=unequal(random))
        if not known:
            words = flags(truth.words, truth.constants, path)
            if words is None:
                continue
            truth = replace(truth, words=words)
        value = truth.value(path)
        if value is None or not 1e-6 < abs(value) < 10.0 ** (int(digits) - 1):
            continue  # nothing to tell, or fewer digits than there are before the point
        if what == "chance":
            value *= float(random.uniform(0.4, 2.5)) * (1.0 if random.random() < 0.5 else -1.0)
        text = rounded(value, int(digits))
        return Question(data, probe, truth, value, text)
    raise RuntimeError(f"no question in {_TRIES} tries")


def records(task: Task) -> tuple[list[Record], list[str]]:
    """What is asked about, and the command's words."""
    asked = question(task)
    chance = task.name.startswith("chance") and _rtol(asked.text) > 1e-5
    more = [f"--rtol={_rtol(asked.text):.3g}"] if chance else []
    return asked.data, ["match", f"--loss={asked.text}", *more]


def ask_one(task: Task) -> Counts:
    asked = question(task)
    path = place(asked.data)
    answer = run("match", path, f"--loss={asked.text}")
    if task.name.startswith("chance"):
        return _judge_chance(task, asked, _insisting(answer, path, asked.text))
    matches = (answer.document or {}).get("matches") or []
    case = _case(task, asked, answer)
    first, listed = judged(asked, matches)
    counts = {_row(task.name): counted(first, case, keep=not first)}
    counts[f"match, {task.name} digits: the truth is listed"] = counted(listed, None)
    if task.name == "known 4":
        again = _insisting(answer, path, asked.text)
        found = (again.document or {}).get("matches") or []
        good, _ = judged(asked, found)
        counts[ADVISED] = counted(good, None)
        wrong = (len(matches) == 1 and not first) or (len(found) == 1 and not good)
        counts[WRONG] = counted(wrong, case)
    if matches:
        printed = printed_value(matches[0].get("command", ""), path)
        same = printed is not None and near(printed, matches[0]["value"], 1e-9)
        counts[COMMAND] = counted(same, case, keep=not same)
    return counts


def _judge_chance(task: Task, asked: Question, answer: Answer) -> Counts:
    """A number that no convention gave: is one named all the same?"""
    matches = (answer.document or {}).get("matches") or []
    fooled = bool(matches) and not said_chance(answer.document)
    return {CHANCE[int(task.name[-1])]: counted(fooled, _case(task, asked, answer))}


def _insisting(answer: Answer, path: str, text: str) -> Answer:
    """The same asked with the number's own tolerance, where nothing was found without.

    (The tool of today advises that: "if it was rounded, try --rtol …".)
    """
    if answer.code != 1 or _rtol(text) <= 1e-5:
        return answer
    return run("match", path, f"--loss={text}", "--rtol", f"{_rtol(text):.3g}")


def _rtol(text: str) -> float:
    """Half a unit of the last digit that was typed, relatively."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) / abs(float(text))


def _row(name: str) -> str:
    special = {"known 4": FIRST, "unknown 8": SOLVED}
    return special.get(name, f"match, {name} digits: the truth stands first")


def _case(task: Task, asked: Question, answer: Answer) -> dict[str, Any]:
    document = answer.document or {}
    matches = [
        one.get("command", "").partition(".jsonl ")[2] for one in document.get("matches", [])
    ]
    return {
        "task": task,
        "exit": answer.code,
        "number": asked.text,
        "truth": " ".join(asked.truth.words),
        "factor": asked.truth.factor,
        "said": matches[:3] or [answer.told[-200:]],
        "listed": document.get("match_count", len(matches)),
    }
