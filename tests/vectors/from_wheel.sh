#!/usr/bin/env bash
# The plugin from the wheel, in a project that has nothing of ours but that wheel.
#   tests/vectors/from_wheel.sh dist/grpo_cli-*.whl
set -euo pipefail
wheel=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install -q pytest "$wheel"

mkdir "$folder/project"
cp "$here/data/project/test_loss.py" "$folder/project"
cd "$folder/project"
unset PYTHONPATH

# Not asked for: the plugin is there, and nothing is collected.
"$python" -m pytest -q -p no:cacheprovider >idle.txt || true
grep -q '^no tests ran' idle.txt

# What it costs a run that does not ask for it; best of many.
"$python" - <<'END'
import subprocess, sys

code = """
import sys, time
from _pytest.config import get_config
from importlib.metadata import entry_points
(point,) = entry_points(group="pytest11", name="grpo-vectors")
manager = get_config().pluginmanager
start = time.perf_counter()
manager.register(point.load(), point.name)
print(time.perf_counter() - start)
assert "numpy" not in sys.modules
"""
runs = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(15)]
print(f"registering the plugin took {min(map(float, runs)) * 1000:.2f} ms, best of {len(runs)}")
END

"$python" -m pytest -q -p no:cacheprovider --grpo-vectors-json out.json | grep '::grpo_vectors: '
"$python" - <<'END'
import json

(found,) = json.load(open("out.json"))["fixtures"].values()
assert found["passed"] > 40, found
assert found["failed"] == 0, found["failures"]
END
