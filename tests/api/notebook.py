"""The cells of ``grpo help python``, run by a kernel as a notebook would.

    python tests/api/notebook.py        # needs ipykernel, nbclient, pandas, polars and pyarrow

Every cell must run, show what a notebook shows, and data frames must hold what the arrays hold.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "grpo_cli/commands/help/pages/python.md"
FRAMES = """
import numpy as np, pandas, polars, pyarrow
for level in ("token", "response", "record"):
    columns = result.columns(level)
    size = len(columns["id"])
    frames = pandas.DataFrame(columns), polars.DataFrame(columns), pyarrow.table(columns)
    for frame in frames:
        assert len(frame) == size
        for name, values in columns.items():
            found = frame[name].to_numpy() if hasattr(frame[name], "to_numpy") else frame[name]
            if values.dtype.kind in "fi":
                assert np.array_equal(np.asarray(found, dtype=float), values, equal_nan=True), name
            else:
                listed = [None if one != one else one for one in found]
                assert listed == values.tolist(), (type(frame), name)
print("frames agree")
"""


def main() -> None:
    cells = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in [*cells, FRAMES]]
    )
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": ROOT}}).execute()
    shown = [output for cell in notebook.cells for output in cell.outputs]
    html = [one["data"]["text/html"] for one in shown if "text/html" in one.get("data", {})]
    text = "".join(one.get("text", "") for one in shown)
    assert "<td" in html[0], "a result is shown as a table"
    assert "objective" in html[0]
    assert any("cosine" in one for one in html), "a comparison is shown as a table"
    assert "did you mean token-mean?" in text
    assert "frames agree" in text
    last = notebook.cells[0].outputs
    print(f"{len(notebook.cells)} cells run, {len(html)} tables shown, {len(last)} of the first")


if __name__ == "__main__":
    main()
