"""The page on clusters: its examples run as they are written, and are short."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "grpo_cli" / "commands" / "help" / "pages" / "clusters.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)[0].splitlines()


def run(words: list[str], folder: Path, **more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **more}
    found = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def folder(text, records, tmp_path_factory) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("examples")
    (folder / "a.jsonl").write_bytes(text)
    keys = ("id", "log_probs_new", "log_probs_old", "rewards")
    rows = [{key: one[key] for key in keys} for one in records]
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=100)
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.partition("\n")[0])
def test_an_example_says_what_the_command_says(example, folder):
    assert len(example.splitlines()) <= 25
    file = re.search(r"a\.(jsonl|parquet)", example)[0]
    words = f"eval {file} -v dr -q --level batch --only loss".split()
    expected = run([sys.executable, "-m", "grpo_cli", *words], folder)
    (folder / "example.py").write_text(example)
    printed = run([sys.executable, "example.py"], folder)
    assert float(printed.splitlines()[-1]) == json.loads(expected)


def test_there_is_one_of_each():
    packages = {"ray.data", "dask.bag", "concurrent.futures", "pyarrow"}
    assert len(EXAMPLES) == 4
    assert all(any(name in example for example in EXAMPLES) for name in packages)


def test_the_three_commands(store, folder, text, cluster):
    """As written, but for the place of the cluster; RAY_ADDRESS names it where that is not said."""
    store.client.put_object(Bucket="runs", Key="2026-11/step_1.jsonl", Body=text)
    store.client.put_object(Bucket="runs", Key="2026-11/step_2.jsonl", Body=text)
    assert len(COMMANDS) == 3
    printed = []
    for command in COMMANDS:
        words = command.partition("#")[0].split()
        assert words[0] == "grpo"
        words = [word.strip("'").replace("ray://head:10001", cluster.client) for word in words[1:]]
        printed.append(run([sys.executable, "-m", "grpo_cli", *words], folder))
    assert printed[0].splitlines()[0].startswith("objective")
    assert grpo_cli.__all__
