"""Values that cannot be log-probs or entropies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.record_view import BY_TOKEN, View, find_bad
from grpo_cli.commands.check.rule import Finding, rule
from grpo_cli.commands.verify.compare import half_steps, precisions

_ROUNDING = 1e-4


def _tokens_of_records(view: View, bad: NDArray[np.bool_]) -> list[slice]:
    """Returns the tokens of each record that has a bad one."""
    hits = np.unique(view.records.index[view.responses.index[bad]])
    return [view.tokens_of(record) for record in hits.tolist()]


@rule("not-finite")
def find_non_finite(view: View) -> Iterator[Finding]:
    """Finds NaN and ±inf at tokens that count, where every formula is undefined."""
    for name, values in view.log_probs.items():
        bad = ~np.isfinite(values)
        for part in _tokens_of_records(view, bad):
            at = part.start + int(np.argmax(bad[part]))
            count, of = int(bad[part].sum()), part.stop - part.start
            yield Finding(
                f"{view.key(name)} is {values[at]:g} at {count:,} of {of:,} tokens",
                "find out why the engine returned no value; mask these tokens or drop the rows. "
                "Do not fill them with 0.0, which means probability 1",
                {"column": name, "tokens": count, "of": of},
                **view.place(at),
            )


@rule("probabilities")
def find_positive_log_probs(view: View) -> Iterator[Finding]:
    """Finds log-probs above 0: probabilities, or log-probs without their sign.

    The logarithm of a probability is at most 0, so a single value above 0 is proof. Values
    that are all in [0, 1] are probabilities; if all are >= 0 and some above 1, they are −log p.
    """
    for name, values in view.log_probs.items():
        above = (values > 0.0) & (values < np.inf)
        for part in _tokens_of_records(view, above):
            inside = values[part]
            finite, positive = inside[np.isfinite(inside)], inside[above[part]]
            words, advice = _explain_positive(finite, positive)
            yield Finding(
                f"{view.key(name)} has {len(positive):,} of {len(inside):,} values above 0; "
                f"{words}",
                advice,
                {
                    "column": name,
                    "above_0": len(positive),
                    "of": len(inside),
                    "min": float(finite.min()),
                    "max": float(finite.max()),
                },
                **view.place(part.start + int(np.argmax(above[part]))),
            )


def _explain_positive(values: F64, positive: F64) -> tuple[str, str]:
    """Returns what the finite values of a column seem to be, and what to do."""
    if values.min() >= 0.0 and values.max() <= 1.0:
        return (
            "all are in [0, 1]: these are probabilities",
            "take the natural logarithm when dumping",
        )
    if values.min() >= 0.0:
        return "none is below 0: these are −log p, a loss", "negate them when dumping"
    if len(positive) > 1 and (positive == positive[0]).all():
        return (
            f"all of these are {positive[0]:g}: padding that was filled with {positive[0]:g}",
            "write the mask as well: a filler (TRL's INVALID_LOGPROB is 1.0) is only for "
            "masked tokens",
        )
    return (
        "a log-prob is at most 0",
        "dump log_softmax(logits) at the sampled token, not logits or scores; a tiny excess "
        "comes from a log-sum-exp in low precision (clamp at 0)",
    )


@rule("bad-score")
def find_bad_scores(view: View) -> Iterator[Finding]:
    """Finds rewards and advantages that no command evaluates; null of several functions is fine."""
    for name in ("rewards", "advantages"):
        scores, rows = view.packed.scores.get(name), np.arange(len(view.lengths))
        if scores is None and name == "advantages" and BY_TOKEN in view.packed.columns:
            counted = slice(None) if view.mask is None else view.mask
            scores, rows = view.packed.columns[BY_TOKEN][counted], view.responses.index
        if scores is None or not find_bad(scores).any():
            continue
        values = np.where(find_bad(scores), scores, 0.0).reshape(len(scores), -1)
        bad = np.flatnonzero((values != 0.0).any(axis=1))
        records = view.records.index[rows[bad]]
        for record in np.unique(records).tolist():
            mine = bad[records == record]
            count, of = len(np.unique(rows[mine])), int(view.counts[record])
            value = next(value for value in values[mine[0]].tolist() if value)
            yield Finding(
                f"{view.key(name)} is {value:g} at {count:,} of {of:,} responses",
                "find out what computed it, since training needs a finite number; drop the "
                "response, or the whole group if its baseline used this value",
                {"column": name, "responses": count, "of": of},
                **view.at(int(rows[mine[0]])),
            )


@rule("negative-entropy")
def find_negative_entropies(view: View) -> Iterator[Finding]:
    """Finds entropies below 0 by more than rounding: no distribution over words has one."""
    values = view.columns.get("entropies")
    if values is None:
        return
    negative = values < -_ROUNDING
    for part in _tokens_of_records(view, negative):
        low = negative[part]
        same = np.unique(values[part][low])
        filled = f", all of them {same[0]:g}: a filler" if len(same) == 1 else ""
        yield Finding(
            f"{view.key('entropies')} is negative at {int(low.sum()):,} of {len(low):,} "
            f"tokens{filled}; an entropy is at least 0",
            "take −Σ p·log p over the vocabulary and mask the padding: −log p of a filler is not "
            "an entropy (a log-prob of 1.0 gives −1)",
            {"tokens": int(low.sum()), "of": len(low), "min": float(same[0])},
            **view.place(part.start + int(np.argmax(low))),
        )


@rule("half-precision")
def find_half_precision(view: View) -> Iterator[Finding]:
    """Finds columns all of whose numbers are those of a format of 16 bits, where others are not."""
    kinds = {name: precisions(values, view.tokens) for name, values in view.log_probs.items()}
    for record in range(len(view.counts)):
        short = {name: kind[record] for name, kind in kinds.items() if kind[record]}
        if len(short) == len(kinds):
            continue
        for name, kind in short.items():
            step = float(half_steps(kind, view.log_probs[name][view.tokens_of(record)]).max())
            yield Finding(
                f"{view.key(name)} was rounded to {kind}: by up to {step:.2g} nats",
                "take log-softmax in float32 and write float32: a ratio is the difference of two "
                "log-probs, and has all of their rounding",
                {"column": name, "format": kind, "largest": step},
                record,
            )
