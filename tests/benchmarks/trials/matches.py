"""``grpo match``: does the convention that a number came from stand first?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trials.matching.batches import logged, richer
from trials.matching.judge import Question, judged, near, said_chance
from trials.matching.truth import drawn, flags, hyperparameters, rounded, unequal
from trials.product import Answer, Record, place, printed_value, run
from trials.score import Count
from trials.task import Task

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
    counts = {_row(task.name): _one(first, None if first else case)}
    counts[f"match, {task.name} digits: the truth is listed"] = _one(listed)
    if task.name == "known 4":
        again = _insisting(answer, path, asked.text)
        found = (again.document or {}).get("matches") or []
        good, _ = judged(asked, found)
        counts[ADVISED] = _one(good)
        wrong = (len(matches) == 1 and not first) or (len(found) == 1 and not good)
        counts[WRONG] = _one(wrong, case if wrong else None)
    if matches:
        printed = printed_value(matches[0].get("command", ""), path)
        same = printed is not None and near(printed, matches[0]["value"], 1e-9)
        counts[COMMAND] = _one(same, None if same else case)
    return counts


def _judge_chance(task: Task, asked: Question, answer: Answer) -> Counts:
    """A number that no convention gave: is one named all the same?"""
    matches = (answer.document or {}).get("matches") or []
    fooled = bool(matches) and not said_chance(answer.document)
    case = _case(task, asked, answer) if fooled else None
    return {CHANCE[int(task.name[-1])]: _one(fooled, case)}


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


def _one(hit: bool, case: dict[str, Any] | None = None) -> Count:
    count = Count()
    count.add(hit, case)
    return count


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
