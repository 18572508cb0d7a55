"""A function with one node of it changed, for each node and each change that makes sense."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

OPPOSITE = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
OPPOSITE |= {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
COMPARED = {ast.Lt: (ast.LtE, ast.Gt), ast.Gt: (ast.GtE, ast.Lt), ast.LtE: (ast.Lt,)}
COMPARED |= {ast.GtE: (ast.Gt,), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,)}
SWAPPED = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
DROPPED = ("detach", "clamp", "exp", "abs", "expand_as")


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Each other thing that could stand in the node's place."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPPOSITE:
        yield from (with_field(node, op=OPPOSITE[type(node.op)]()), node.left, node.right)
    if isinstance(node, ast.Compare):
        yield from (with_field(node, ops=[op()]) for op in COMPARED.get(type(node.ops[0]), ()))
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield with_field(node, value=node.value + 1)
    if isinstance(node, ast.Attribute) and node.attr in SWAPPED:
        yield with_field(node, attr=SWAPPED[node.attr])
    if isinstance(node, ast.keyword) and node.arg in SWAPPED:
        yield with_field(node, arg=SWAPPED[node.arg])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in DROPPED:
            yield node.func.value
        if node.func.attr == "where" and len(node.args) == 3:
            yield from node.args[1:]


def with_field(node: ast.AST, **fields: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


class Put(ast.NodeTransformer):
    def __init__(self, target: ast.AST, put: ast.AST) -> None:
        self.target, self.put = target, put

    def visit(self, node: ast.AST) -> ast.AST:
        return copy.deepcopy(self.put) if node is self.target else self.generic_visit(node)


def mutants(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function with one node changed, and what was changed to what."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list, tree.returns = [], None
    if ast.get_docstring(tree) is not None:
        tree.body.pop(0)
    for argument in (*tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    for place, node in enumerate(list(ast.walk(tree))):
        for put in changes(node):
            copied = copy.deepcopy(tree)
            changed = Put(list(ast.walk(copied))[place], put).visit(copied)
            module = ast.fix_missing_locations(ast.Module([changed], []))
            made: dict[str, Any] = {}
            with suppress(SyntaxError):  # as one keyword named twice
                exec(compile(module, function.__name__, "exec"), function.__globals__, made)
                yield f"{ast.unparse(node)} → {ast.unparse(put)}", made[function.__name__]
