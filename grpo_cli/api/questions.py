"""``compare``, ``match``, ``verify``, ``check``, ``show`` and ``explain`` as functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, overload

import numpy as np

from grpo_cli.api.arguments import asked, of_arguments
from grpo_cli.api.data import (
    Data,
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
from grpo_cli.commands.explain.explain import Described, Explained
from grpo_cli.commands.match.answer import Matched
from grpo_cli.commands.show.batch import Shown
from grpo_cli.commands.verify.answer import Verified
from grpo_cli.engine.reader import ONE_STEP
from grpo_cli.errors import UsageError

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
    return noting(found, reader.notes(*made), reader.pooled(batch), sum_notes(found))


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
    return noting(found, reader.notes(), reader.pooled(batch, ONE_STEP))


def noting(answer: Found, *notes: Iterable[str]) -> Found:
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
            or the input where the losses are those of steps or of the input.

    Returns:
        ``ok``, ``records`` and ``differing``, and ``causes``: what explains the differences, in
        words; or ``agrees_with``: the variants that give the numbers.

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
    return noting(answer, run.notes())


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
    return noting(with_unread(replace(found, findings=findings), reader.skipped), reader.notes())


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
    from grpo_cli.commands.show.record import with_picture

    tests = listed(having)
    by = rank_of(by, tests)
    rows = whole("top", top)
    plan = planned(one_variant(variant), stages, hyperparameters, batch)
    how: dict[str, Any] = {"where": where, "group_by": group_by, "group_size": group_size}
    reader, _ = reader_of(data, record=None if record is None else str(record), **how)
    reader.keep_input()
    found = show_rows(reader, plan, by=by, top=rows, strings=strings, having=tests)[0]
    if found.total["records"] == 1:
        found = with_picture(found, reader, plan, by)
    return noting(found, found.notices)


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
    return noting(replace(found, why=reasons), reader.notes(plan))
