"""A cluster of three nodes: the bytes of one process, whatever happens to workers and nodes."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from files import grouped_rows

from grpo_cli import InputError
from grpo_cli.commands.check.run import check
from grpo_cli.commands.compare.compare import compare_plans
from grpo_cli.commands.convert.command import Conversion
from grpo_cli.commands.emit import JSONL
from grpo_cli.commands.eval.lines import encode_lines, encode_nested
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.cluster import run
from grpo_cli.engine.cluster.parts import PartFolder
from grpo_cli.engine.cluster.tasks import ClusterError, versions
from grpo_cli.engine.evaluation import EvaluationSums
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.engine.fold import fold
from grpo_cli.records import Reading
from grpo_cli.records.choose.grouping import Grouping
from grpo_cli.records.open import blocks
from grpo_cli.records.open.remote import HEAD
from grpo_cli.records.open.remote import files as addresses
from grpo_cli.variants.plan import plan

SEED = 3_016


@pytest.fixture(scope="module")
def files(text, records, tmp_path_factory) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("files")
    lines = text.splitlines()
    lines[100] = b'{"log_probs_new": [[0.5]], "rewards": [1]}'
    lines[250] = b"{broken"
    (folder / "a.jsonl").write_bytes(b"\n".join(lines))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(text[:200_000].rpartition(b"\n")[0]))
    rows = [{key: one[key] for key in ("id", "log_probs_new", "rewards")} for one in records]
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "c.parquet", row_group_size=70)
    (folder / "d.jsonl").write_bytes(b"\n" + text)
    return [str(path) for path in sorted(folder.iterdir())]


def answer(paths, variant="dr", *, rows=True, skip=True, **options):
    encode = partial(encode_nested, level="token", fields=None) if rows else None
    found = Evaluation(Reader(paths, skip=skip, **options), plan(variant), encode=encode)
    pieces, error = [], None
    try:
        for some in found:
            pieces += some
    except InputError as stopped:
        error = str(stopped)
    told = [str(one) for one in found.skipped], found.notices
    return b"\n".join(pieces), error, told, json.dumps(found.total), found.signature


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("variant", ["dr", "lite-ppo"])
def test_the_same_bytes(cluster, files, variant, rows):
    expected = answer(files, variant, rows=rows)
    assert len(expected[2][0]) == 2
    for jobs, size in ((1, 20_000), (3, 150_000), (5, 8_000), (None, None)):
        found = answer(files, variant, rows=rows, on="ray", jobs=jobs, task_bytes=size)
        assert found == expected, (jobs, size)


def test_two_processes_too(files):
    assert answer(files, jobs=2, block_bytes=30_000) == answer(files)


@pytest.mark.parametrize("rows", [True, False])
def test_it_stops_where_one_process_does(cluster, files, rows):
    expected = answer(files, rows=rows, skip=False)
    assert "a.jsonl:101: log_probs_new[0][0]" in expected[1]
    assert answer(files, rows=rows, skip=False, on="ray", task_bytes=9_000)[:2] == expected[:2]


def test_check_says_the_same(cluster, files):
    here, there = (
        check(Reader(files, skip=True, **more))
        for more in ({}, {"on": "ray", "task_bytes": 50_000})
    )
    assert there.findings == here.findings
    assert there.counts == here.counts
    assert (there.records, there.tokens) == (here.records, here.tokens)


def test_compare_says_the_same(cluster, files):
    plans = [plan(name) for name in ("grpo", "dr", "gspo", "lite-ppo")]
    here = compare_plans(plans, Reader(files, skip=True))
    there = compare_plans(plans, Reader(files, skip=True, on="ray", task_bytes=70_000))
    assert there == here
    assert here.variants[0].variant == "dr"


def test_convert_says_the_same(cluster, files):
    options = {"on": "ray", "task_bytes": 50_000}
    streams = []
    for more in ({}, options):
        streams.append(io.BytesIO())
        reader = Reader(files, skip=True, **more)
        Conversion(reader, as_table=False, as_json=False).write(streams[-1])
    assert streams[1].getvalue() == streams[0].getvalue() != b""


def test_groups_stay_whole(cluster, tmp_path):
    path = tmp_path / "rows.jsonl"
    grouped_rows(path, 500, SEED)
    reading = Reading(grouping=Grouping((("uid",),)))
    options = {"reading": reading}
    assert answer([str(path)], on="ray", task_bytes=300, **options) == answer(
        [str(path)], **options
    )


@pytest.mark.parametrize("variant", ["dr", "lite-ppo"])
def test_a_store_whose_connections_fail(cluster, store, files, text, variant):
    store.client.put_object(Bucket="runs", Key="d.jsonl", Body=text)
    paths = [str(one) for one in addresses("s3://runs/")]
    expected = answer(paths, variant)
    store.calm()
    assert answer(paths, variant, on="ray", task_bytes=20_000) == expected
    passes = 2 if variant == "lite-ppo" else 1
    tasks = 1 + len(text) // 20_000  # each reads on to the end of its last line
    assert sum(store.sent.values()) <= passes * (len(text) + HEAD + tasks * blocks._BEYOND)
    store.share = 0.4
    assert answer(paths, variant, on="ray", task_bytes=10_000) == expected
    assert store.faults["drop"] + store.faults["throttle"] + store.faults["truncate"]


# ---- what happens to workers ------------------------------------------------------------------


@dataclass
class Unlucky(EvaluationSums):
    """Sums to which something happens a few times; ``folder`` counts how often."""

    folder: str = ""
    times: int = 0
    what: object = None

    def read(self, decoded):
        for number in range(self.times):
            try:
                (Path(self.folder) / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            self.what()
        return super().read(decoded)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def slow() -> None:
    time.sleep(3)


def totals(paths, make=EvaluationSums, options=None, **reading) -> str:
    work = partial(make, Evaluator(plan("dr")), **(options or {}))
    return json.dumps(fold(Reader(paths, skip=True, **reading), work).batches.whole.row())


@pytest.fixture
def by_value():
    """Workers do not have this module."""
    import sys

    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("what", [killed, slow])
def test_a_worker_is_killed_twice_or_slow(cluster, files, tmp_path, by_value, what):
    unlucky = {"folder": str(tmp_path), "times": 2, "what": what}
    found = totals(files, Unlucky, unlucky, on="ray", task_bytes=60_000)
    assert len(list(tmp_path.iterdir())) == 2
    assert found == totals(files)


def test_workers_that_die_again_and_again(cluster, files, tmp_path, by_value):
    unlucky = {"folder": str(tmp_path), "times": 99, "what": killed}
    with pytest.raises(ClusterError, match=r"died repeatedly on .*jsonl") as died:
        totals(files[:1], Unlucky, unlucky, on="ray", task_bytes=1 << 20)
    assert died.value.exit_code == 70
    assert answer(files, on="ray", task_bytes=60_000) == answer(files)


@pytest.mark.parametrize("variant", ["dr", "lite-ppo"])
def test_a_node_is_killed_in_the_middle(cluster, files, variant):
    node = cluster.add_node(**cluster.node)
    cluster.wait_for_nodes()
    reader = Reader(files, skip=True, on="ray", task_bytes=8_000)
    encode = partial(encode_nested, level="token", fields=None)
    found = Evaluation(reader, plan(variant), encode=encode)
    pieces = []
    for number, some in enumerate(found):
        pieces += some
        if number == 5:
            cluster.remove_node(node, allow_graceful=False)
    expected = answer(files, variant)
    assert (b"\n".join(pieces), json.dumps(found.total)) == (expected[0], expected[3])


def test_parts_are_whole_where_a_node_is_killed(cluster, files, tmp_path):
    node = cluster.add_node(**cluster.node)
    cluster.wait_for_nodes()
    encode = partial(encode_lines, level="token", fields=("id", "line", "ratio"), lines=JSONL)
    reader = Reader(files, skip=True, on="ray", task_bytes=8_000)
    part_folder = PartFolder(str(tmp_path / "out"), ".jsonl", about={"a": 1})
    found = Evaluation(reader, plan("dr"), encode=encode, part_folder=part_folder)
    with part_folder:
        for number, _ in enumerate(found):
            if number == 5:
                cluster.remove_node(node, allow_graceful=False)
    expected = Evaluation(Reader(files, skip=True), plan("dr"), encode=encode)
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert len(parts) > 20
    rows = b"".join(row for rows in expected for row in rows)
    assert b"".join(part.read_bytes() for part in parts) == rows
    assert sorted((tmp_path / "out").iterdir()) == parts
    assert found.total == expected.total


def test_parts_in_a_store_whose_connections_fail(cluster, store, files):
    store.share = store.share_written = 0.3
    encode = partial(encode_lines, level="record", fields=("id", "line", "loss"), lines=JSONL)

    def write(*, resume: bool) -> PartFolder:
        reader = Reader(files, skip=True, on="ray", task_bytes=15_000)
        listed = PartFolder("s3://runs/out", ".jsonl", about={"a": 1}, resume=resume)
        with listed:
            for _ in Evaluation(reader, plan("dr"), encode=encode, part_folder=listed):
                pass
        return listed

    def there() -> dict[str, bytes]:
        found = store.client.list_objects_v2(Bucket="runs")["Contents"]
        names = sorted(one["Key"] for one in found)
        get = store.client.get_object
        return {name: get(Bucket="runs", Key=name)["Body"].read() for name in names}

    write(resume=False)
    parts = there()
    assert len(parts) > 5
    expected = Evaluation(Reader(files, skip=True), plan("dr"), encode=encode)
    assert b"".join(parts.values()) == b"".join(row for rows in expected for row in rows)
    store.client.delete_object(Bucket="runs", Key=next(iter(parts)))
    assert write(resume=True).kept > 3
    assert there() == parts
    assert "Uploads" not in store.client.list_multipart_uploads(Bucket="runs")
    assert store.faults["drop PUT"] + store.faults["throttle PUT"]


def test_versions_that_differ_are_told(cluster, files, monkeypatch):
    monkeypatch.setattr(run, "versions", lambda: {**versions(), "numpy": "1.26.4"})
    with pytest.raises(ClusterError, match=r"numpy is 2\S+ on a worker and 1\.26\.4 here"):
        answer(files, on="ray")


# ---- the page: its commands run as they are written ---------------------------------------------


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "grpo_cli" / "commands" / "help" / "pages" / "clusters.md"
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)[0].splitlines()


def test_the_three_commands(store, cluster, text, tmp_path):
    """As written, but for the place of the cluster; RAY_ADDRESS names it where that is not said.

    The head of a cluster starts a process for each client: once it does not.
    """
    cluster.unserved.write_text("1")
    store.client.put_object(Bucket="runs", Key="2026-11/step_1.jsonl", Body=text)
    store.client.put_object(Bucket="runs", Key="2026-11/step_2.jsonl", Body=text)
    assert len(COMMANDS) == 3
    printed = []
    for command in COMMANDS:
        program, *words = shlex.split(command, comments=True)
        words = [word.replace("ray://head:10001", cluster.client) for word in words]
        found = subprocess.run(
            [sys.executable, "-m", f"{program}_cli", *words],
            cwd=tmp_path,  # not where the cluster was started: the path is understood here
            env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        printed.append(found.stdout)
    assert printed[0].startswith("objective")
    assert printed[0] == printed[1] == printed[2]
    assert cluster.unserved.read_text() == "0\n", "each was served"
