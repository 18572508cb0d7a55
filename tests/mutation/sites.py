"""Where the package can be broken in one place, and how: a list of replacements of text.

Nothing here knows a module's name: every file of the package is walked.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_OPPOSITES = {
    one: other
    for pair in (("min", "max"), ("minimum", "maximum"), ("any", "all"), ("argmin", "argmax"))
    for one, other in (pair, pair[::-1])
}
_MASKS = re.compile(
    r"mask|filled|inside|within|kept|keep|sure|moved|live|valid|bound|finite|high|low|counts"
)


@dataclass(frozen=True)
class Mutant:
    """One replacement.

    Attributes:
        path: the file, from the root.
        line: the 1-based line on which it begins.
        first, last: the lines of the statement that it is in: what runs any of them may notice.
        start, stop: what is replaced, as offsets in the file's text.
        new: what stands there instead.
        kind: what is done.
        inside: whether it stands in a function; else it is read where the file is imported.
    """

    path: str
    line: int
    first: int
    last: int
    start: int
    stop: int
    new: str
    kind: str
    inside: bool = True

    def applied(self, text: str) -> str:
        """The file's text with it."""
        return text[: self.start] + self.new + text[self.stop :]


def mutants(root: Path, path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines(keepends=True)
    name = path.relative_to(root).as_posix()

    def offset(line: int, column: int) -> int:
        before = lines[line - 1].encode()[:column].decode() if line <= len(lines) else ""
        return starts[line - 1] + len(before)

    found, tree = [], ast.parse(text)
    functions = (ast.FunctionDef, ast.Lambda)
    bodies = [(one.lineno, one.end_lineno) for one in ast.walk(tree) if isinstance(one, functions)]
    statements = [
        (one.lineno, one.end_lineno) for one in ast.walk(tree) if isinstance(one, ast.stmt)
    ]
    for node, new, kind in _walk(tree):
        start, stop = (
            offset(node.lineno, node.col_offset),
            offset(node.end_lineno, node.end_col_offset),
        )
        if new != text[start:stop]:
            inside = any(first <= node.lineno <= last for first, last in bodies)
            around = [(a, b) for a, b in statements if a <= node.lineno and node.end_lineno <= b]
            of = min(around, key=lambda lines: lines[1] - lines[0])
            found.append(Mutant(name, node.lineno, *of, start, stop, new, kind, inside))
    return [one for one in dict.fromkeys(found) if _parses(one.applied(text))]


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


Change = tuple[ast.AST, str, str]


def _walk(node: ast.AST) -> Iterator[Change]:
    """The changes of a node and of those in it, but for annotations, docstrings, type checks.

    Nor of ``strict=`` in ``zip``, which holds for every input, or the code would be wrong already.
    """
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".__doc__"):
        return
    yield from _changes(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _walk(child)


def _is_text(node: ast.AST) -> bool:
    """Whether it is a text that stands alone: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _compared(node)
        case ast.BinOp() if type(node.op) in _ARITHMETIC and not _of_text(node):
            yield node, _with(node, op=_ARITHMETIC[type(node.op)]()), "arithmetic"
        case ast.AugAssign() if type(node.op) in _ARITHMETIC:
            yield node, _with(node, op=_ARITHMETIC[type(node.op)]()), "arithmetic"
            yield node, "pass", "dropped statement"
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node, f"({ast.unparse(node.operand)})", "dropped sign"
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"({_with(node, op=other)})", "and, or"
        case ast.Constant():
            yield from _constant(node)
        case ast.Call():
            yield from _call(node)
        case ast.Subscript():
            yield from _subscript(node)
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Break():
            yield node, "pass", "dropped statement"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield node, "pass", "dropped statement"


def _with(node: ast.AST, **changed: object) -> str:
    other = copy.deepcopy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return ast.unparse(other)


def _of_text(node: ast.BinOp) -> bool:
    """Whether it puts texts together, or types: no number hangs on it."""
    return any(
        isinstance(one, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict)
        or (isinstance(one, ast.Constant) and not isinstance(one.value, int | float))
        for one in (node.left, node.right)
    )


def _compared(node: ast.Compare) -> Iterator[Change]:
    for at, operator in enumerate(node.ops):
        for other in _COMPARED[type(operator)]:
            ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            yield node, _with(node, ops=ops), "comparison"


def _constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield node, repr(not value), "constant"
    elif isinstance(value, int):
        yield from ((node, f"({value + step})", "constant off by one") for step in (1, -1))
    elif isinstance(value, float):
        yield node, repr(value * 1.25 if value else 1.0), "constant"


def _call(node: ast.Call) -> Iterator[Change]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _OPPOSITES:
        changed = copy.deepcopy(function)
        setattr(changed, "attr" if isinstance(function, ast.Attribute) else "id", _OPPOSITES[name])
        yield node, _with(node, func=changed), "min, max"
    if name == "where" and len(node.args) == 3:
        condition, yes, no = node.args
        yield node, _with(node, args=[condition, no, yes]), "arguments of where"
    for keyword in node.keywords:
        if keyword.arg in ("where", "initial", "ddof", "axis"):
            rest = [one for one in node.keywords if one is not keyword]
            yield node, _with(node, keywords=rest), f"dropped {keyword.arg}="


def _subscript(node: ast.Subscript) -> Iterator[Change]:
    if isinstance(node.slice, ast.Slice):
        yield from _slice(node, node.slice)
        return
    loads = isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Constant)
    if loads and _MASKS.search(ast.unparse(node.slice)):
        yield node, ast.unparse(node.value), "dropped mask"


def _slice(node: ast.Subscript, cut: ast.Slice) -> Iterator[Change]:
    for end in ("lower", "upper"):
        given = getattr(cut, end)
        if given is not None:
            changed = ast.BinOp(given, ast.Add(), ast.Constant(1))
            yield node, _with(node, slice=_cut(cut, end, changed)), "slice off by one"
            yield node, _with(node, slice=_cut(cut, end, None)), "slice without an end"
        elif end == "lower" and cut.upper is not None:
            yield node, _with(node, slice=_cut(cut, end, ast.Constant(1))), "slice off by one"


def _cut(cut: ast.Slice, end: str, value: ast.expr | None) -> ast.Slice:
    changed = copy.deepcopy(cut)
    setattr(changed, end, value)
    return changed
