"""The same inputs led by coverage, where atheris can be installed (``pip install atheris``).

An input of atheris is four bytes that say which command line, and the file. Half of the changes are
those of ``mutate.py``, half are libFuzzer's own; it keeps what reaches lines that nothing reached.
Findings do not end the run: they are kept in the corpus like those of ``run.py``.
"""

from __future__ import annotations

import json
import pkgutil
import random
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz import flags, templates
from fuzz.case import FILE, Case, Kept, corpus, keep, slug
from fuzz.examine import examine, sandbox
from fuzz.layout import laid_out
from fuzz.mutate import mutated

_HEAD = 4
_NAMES = (b"PK\x03\x04", "in.npz"), (b"PAR1", "in.parquet"), (b"ARROW1", "in.arrow")


def guide(seconds: int, seed: int) -> None:
    """Runs for so long; atheris then ends the process, with 0 whatever was found.

    Raises:
        SystemExit: where atheris is not installed.
    """
    try:
        import atheris
    except ImportError:
        raise SystemExit("--guided needs one more package: pip install atheris") from None
    with atheris.instrument_imports(include=["grpo_cli"]):
        for name in _modules():
            import_module(name)
    seen = {kept.finding for kept in corpus()}
    with sandbox() as folder, tempfile.TemporaryDirectory() as begin:
        _write_beginning(Path(begin), seed)

        def one(data: bytes) -> None:
            case = case_of(data)
            for finding in examine(case, folder, data) if case is not None else ():
                if finding.kind not in seen:
                    seen.add(finding.kind)
                    print(f"NEW {finding.kind}: {finding.detail}", flush=True)
                    keep(Kept(slug(finding.kind), case, finding.kind))

        words = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=20000", "-timeout=60"]
        atheris.Setup([sys.argv[0], *words, begin], one, custom_mutator=_mutator(atheris))
        atheris.Fuzz()


def _modules() -> Iterator[str]:
    import grpo_cli

    for module in pkgutil.walk_packages(grpo_cli.__path__, "grpo_cli."):
        if (
            "hooks" not in module.name
            and "ray" not in module.name
            and "__main__" not in module.name
        ):
            yield module.name


def case_of(data: bytes) -> Case | None:
    """The case that an input of atheris stands for."""
    if len(data) < _HEAD:
        return None
    head, rest = int.from_bytes(data[:_HEAD], "little"), data[_HEAD:]
    command, words = flags.command(random.Random(head))
    name = next((name for magic, name in _NAMES if rest.startswith(magic)), "in.jsonl")
    how = "damaged" if name == "in.jsonl" and rest[8:9] != b"{" else "table"
    return Case((command, *words, FILE), rest, name, how)


def _mutator(atheris: Any) -> Any:
    def change(data: bytes, room: int, seed: int) -> bytes:
        draw = random.Random(seed)
        head, rest = data[:_HEAD].ljust(_HEAD, b"\0"), data[_HEAD:]
        if draw.random() < 0.3:
            head = draw.randbytes(_HEAD)
        elif draw.random() < 0.5:
            rest = _changed(rest, draw)
        else:
            return atheris.Mutate(data, room)
        return (head + rest)[:room]

    return change


def _changed(data: bytes, draw: random.Random) -> bytes:
    try:
        objects = [json.loads(line) for line in data.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        objects = json.loads(templates.objects()[draw.choice([*templates.objects()])])
    return laid_out(mutated(objects, draw), draw)[0]


def _write_beginning(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    for at, text in enumerate(templates.objects().values()):
        lines = "".join(json.dumps(one) + "\n" for one in json.loads(text))
        (folder / str(at)).write_bytes(draw.randbytes(_HEAD) + lines.encode())
