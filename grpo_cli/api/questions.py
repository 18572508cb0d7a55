"""``compare``, ``match``, ``verify``, ``check``, … as the commands of these names."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from grpo_cli.api.arguments import asked, of_arguments
from grpo_cli.api.data import (
    Data,
    Held,
    Path,
    Record,
    Texts,
    digits,
    listed,
    not_negative,
    plain,
    reader_of,
    reading_flags,
    whole,
)
from grpo_cli.api.evaluation import Hyperparameter, one_variant, planned, several_variants
from grpo_cli.commands.answer import Answer
from grpo_cli.commands.check.answer import Checked
from grpo_cli.commands.compare.answer import Compared
from grpo_cli.commands.diff.diff import RunDiff
from grpo_cli.commands.explain.explain import Described, Explained
from grpo_cli.commands.match.answer import Matched
from grpo_cli.commands.show.batch import Shown
from grpo_cli.commands.trend.comparison import Trend
from grpo_cli.commands.trend.questions.against import RunComparison
from grpo_cli.commands.trend.questions.at import StepAnswer
from grpo_cli.commands.trend.questions.parts import PartsAnswer
from grpo_cli.commands.verify.answer import Verified
from grpo_cli.engine.reader import ONE_STEP
from grpo_cli.errors import UsageError, did_you_mean
from grpo_cli.variants.plan import as_flags

if TYPE_CHECKING:
    from grpo_cli.commands.trend.run import Run
    from grpo_cli.commands.trend.step import Steps

Stages = Mapping[str, str] | None
Found = TypeVar("Found", bound=Answer)


@asked
def compare(
    data: Data,
    variants: str | Iterable[str] = "grpo,dr,dapo,bnpo,gspo,cispo",
    *,
    own: bool = False,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: Literal["input", "record"] = "input",
    **hyperparameters: Hyperparameter,
) -> Compared:
    """Evaluates several variants on the same data.

    >>> compare("samples/arithmetic.jsonl", ["dr", "dapo"])
    Compared(dr and dapo differ: losses -0.70575 and -0.263093, a difference of 63% of the larger)
    variant       loss    policy  kl  clip_fraction  ratio_mean  gradient_norm    cosine
    dr       -0.70575   0.70575    0       0.210526    0.992234       0.479937  1
    dapo     -0.263093  0.263093   0       0.157895    0.992234       0.183991  0.951162
    ...

    Args:
        data: as ``evaluate`` takes it.
        variants: names, or patterns as ``"trl/*"``; ``"all"`` is every one. Cosines are with the
            first. Default: the six of papers that are used most.
        own: whether each variant keeps its own settings, and computes advantages from the rewards,
            where the records have others. Default: no.
        where, group_by, group_size: as ``evaluate`` takes them. Default: all, each row a record.
        stages: stage → choice that replaces the variant's, as ``{"kl": "k1"}``. Default: none.
        batch: "input", all records are one batch, or "record", each is. Default: "input".
        **hyperparameters: as ``beta=0.1``, for every variant that takes them.

    Returns:
        ``variants`` has a row for each, with its ``loss`` and other numbers as attributes, and
        ``skipped`` what could not be evaluated and why.

    Raises:
        UsageError: for an unknown name, or what none of the variants takes.
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.compare.answer import sum_notes
    from grpo_cli.commands.compare.compare import compare_plans, names, plans

    chosen = names(",".join(several_variants(variants)))
    values = plain(hyperparameters)
    made, _ = plans(chosen, stages or {}, values, batch, own=own)
    reader, _ = reader_of(data, where=where, group_by=group_by, group_size=group_size)
    found = compare_plans(made, reader)
    return _noting(found, reader.notes(*made), reader.pooled(batch), sum_notes(found))


@asked
def match(
    data: Data,
    *unnamed: object,
    loss: float | str | None = None,
    objective: float | str | None = None,
    kl: float | str | None = None,
    clip_fraction: float | str | None = None,
    gradient_norm: float | str | None = None,
    logged: str | None = None,
    rtol: float | None = None,
    betas: Sequence[float] = (),
    variant: str | None = None,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: Literal["input", "record"] = "input",
    **hyperparameters: Hyperparameter,
) -> Matched:
    """Finds the conventions that reproduce a number that a trainer logged.

    >>> found = match("samples/dr_grpo.json", loss="0.07493")
    >>> found.matches[0].variants, found.matches[0].command
    (('dr',), 'grpo eval samples/dr_grpo.json -v dr --level batch --only loss')

    Args:
        data: as ``evaluate`` takes it.
        *unnamed: an error: give each number by its name.
        loss, objective: the number that was logged, one of them. A text says by its digits how
            exact it is (``"0.0256"`` is ±0.00005), as does the shortest text of a float.
        kl, clip_fraction, gradient_norm: further numbers that were logged. Default: none.
        logged: where the records carry the number, as ``"loss=metrics.loss"``. Default: nowhere.
        rtol: the relative tolerance. Default: by the digits of the number.
        betas: values of β to try. Default: some 50 that are usual, from 0.0001 to 1.
        variant: the only variant that is tried, with changes. Default: any.
        where, group_by, group_size: as ``evaluate`` takes them. Default: all, each row a record.
        stages, **hyperparameters: the known settings of the trainer, as ``{"kl": "k3"}`` or
            ``beta=0.04``; it stays fixed.
        batch: "input", all records are one batch, or "record", each is. Default: "input".

    Returns:
        ``matches`` has the conventions that fit, the likeliest first, each with the ``command`` or
        call that gives the number; ``match_count`` is how many fit.

    Raises:
        UsageError: for a missing, unnamed or not finite number, or an unknown name.
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.match.ask import ask

    if unnamed:
        raise UsageError(f"match: give each number by its name: loss={unnamed[-1]!r}")
    given = {"loss": loss, "objective": objective, "kl": kl}
    given |= {"clip_fraction": clip_fraction, "gradient_norm": gradient_norm}
    asked = one_variant(variant or "")
    plan = planned(asked or "grpo", stages, hyperparameters, batch, strict=False)
    plan = replace(plan.of_one_batch(), asked=bool(asked))
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    reader, words = reader_of(data, jobs=None, **how)
    found = ask(
        plan,
        reader,
        words or [""],
        reading_flags(**how),
        numbers={n: digits(n, x) for n, x in given.items() if x is not None},
        at=() if logged is None else (logged,),
        rtol=not_negative("rtol", rtol),
        betas=[not_negative("betas", one) or 0.0 for one in np.atleast_1d(betas).tolist()],
    )
    return _noting(found, reader.notes(), reader.pooled(batch, ONE_STEP))


def _noting(answer: Found, *notes: Iterable[str]) -> Found:
    """The answer with notes, which name arguments where the command's name flags."""
    found = dict.fromkeys(of_arguments(note) for some in notes for note in some)
    object.__setattr__(answer, "notices", [*found])
    return answer


@asked
def verify(
    data: Data,
    variant: str | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    metrics_rtol: float | None = None,
    causes: int = 12,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: str = "",
    **hyperparameters: Hyperparameter,
) -> Verified:
    """Compares what records expect with what they evaluate to, up to the first difference.

    >>> record = {"log_probs": [[-0.5], [-0.7]], "rewards": [1, 0], "expected": {"loss": 0.1}}
    >>> verify(record, "dr")
    Verified(differs: 1 of 1 record differs: cause not recognised)
    record  key   yours  grpo
         0  loss    0.1     0

    Args:
        data: as ``evaluate`` takes it. Each has ``expected``: what your loss gave.
        variant: a variant's name or alias. Default: what each record's ``framework`` says, else
            "grpo".
        rtol, atol: the tolerances. Default: 1e-4, and a part of the summed sizes of the terms.
        metrics_rtol: the relative tolerance of metrics. Default: 1e-4.
        causes: how many differing records are searched for a cause. Default: 12.
        where, group_by, group_size, stages, **hyperparameters: as ``evaluate`` takes them.
        batch: "record", "input" or fields, as ``evaluate`` takes it. Default: a record, or its step
            where the losses are those of steps.

    Returns:
        ``ok``, ``records`` and ``differing``, and ``causes``: what explains the differences, in
        words.

    Raises:
        UsageError: for an unknown name.
        InputError: for data that cannot be read, or without expected numbers.
    """
    from grpo_cli.commands.verify.compare import tolerances
    from grpo_cli.commands.verify.judging import Judging
    from grpo_cli.commands.verify.verification import verified

    variant = one_variant(variant or "")
    values = plain(hyperparameters)
    given = {"rtol": rtol, "atol": atol, "metrics_rtol": metrics_rtol}
    within = tolerances(*(not_negative(name, value) for name, value in given.items()))
    reader, _ = reader_of(data, where=where, group_by=group_by, group_size=group_size)
    judging = partial(Judging, variant, stages or {}, values, within)
    run, answer = verified(judging, reader, whole("causes", causes), batch=batch)
    if not answer.records:
        raise run.nothing()
    return _noting(answer, run.notes())


@asked
def check(
    data: Data,
    *,
    limit: int = 0,
    on_error: Literal["stop", "skip"] = "skip",
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
) -> Checked:
    """Checks a dump for mistakes: shifts, padding, temperatures, dead groups, duplicates and more.

    >>> found = check("samples/temperature.jsonl")
    >>> found.ok, found.findings[0].code
    (False, 'temperature')

    Args:
        data: as ``evaluate`` takes it.
        limit: how many findings of each code and severity are kept, ``more`` counting the others;
            0 for all. Default: 0.
        on_error: "skip" makes a finding, ``unreadable``, of each record that cannot be read; "stop"
            raises it. Default: "skip".
        where, group_by, group_size: as ``evaluate`` takes them. Default: all, each row a record.

    Returns:
        ``ok`` (no error; warnings do not count), ``severities`` (how many findings of each), and
        ``findings``, the errors first, each with ``code``, ``record``, ``message`` and ``advice``.

    Raises:
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.check.answer import with_unread
    from grpo_cli.commands.check.run import check as run

    if on_error not in ("stop", "skip"):
        raise UsageError(f'on_error: expected "stop" or "skip", got {on_error!r}')
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    reader, _ = reader_of(data, skip=on_error == "skip", **how)
    reader.skipped.most = 0  # all are kept
    found = run(reader, whole("limit", limit))
    findings = [replace(one, advice=of_arguments(one.advice)) for one in found.findings]
    return _noting(with_unread(replace(found, findings=findings), reader.skipped), reader.notes())


@asked
def show(
    data: Data,
    variant: str = "grpo",
    *,
    by: str | None = None,
    top: int = 20,
    strings: bool = False,
    having: Texts = (),
    record: str | int | None = None,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: str = "input",
    **hyperparameters: Hyperparameter,
) -> Shown:
    """Lists the tokens that carry a batch, or token strings with the sums of their tokens.

    >>> found = show("samples/arithmetic.jsonl", "dr", having="clip==high")
    >>> [(row["token"], row["contribution"]) for row in found.rows]
    [('5', 0.15), ('5', 0.15)]

    Args:
        data: as ``evaluate`` takes it.
        variant: a variant's name or alias. Default: "grpo".
        by: the number that ranks the rows, as "contribution", "share", "ratio" or "mismatch".
            Default: "gradient"; "contribution" where ``having`` asks for clipped tokens.
        top: how many rows; 0 for all. Default: 20.
        strings: whether a row is a token string. Default: False, a row is a token.
        having: only rows that match, as ``"clip==high && contribution_share>0.01"``. Default: all.
        record: only this record, as a batch of its own: its id, or else its number from 0; a
            notebook shows its tokens in colours. Default: all.
        where, group_by, group_size, stages, batch, **hyperparameters: as ``evaluate`` takes them.

    Returns:
        ``rows``, the first the largest; ``carried``, the share of the batch that they have.

    Raises:
        UsageError: for an unknown name.
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.show.batch import rank_of, show_rows
    from grpo_cli.commands.show.picture import COLORS
    from grpo_cli.commands.show.record import with_picture

    tests = listed(having)
    by = rank_of(by, tests)
    if by not in COLORS:
        hint = did_you_mean(str(by), COLORS)
        raise UsageError(f"by: expected one of {', '.join(COLORS)}, got {by!r}{hint}")
    rows = whole("top", top)
    plan = planned(one_variant(variant), stages, hyperparameters, batch)
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    reader, _ = reader_of(data, record=None if record is None else str(record), **how)
    reader.keep_input()
    found = show_rows(reader, plan, by=by, top=rows, strings=strings, having=tests)[0]
    if found.total["records"] == 1:
        found = with_picture(found, reader, plan, by)
    return _noting(found, found.notices)


@asked
def diff(
    first: Data,
    second: Data,
    *,
    tolerance: float | None = None,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
) -> RunDiff:
    """Finds where two runs that should be identical first differ.

    >>> runs = "samples/run/healthy.jsonl.gz", "samples/run/temperature.jsonl.gz"
    >>> diff(*runs).agreed_until
    29

    Two runs of different seeds differ from the first token on: ``trend(first, against=second)``
    compares their metrics.

    Args:
        first, second: the runs, each as ``evaluate`` takes data.
        tolerance: the largest difference to ignore. Default: rounding and an engine's noise.
        where, group_by, group_size: as ``evaluate`` takes them. Default: all, each row a record.

    Returns:
        ``ok`` (nothing differs), ``agreed_until`` (the last step that is equal), and for each
        column where it first differs.

    Raises:
        UsageError: for a tolerance below 0.
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.diff.diff import compare as compare_runs
    from grpo_cli.commands.trend.origins import StepSource

    tolerance = not_negative("tolerance", tolerance)
    readers = [
        reader_of(run, where=where, group_by=group_by, group_size=group_size)[0]
        for run in (first, second)
    ]
    found = compare_runs(readers[0], readers[1], StepSource(), tolerance)
    return _noting(found, *(reader.notes() for reader in readers), found.notes)


@overload
def trend(
    data: Data, variant: str = "grpo", *, against: Data, **arguments: Any
) -> RunComparison: ...
@overload
def trend(data: Data, variant: str = "grpo", *, by: str, **arguments: Any) -> PartsAnswer: ...
@overload
def trend(data: Data, variant: str = "grpo", *, at: int, **arguments: Any) -> StepAnswer: ...
@overload
def trend(
    data: Data,
    variant: str = "grpo",
    *,
    at: None = None,
    by: None = None,
    against: None = None,
    **arguments: Any,
) -> Trend: ...
@asked
def trend(
    data: Data,
    variant: str = "grpo",
    *,
    at: int | None = None,
    by: str | None = None,
    against: Data | None = None,
    step: str | None = None,
    log: str | os.PathLike[str] | None = None,
    html: Path | None = None,
    one_run: bool = False,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: Literal["input", "record"] = "input",
    **hyperparameters: Hyperparameter,
) -> Trend | StepAnswer | PartsAnswer | RunComparison:
    """Computes a run step by step, and finds when something changed.

    >>> run = trend("samples/run/temperature.jsonl.gz", "trl/grpo")
    >>> run.last_good_step, run.findings[0].sentence
    (29, 'mismatch.k3 rose at step 30: median ... before, ... over steps 30 to 41 ...')

    Args:
        data: the run, as ``evaluate`` takes data; or a trainer's log, or several.
        variant: a variant's name or alias. Default: "grpo".
        at: a step, for its metrics, worst groups and tokens. Default: none.
        by: a field, as "rank" or "env", to see which of its values carry the changes of the run.
            Default: none.
        against: another run, whose metrics are compared with this one's. Default: none.
        step: the field that has a record's step; "file": each file is a step. Default: the first of
            the usual names that the records have.
        log: a trainer's log to compare with the records. Default: none.
        html: a file for the page that ``report`` writes. Default: none.
        one_run: whether all files belong to one run, in any folders. Default: False.
        batch: "input", all records are one batch, or "record", each is. Default: "input".
        where, group_by, group_size, stages, **hyperparameters: as ``evaluate`` takes them.

    Returns:
        ``verdict`` (a sentence), ``last_good_step``, ``findings`` and ``events``, the earliest
        first, and ``steps``, whose metrics are attributes. With ``against``: ``metrics``, a row for
        each with both means and their ``difference``, those that differ first. With ``at``:
        ``metrics`` around the step, and its worst groups and tokens; with ``by``: ``changes``.

    Raises:
        UsageError: for an unknown name, or files of several runs.
        InputError: for data that cannot be read, or without a step.
    """
    from grpo_cli.commands.trend.answer import trend_of
    from grpo_cli.commands.trend.comparison import framework_of
    from grpo_cli.commands.trend.logs import log_of, logs_among, read_finite, steps_of, unused
    from grpo_cli.commands.trend.origins import StepSource
    from grpo_cli.commands.trend.questions.against import compare_runs
    from grpo_cli.commands.trend.questions.at import answer_of_step
    from grpo_cli.commands.trend.questions.parts import answer_of_parts
    from grpo_cli.commands.trend.run import Run
    from grpo_cli.commands.trend.step import Flags, Steps
    from grpo_cli.records.parse.record import is_logged

    variant = one_variant(variant)
    values = plain(hyperparameters)
    plan = planned(variant, stages, values, batch).of_one_batch()
    objective = as_flags(None if variant == "grpo" else variant, stages or {}, values)
    asking = {"by": by, "at": at, "log": log, "against": against, "html": html}
    questions = [name for name, value in asking.items() if value is not None]
    if len(questions) > 1:
        raise UsageError(f"{questions[1]} cannot be combined with {questions[0]}")
    logged, _ = read_finite(None if log is None else os.fspath(log), None)
    framework = framework_of(logged)

    def written(answer: Trend, run: Run | Steps) -> Trend:
        if html is not None:
            _write_page(os.fspath(html), run, answer)
        return answer

    def opened(data: Data) -> Run | Steps:
        reader, words = reader_of(data, where=where, group_by=group_by, group_size=group_size)
        alone = logs_among(reader, words) if log is None else None
        rows = reader.reading.objects if isinstance(reader.reading, Held) else ()
        if log is None and rows and is_logged(rows[0]):
            alone = steps_of([log_of(rows, "data")])
        source = StepSource.of_flag(step, reader.paths)
        own = Run(reader, plan, source, framework, one_run=one_run)
        return own if alone is None else alone

    run = opened(data)
    if against is not None:
        both = run, opened(against)
        compared = compare_runs(*(one if isinstance(one, Steps) else one.read() for one in both))
        notes = (one.reader.notes(plan) for one in both if isinstance(one, Run))
        return _noting(compared, *notes, compared.notes)
    if isinstance(run, Steps) and {*questions} <= {"html"}:
        found = written(trend_of(None, run, Flags()), run)
        return _noting(found, unused(objective) | run.notices)
    named: dict[str, Any] = {"variant": None if variant == "grpo" else variant, "stages": stages}
    named |= {"group_by": group_by, "group_size": group_size}
    given = {name: one for name, one in named.items() if one} | values
    given["where"] = listed(where)
    flags = Flags(objective, reading_flags(where, group_by, group_size), given)
    at = None if at is None else whole("at", at)
    answer: StepAnswer | PartsAnswer | None = None
    if by is not None:
        answer = answer_of_parts(run, flags, by)
    elif at is not None:
        answer = answer_of_step(run, flags, at)[0]
    if answer is not None:
        notices = () if isinstance(run, Steps) else (run.reader.notes(plan), run.notices)
        return _noting(answer, *notices)
    assert isinstance(run, Run)
    found = trend_of(run, run.read(), flags, log=logged, framework=framework)
    found = replace(written(found, run), verdict=of_arguments(found.verdict))
    return _noting(found, run.reader.notes(plan), run.lacks, run.notices)


def _write_page(path: str, run: Run | Steps, answer: Trend) -> None:
    from grpo_cli.commands.options.place import destination
    from grpo_cli.commands.report.page import page_of
    from grpo_cli.commands.trend.options import StoredOptions, TrendOptions

    if pathlib.Path(path).suffix not in (".html", ".htm"):
        raise UsageError(f"{path}: a page's name ends in .html")
    files = [one or "records in memory" for one in dict.fromkeys(answer.steps.files)]
    parts = page_of(run, None, answer, files, TrendOptions(), StoredOptions(), "grpo_cli.report")
    with destination(path, "path") as page:
        page.writelines(part.encode() for part in parts)


@overload
def explain(topic: Path, variant: str = "grpo", **arguments: Any) -> Explained | Described: ...
@overload
def explain(
    topic: Record | Iterable[Path] | Iterable[Record], variant: str = "grpo", **arguments: Any
) -> Explained: ...
@asked
def explain(
    topic: Data,
    variant: str = "grpo",
    *,
    where: Texts = (),
    group_by: Texts = (),
    group_size: int | None = None,
    stages: Stages = None,
    batch: str | None = None,
    **hyperparameters: Hyperparameter,
) -> Explained | Described:
    """Explains the loss of data; or a variant, a choice, a word or a trainer's log.

    >>> explain("samples/on_policy.json")
    Explained(grpo: loss 0, gradient_norm 0.266006)
    code       text
    centred    the loss is 0: every ratio is exactly 1, and the advantages of each group add up to 0
    ...

    Args:
        topic: data as ``evaluate`` takes it; or a name, or a trainer's log.
        variant: a variant's name or alias. Default: "grpo".
        batch: as ``evaluate`` takes it. Default: only the last step, where there are several.
        where, group_by, group_size, stages, **hyperparameters: as ``evaluate`` takes them.

    Returns:
        ``why`` (reasons, each with ``code`` and ``text``), ``parts`` of the objective, ``total``,
        and ``record``, with the arithmetic of one; of a name, its description.

    Raises:
        UsageError: for an unknown name.
        InputError: for data that cannot be read.
    """
    from grpo_cli.commands.explain.explain import describe_topic
    from grpo_cli.commands.explain.explain import explain as explain_loss

    if isinstance(topic, str | os.PathLike):
        described = describe_topic(os.fspath(topic))
        if described is not None:
            return described
    plan = planned(one_variant(variant), stages, hyperparameters, batch or "input")
    reader, _ = reader_of(topic, where=where, group_by=group_by, group_size=group_size)
    found = explain_loss(plan, reader, last_step=batch is None)
    reasons = [{**one, "text": of_arguments(one["text"])} for one in found.why]
    return _noting(replace(found, why=reasons), reader.notes(plan))
