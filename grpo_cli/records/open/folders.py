"""Folders and patterns → the files of records in them, in natural order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path

from grpo_cli.errors import InputError
from grpo_cli.records.open.remote import files as remote_files
from grpo_cli.records.open.remote import is_remote
from grpo_cli.records.open.streams import shown

_KINDS = (
    *("jsonl", "ndjson", "json", "parquet", "arrow", "feather"),
    *("npz", "pt"),
)
_OTHERS = re.compile(
    r"(trainer_state|config|generation_config|adapter_config|tokenizer.*|vocab|merges"
    r"|special_tokens_map|added_tokens|preprocessor_config|all_results|train_results"
    r"|eval_results|metrics|.*_metadata|metadata|dataset_info|state)\.jsonl?"
    r"|(adapter_)?model.*\.safetensors.*|(optimizer|scheduler|training_args|rng_state.*)\.pt"
)
"""Other files that trainers write next to their dumps."""
_OTHER_FOLDERS = re.compile(r"\..*|__pycache__|checkpoints?([-_]\d+)?|weights|wandb|tensorboard")
_TWICE = (
    *(("effective", "all"), ("train", "eval")),
    *(("train_data", other) for other in ("rollout_data", "dashboard_columns", "trajectory_data")),
)
"""Folders whose siblings have the same rollouts again, or those of an evaluation."""
_NAMED = 3
_TRAINER_LOG = "trainer_state.json"


def files(paths: Iterable[str]) -> list[str]:
    """The files that a command line names.

    A folder means the files of records in it and below it, a pattern those that match it
    (``**`` for folders of any depth), both in natural order: ``step_9`` before ``step_10``.

    Raises:
        InputError: for a folder or a pattern without such a file.
    """
    found: list[str] = []
    for path in paths:
        if is_remote(path):
            found += remote_files(path)
        elif path != "-" and Path(path).is_dir():
            found += _within(path)
        elif path == "-" or not has_magic(path) or Path(path).exists():
            found.append(path)
        else:
            matches = sorted(glob(path, recursive=True), key=natural)  # noqa: PTH207 - of any root
            if not matches:
                raise InputError("no file matches this pattern", source=shown(path))
            plain = [one for one in matches if not Path(one).is_dir()]
            found += plain or [file for one in matches for file in _within(one)]
    return found


def natural(path: str) -> list[tuple[bool, int | str]]:
    """What to sort by, so that numbers in names count as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(False, int(one)) if one.isdecimal() else (True, one) for one in parts if one]


def _within(folder: str) -> list[str]:
    everything: list[str] = []
    for place, below, inside in os.walk(folder, followlinks=True):
        twice = {other for kept, other in _TWICE if kept in below}
        below[:] = [one for one in below if one not in twice and not _OTHER_FOLDERS.fullmatch(one)]
        everything += [os.path.join(place, one) for one in inside if one[0] != "."]  # noqa: PTH118 - quick
    everything.sort(key=natural)
    kept = []
    for file in everything:
        name = Path(file).name.removesuffix(".gz").removesuffix(".zst")
        if name.rpartition(".")[2] in _KINDS and not _OTHERS.fullmatch(name):
            kept.append(file)
    if kept:
        return kept
    logs = sorted(map(str, Path(folder).rglob(_TRAINER_LOG)), key=natural)
    if logs:
        raise InputError(
            "this folder has no file of records, but a trainer's log: grpo trend "
            f"{shown(logs[-1])}",
            source=shown(folder),
        )
    if not everything:
        raise InputError("is an empty folder", source=shown(folder))
    names = ", ".join(os.path.relpath(one, folder) for one in everything[:_NAMED])
    more = ", …" if len(everything) > _NAMED else ""
    raise InputError(
        f"this folder has no file of records (looked for .{', .'.join(_KINDS)}, also compressed; "
        f"found {shown(names)}{more})",
        source=shown(folder),
    )
