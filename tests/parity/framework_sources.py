"""Functions of an installed framework whose module cannot be imported for want of packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

_KINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def load(path: Path, names: Iterable[str], **known: Any) -> SimpleNamespace:
    """The named functions and classes of a file, executed without their decorators.

    Args:
        path: the file.
        names: what is taken of its top level.
        known: what these refer to; torch, numpy and defaultdict are there.
    """
    wanted = {*names}
    tree = ast.parse(path.read_text())
    found = [node for node in tree.body if isinstance(node, _KINDS) and node.name in wanted]
    assert {node.name for node in found} == wanted
    for node in found:
        node.decorator_list = []
    future = ast.parse("from __future__ import annotations").body
    module = ast.fix_missing_locations(ast.Module(body=[*future, *found], type_ignores=[]))
    space = {"__name__": __name__, "torch": torch, "np": np, "defaultdict": defaultdict, **known}
    exec(compile(module, str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in wanted})
