"""One fold over the records of the input, wherever it runs.

The engine reads pieces in this process, in several, or on a cluster, finds the record that is to
blame for an error, skips it or stops there, and says so where nothing was selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from grpo_cli.engine.accumulator import A, Accumulator, Folded, FoldPiece
from grpo_cli.engine.facts import Skipped

if TYPE_CHECKING:
    from grpo_cli.engine.cluster.parts import PartFolder
    from grpo_cli.engine.reader import Reader

__all__ = ["Accumulator", "first_pass", "fold", "fold_pieces"]


def fold(reader: Reader, make: Callable[[], A]) -> A:
    """Adds up all records of the input; their errors are in ``reader.skipped``.

    Args:
        make: makes an accumulator without records; it travels between processes.

    Raises:
        InputError: at the first record that cannot be used, unless such records are skipped; and
            where a choice of records leaves none.
    """
    whole = make()
    for whole in fold_pieces(reader, make, together=True):  # noqa: B007
        pass
    return whole


def fold_pieces(
    reader: Reader,
    make: Callable[[], A],
    *,
    progress: Callable[[int, A], None] | None = None,
    part_folder: PartFolder | None = None,
    together: bool = False,
) -> Iterator[A]:
    """Yields the sums of all records so far, after each piece of the input.

    Output that the sums hold may be taken from them each time. The errors of records that were
    left out so far are in ``reader.skipped``.

    Args:
        make: as for ``fold``.
        progress: called with the bytes and the sums of each piece that is done.
        part_folder: the folder to which workers of a cluster write the output.
        together: whether a cluster may merge the sums of pieces that follow each other.

    Raises:
        InputError: as ``fold``, after the sums of all records before.
    """
    whole = Folded(make(), Skipped(reader.most_errors), reader.facts)
    reader.skipped = whole.skipped
    reader.facts.nulls.clear()
    read = False
    # No name for it: an error keeps what has one, and with it the processes that work ahead.
    work = FoldPiece(make, reader.reading, reader.skip, reader.most_errors)
    for size, part in reader.run(work, together=together, part_folder=part_folder):
        read |= part.facts.named is not None
        whole.merge(part)
        if progress is not None:
            progress(size, part.sums)
        yield whole.sums
        if whole.sums.error is not None:
            raise whole.sums.error
    if part_folder is not None and part_folder.kept:
        kept = f"{part_folder.kept} parts already existed; their records are not in any total"
        reader.notices[kept] = None
    elif not read and (reader.reading.selects or whole.sums.needs_records):
        raise reader.nothing()


def first_pass(reader: Reader, make: Callable[[], A]) -> A:
    """Adds up the records of the input that can be used; another fold reports the errors."""
    reader.keep_input()
    whole = make()
    work = FoldPiece(make, reader.reading, skip=True, most_errors=1)
    for _, part in reader.run(work, together=True):
        whole.merge(part.sums)
        if whole.complete:
            break
    return whole
