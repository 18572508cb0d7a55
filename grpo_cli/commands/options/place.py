"""Where results go: standard output, a file here or in a store, or a folder of numbered parts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from grpo_cli.commands.options.option import option
from grpo_cli.engine import Reader
from grpo_cli.errors import UsageError
from grpo_cli.records.open.remote import is_remote
from grpo_cli.terminal import destination as here
from grpo_cli.terminal.messages import say
from grpo_cli.version import VERSION

if TYPE_CHECKING:
    from grpo_cli.engine.cluster.parts import Pack, PartFolder

Resume = Annotated[
    bool, option("--resume", "", "With --on and -o FOLDER/: write only missing parts.", "Running")
]


def destination(path: str | None, flag: str = "--output") -> AbstractContextManager[BinaryIO]:
    """The stream to write to; a file is there when it is complete, or stays as it was.

    Raises:
        UsageError: when the file cannot be written.
    """
    if path is None or not is_remote(path):
        return here.destination(path, flag)
    from grpo_cli.records.open.remote import uploading  # an extra

    return uploading(path, flag)


def print_written(path: str | None, *, quiet: bool) -> None:
    """Says which file of this machine was written, and how large a file it replaced."""
    if path in (None, "-") or quiet or not Path(str(path)).is_file():
        return
    from rich.filesize import decimal

    size = here.replaced.pop(str(path), None)
    say(f"wrote {path}" + ("" if size is None else f" (replaced {decimal(size)})"))


@contextmanager
def drawings(html: str | None, svg: str | None) -> Iterator[tuple[BinaryIO | None, ...]]:
    """The streams of ``--html`` and ``--svg``, where they are given: both files appear, or none.

    Raises:
        UsageError: when one of them cannot be written, or they are one file.
    """
    if html is not None and svg is not None and _one_file(html, svg):
        raise UsageError(f"--html and --svg name the same file, {html}: name another")
    with ExitStack() as opened:
        streams = tuple(
            None if path is None else opened.enter_context(destination(path, flag))
            for path, flag in ((html, "--html"), (svg, "--svg"))
        )
        yield streams
        for path, stream in zip((html, svg), streams, strict=True):
            if path is not None and stream is not None:
                with here.naming(path):
                    stream.flush()  # a full disk is an error before either has its name


def _one_file(one: str, other: str) -> bool:
    place = Path(os.path.realpath(one))
    device = place.exists() and not place.is_file()
    return place == Path(os.path.realpath(other)) and not device


def to_folder(output: str | None) -> bool:
    """Whether rows go to numbered parts: into a folder."""
    if not output or output.endswith("/"):
        return bool(output)
    if not is_remote(output):
        return Path(output).is_dir()
    from grpo_cli.records.open.remote import is_folder  # an extra

    return is_folder(output)


def part_folder(
    output: str, kind: str, pack: Pack, reader: Reader, about: Mapping[str, Any], *, resume: bool
) -> PartFolder:
    """The folder into which workers of a cluster write parts.

    Args:
        output, kind: the folder, and the format of its files.
        pack: writes rows in this format.
        reader: the files.
        about: what else than the input and how it is read changes their bytes.
        resume: whether to go on with parts that are there.

    Raises:
        UsageError: where they cannot be written, or there are some of something else.
    """
    from grpo_cli.engine.cluster.parts import PartFolder

    about = {
        "grpo": VERSION,
        **about,
        "reading": [repr(reader.reading), reader.skip],
        "inputs": reader.inputs,
        "task size": reader.task_bytes,
    }
    return PartFolder(output, f".{kind}", pack, about=about, resume=resume)


def check_parts(output: str | None, reader: Reader, *, resume: bool) -> bool:
    """Whether rows go to numbered parts.

    Raises:
        UsageError: where the flags say that and something else.
    """
    if not to_folder(output):
        if resume:
            raise UsageError("--resume continues the parts of a folder: -o FOLDER/")
        return False
    if reader.on is None:
        raise UsageError(f"--output: {output} is a folder; only --on writes to one")
    return True
