"""Pure functions of frameworks, taken from a clone or an unpacked wheel and run in float64.

A function or class is read from a file at a fixed commit and executed by itself, with stand-ins for
what it imports; nothing of the framework is installed or kept.
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
import torch
import torch.nn.functional

COMMITS = {
    "openrlhf": "openrlhf 0.11.2",
    "tinker-cookbook": "0.6.1",
    "liger-kernel": "liger-kernel 0.8.5",
    "NovaSky-AI/SkyRL": "a9564572",
    "alibaba/ROLL": "8eb27cc2",
    "THUDM/slime": "624b824",
    "NVIDIA-NeMo/RL": "7ea279a",
    "areal-project/AReaL": "cbff54d",
    "PrimeIntellect-ai/prime-rl": "349283d",
    "PrimeIntellect-ai/prime-rl@0.9.0": "559b447",
    "allenai/open-instruct": "e6c3044",
    "microsoft/agent-lightning": "c632d8d",
    "rllm-org/rllm": "9beb6e0",
    "rllm-org/rllm@0.2.1": "960d573",
    "ms-swift": "ms-swift 4.6.0",
    "ms-swift@4.5": "ms-swift 4.5.3",
    "qwenpilot/FIPO": "3ef4104",
    "sail-sg/Stable-RL": "c6af1d11",
    "tajwarfahim/maxrl": "c0698eb",
    "trl@1.9.2": "trl 1.9.2",
    "trl@1.9.0": "trl 1.9.0",
    "verl@0.9.0": "verl 0.9.0",
    "unsloth-zoo": "unsloth-zoo 2026.10.9",
    "unsloth-zoo@2026.9.1": "unsloth-zoo 2026.9.1",
    "unsloth-zoo@2026.9.7": "unsloth-zoo 2026.9.7",
}
"""The commit of each repository, and the release of each wheel, that the rows state."""

AUTHORS = {
    "TianHongZXY/RLVR-Decomposed": "a5d4e7c",
    "Kwai-Klear/CE-GPPO": "10558fe",
    "lime-RL/DCPO": "01787b0",
    "WooooDyy/BAPO": "7287044",
    "sail-sg/Stable-RL": "c6af1d1",
    "SiliangZeng/Multi-Turn-RL-Agent": "7dbdd08",
    "langfengQ/DrMAS": "19c632b",
    "tmlr-group/RewardFlow": "1cdead8",
    "huggingface/trl": "b6ff4a7",
}
"""The commit of each repository that goes with a paper; TRL and Stable-RL are not its authors'."""

_KEPT_DECORATORS = {"dataclass", "staticmethod", "classmethod"}


class Clones(NamedTuple):
    """Git directories by repository, bare ones do; wheels by name, packed or unpacked."""

    paths: dict[str, Path]

    def text(self, repository: str, path: str) -> str:
        """The file at the repository's commit, or in the wheel."""
        if self.paths[repository].suffix == ".whl":
            return _in_wheel(self.paths[repository], f"-{COMMITS[repository].split()[-1]}-", path)
        if "/" not in repository:
            return (self.paths[repository] / path).read_text()
        where = f"{(AUTHORS | COMMITS)[repository]}:{path}"
        command = ["git", "-C", str(self.paths[repository]), "show", where]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def load(
        self, repository: str, path: str, names: Iterable[str], **known: Any
    ) -> SimpleNamespace:
        """The named functions and classes (or methods, as functions) of a file, executed."""
        wanted = set(names)
        found = [_bare(node) for node in _definitions(self.text(repository, path), wanted)]
        assert {node.name for node in found} == wanted, wanted - {node.name for node in found}
        module = ast.Module(body=[_FUTURE, *found], type_ignores=[])
        space = {**_STAND_INS, **known}
        exec(compile(ast.fix_missing_locations(module), f"{repository}:{path}", "exec"), space)
        return SimpleNamespace(**{name: space[name] for name in wanted})


def _in_wheel(wheel: Path, version: str, path: str) -> str:
    assert version in wheel.name, f"expected {version} in {wheel.name}"
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if f"/{name}".endswith(f"/{path}"))
        return archive.read(name).decode()


_FUTURE = ast.parse("from __future__ import annotations").body[0]


def _definitions(text: str, wanted: set[str]) -> list[Any]:
    tree = ast.parse(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in tree.body if isinstance(node, kinds)]
    inner = [node for one in top if isinstance(one, ast.ClassDef) for node in one.body]
    methods = [node for node in inner if isinstance(node, kinds[:2])]
    names = {node.name for node in top}
    return [n for n in top if n.name in wanted] + [
        n for n in methods if n.name in wanted and n.name not in names
    ]


def _bare(node: Any) -> Any:
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            part.decorator_list = [
                one for one in part.decorator_list if ast.unparse(one) in _KEPT_DECORATORS
            ]
    return node


class _Model:
    """Stands in for pydantic's BaseModel: class attributes are the defaults."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Takes pydantic's class arguments."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class _Any:
    """Any attribute, as a constant."""

    def __getattr__(self, name: str) -> str:
        return name


class _Names(Enum):
    TOKEN_LEVEL = "token"
    SEQUENCE_LEVEL = "sequence"


def _all_reduce(*_: Any, **__: Any) -> None:
    """One process: nothing to add."""


_STAND_INS: dict[str, Any] = {
    "__name__": __name__,
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "np": np,
    "dataclass": dataclass,
    "defaultdict": defaultdict,
    "dist": SimpleNamespace(
        is_initialized=lambda: False, all_reduce=_all_reduce, ReduceOp=SimpleNamespace(SUM=0)
    ),
    "BaseModel": _Model,
    "LossFunction": object,
    "LossInputType": _Any(),
    "LossType": _Names,
    "MetricNormalizer": _Any(),
}


def in_float64() -> None:
    """Has the frameworks' own casts to float32 give float64, so that rounding hides nothing."""
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
