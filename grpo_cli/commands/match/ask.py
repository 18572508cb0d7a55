"""From flags and data to questions, and from what the search found to the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from grpo_cli.commands.match.answer import CONSTANT_LENGTH, Convention, Matched, Released
from grpo_cli.commands.match.fit import ACCUMULATED
from grpo_cli.commands.match.logged import TARGETS, read_questions
from grpo_cli.commands.match.question import LoggedNumber, Question, load
from grpo_cli.commands.match.run import REFERENCE, Candidate, Probes, Run, entries
from grpo_cli.commands.match.search import TOO_LARGE, search
from grpo_cli.commands.match.separate import is_equal, separating
from grpo_cli.engine import Reader
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluation import Evaluation
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.references import lacks_kl, without_kl
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.terminal.numbers import shell_line, shown
from grpo_cli.variants import changed
from grpo_cli.variants.plan import Plan, plan


def ask(
    plan: Plan,
    source: Reader,
    places: Sequence[str],
    options: Sequence[str],
    *,
    numbers: Mapping[str, str],
    at: Sequence[str],
    rtol: float | None,
    betas: Sequence[float],
) -> Matched:
    """Which conventions reproduce the numbers.

    Args:
        plan: what is known of the objective.
        source: the data.
        places: its files, and ``options`` the other words of a command line that read it.
        numbers: the logged numbers as they were typed: ``loss`` or ``objective``, and others.
        at: where the records carry them instead, as ``loss=metrics.loss``.
        rtol: the tolerance; None: by the digits.
        betas: values of β to try.

    Raises:
        UsageError: where no number is given, or two are.
        InputError: where no record can be read, evaluated or carries the number.
    """
    words, base = [*places, *options], Evaluator(plan, skip=source.skip)
    given = dict(numbers)
    target = _target(given, rtol, at)
    others = [LoggedNumber.parse(name, text, rtol) for name, text in given.items()]
    if target is not None and target.value == 0.0:
        _refuse_zero(plan, source, target.name)
    if target is None:
        source.keep_input()  # an error's place is found in another pass
        questions, conditions = read_questions(source, at, rtol, others, base)
        words += [word for pair in conditions if pair[1] not in options for word in pair]
    else:
        first, data = load(source, base)
        questions = [Question(target, data, first, others)]
    try:
        run = search(questions, plan, betas, source.facts.named or "")
    except InputError:
        _evaluate(plan, source)
        raise
    if not run.matches and any(one.data.totals(plan) is None for one in questions):
        try:
            _evaluate(plan, source)
        except InputError as error:
            if not run.tried:
                raise
            source.notices[f"{error}; --on-error skip leaves such records out"] = None
    left_out = [one.plan for one in run.matches if one.totals and lacks_kl(one.totals.signed)]
    source.notices.update(without_kl(left_out))
    for name in (REFERENCE, TOO_LARGE):
        if name in run.reasons:
            source.notices[f"{name}: {run.reasons[name]}"] = None
    if plan.release is not None:
        source.notices[plan.release] = None
    if plan.asked and not run.reproduced:
        note = f"only {plan.variant} was tried, with changes (-v); without -v, every variant is"
        source.notices[note] = None
    for one in run.matches if run.reproduced else ():
        source.notices.update(dict.fromkeys(one.plan.assumed(questions[-1].first.settings)))
    return result(run, questions, words)


def _evaluate(plan: Plan, source: Reader) -> None:
    """Evaluates records of which no convention can be tried, as grpo eval does.

    Raises:
        InputError: what is wrong with a record, and where.
    """
    for _ in Evaluation(source, plan, encode=None):
        pass


def _target(given: dict[str, str], rtol: float | None, at: Sequence[str]) -> LoggedNumber | None:
    """Takes the loss or the objective out of the given numbers; None if the records carry it."""
    found = [(name, given.pop(name)) for name in TARGETS if name in given]
    if at:
        if found:
            raise UsageError("--logged takes the number from the records, so leave out --loss")
        return None
    if not found and "kl" in given:
        raise UsageError(
            "--kl narrows down a loss, so give --loss X as well; grpo eval FILE --kl k1 --level "
            "batch --only kl prints what one estimator gives"
        )
    if len(found) != 1:
        raise UsageError(
            "give the logged number as either --loss X or --objective X; --logged loss=PATH reads "
            "it from the records"
        )
    if rtol is not None and rtol < 0:
        raise UsageError(f"--rtol: expected a number >= 0, got {rtol}")
    return LoggedNumber.parse(*found[0], rtol)


def _refuse_zero(plan: Plan, source: Reader, name: str) -> None:
    """Says why a loss of 0 is no question, and what to ask instead.

    Raises:
        UsageError: always.
        InputError: where the records cannot be evaluated.
    """
    from grpo_cli.commands.explain.explain import explain  # not loaded for other numbers
    from grpo_cli.commands.explain.why import NOTHING

    found = explain(plan, source)
    reasons = [one["text"] for one in found.why if one["code"] in NOTHING]
    loss = f"{plan.variant}'s loss on this data is {shown(found.total['loss'])}"
    raise UsageError(
        f"--{name} 0 does not distinguish conventions ({(reasons or [loss])[0]}); give the loss of "
        "a step where it is not 0, such as a second update on the same rollouts, or compare the "
        "gradient of each token: grpo verify"
    )


# ---- the answer ----------------------------------------------------------------------------------

_FLIPPED = {"loss": "objective", "objective": "loss"}


def result(run: Run, questions: Sequence[Question], words: Sequence[str]) -> Matched:
    """The answer."""
    last = questions[-1]
    target = last.target

    probes = Probes(last.first)

    def conventions(candidates: Sequence[Candidate]) -> tuple[Convention, ...]:
        made = [
            convention(one, probes, words, target, entry)
            for one, entry in zip(candidates, entries(candidates), strict=True)
        ]
        return tuple(sorted(made, key=lambda one: one.entry))

    def evaluated(row: Candidate | None) -> Convention | None:
        return None if row is None or row.totals is None else conventions([row])[0]

    rows, nearest_row, recorded = run.unmodified
    matches, named = conventions(run.matches), evaluated(recorded)
    changes = _changes(named, matches[0]) if named and matches else ()
    nearest = conventions(run.nearest)
    rooms = [one.tolerance for one in matches[:1] or nearest]
    return Matched(
        target=target.value,
        target_of=target.name,
        tolerance=max(rooms, default=_room(target)),
        rtol=target.rtol if math.isfinite(target.rtol) else None,
        questions=(sum(1 + len(one.others) for one in questions), len(questions)),
        matches=matches,
        separating=tuple(_separating(run.matches, last)),
        ambiguous=len(run.matches) > 1,
        match_count=len(matches),
        fitting=max(run.fitting, len(matches)),
        entry_count=len({one.entry for one in matches}),
        chance_hits=run.chance(),
        by_chance=run.by_chance,
        reproduced=run.reproduced,
        nearest=nearest,
        tried=run.tried,
        released=Released(rows, evaluated(nearest_row), named, tuple(changes)),
        not_tried=dict(run.reasons),
        others=tuple(run.others),
        loss_alone=evaluated(run.loss_alone),
    )


def _separating(found: Sequence[Candidate], question: Question) -> Iterator[str]:
    """What separates conventions that are equal on the data, of the likeliest such value."""
    groups: dict[int, list[Candidate]] = {}
    for entry, one in zip(entries(found), found, strict=True):
        groups.setdefault(entry, []).append(one)
    several = next((group for group in groups.values() if len(group) > 1), [])
    yield from separating(several, question.data.chunks, question.first)


def _changes(recorded: Convention, first: Convention) -> Iterator[str]:
    """What changed between two releases, where both conventions are of one row."""
    (row, _, release), (other, _, version) = (
        next(iter(one.variants), "").partition("@") for one in (recorded, first)
    )
    return changed(row, release, version, recorded.signature) if row == other else iter(())


def convention(
    one: Candidate, probes: Probes, words: Sequence[str], target: LoggedNumber, entry: int = 0
) -> Convention:
    """A candidate: what it is, its number, and the command that evaluates it."""
    flipped = one.times < 0
    only = _FLIPPED[target.name] if flipped else target.name
    assert one.totals is not None
    made = pruned(one.plan, probes.chunk)
    rows = one.rows or [made.variant] * (not made.swapped and not made.flags)
    own, also = _rows(one, probes), _also(one, probes)
    return Convention(
        entry=entry,
        signature=one.totals.signature(),
        value=one.value,
        difference=one.difference,
        tolerance=_room(target, one.size),
        command=command(made, words, only, abs(one.times)),
        variants=tuple(rows),
        also=tuple(also),
        except_eps=tuple(name for name, equal in {**own, **also}.items() if not equal),
        factor=abs(one.times),
        factor_meaning=_meaning(one),
        sign_flipped=flipped,
        bits=one.bits,
        hits_expected=None if math.isnan(one.chance) else one.chance,
        needs=one.needs,
    )


def _room(target: LoggedNumber, size: float = 0.0) -> float:
    """How far off a number may be: by the digits, and by what float32 leaves of its sum."""
    return target.half + target.noise * max(abs(target.value), size)


def _rows(first: Candidate, probes: Probes) -> dict[str, bool]:
    """Other rows that are this convention as published → whether also in every eps."""
    others = (row for row in first.rows if row != first.plan.variant)
    return {row: is_equal(first, first.as_row(row), probes) for row in others}


def _also(first: Candidate, probes: Probes) -> dict[str, bool]:
    """Other rows with flags, ``trl/bnpo@1.9.2 --beta 0.04`` → whether also in every eps."""
    found: dict[str, bool] = {}
    for made, factor, rows in first.also:
        flags = pruned(made, probes.chunk).words[2:]
        meaning = [*filter(None, [factor.meaning]), *["(sign flipped)"] * (factor.times < 0)]
        alone = factor.times == first.times and {*first.rows, first.plan.variant}
        equal = is_equal(first, replace(first, plan=made, factor=factor), probes)
        every = [name for name in rows if not alone or name not in alone]
        found |= {" ".join([name, *flags, *meaning]): equal for name in every}
    return found


def _meaning(one: Candidate) -> str | None:
    """What the factor means: the responses, where it is their number; or a constant length."""
    assert one.totals is not None
    times, responses = abs(one.times), one.totals.row()["responses"]
    if ACCUMULATED not in one.factor.meaning:
        return one.factor.meaning or None
    if times == responses > 1:
        return f"× {responses} (the responses: the mean over them, 1/G, is missing)"
    if times > 1.0 or one.plan.choice("aggregate") != "token-sum":
        return one.factor.meaning
    count = round(1.0 / times)
    readings = [ACCUMULATED, CONSTANT_LENGTH]
    if "aggregate" not in one.plan.swapped:  # a row of Dr. GRPO's, which divides by a length
        readings.reverse()
    return f"÷ {count} ({' or '.join(readings)})"


def command(made: Plan, paths: Sequence[str], only: str, times: float) -> str:
    """``grpo eval … --only loss``, and what multiplies the number where a factor is wanted.

    Of records in memory, whose path is empty, the call of Python.
    """
    if not paths[0]:
        return _call(made, paths[1:], only, times)
    words = ["grpo", "eval", *paths, *made.words]
    line = shell_line([*words, "--level", "batch", "--only", only])
    if times == 1.0:
        return line
    return f"""{line} | awk '{{printf "%.17g\\n", $1 {_scale(times)}}}'"""


def _call(made: Plan, reading: Sequence[str], only: str, times: float) -> str:
    """``evaluate(data, …).total["loss"]``; "" of a single record, which only a command chooses."""
    each: dict[str, list[str]] = {}
    for flag, value in zip(reading[::2], reading[1::2], strict=True):
        each.setdefault(flag[2:].replace("-", "_"), []).append(value)
    flags = {name: values[0] if len(values) == 1 else values for name, values in each.items()}
    if "record" in flags:
        return ""
    stages = {"stages": dict(made.swapped)} if made.swapped else {}
    batch = {} if made.batch == "input" else {"batch": made.batch}
    size = {"group_size": int(each["group_size"][0])} if "group_size" in flags else {}
    named = {**stages, **made.flags, **batch, **flags, **size}
    arguments = [repr(made.variant), *(f"{name}={_written(one)}" for name, one in named.items())]
    scale = "" if times == 1.0 else f" {_scale(times)}"
    return f"evaluate(data, {', '.join(arguments)}).total[{only!r}]{scale}"


def _written(value: object) -> str:
    """A value as Python reads it; a whole number without a point."""
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def _scale(times: float) -> str:
    return f"* {times:g}" if times > 1.0 else f"/ {1.0 / times:g}"


def pruned(made: Plan, chunk: Chunk) -> Plan:
    """The plan without the flags that say what the variant and the records say anyway."""
    wanted = chunk.objective(made).parts
    for name in (*made.swapped, *made.flags):
        stages = {stage: choice for stage, choice in made.swapped.items() if stage != name}
        flags = {flag: value for flag, value in made.flags.items() if flag != name}
        with suppress(GrpoError):
            less = plan(made.variant, stages=stages, hyperparameters=flags, batch=made.batch)
            made = less if chunk.objective(less).parts == wanted else made
    return made
