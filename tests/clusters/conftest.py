"""What the tests of clusters and stores share. Run them by their name: pytest tests/clusters"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from mixed import made
from store import Proxy

SEED = 2_016
NODE = {"num_cpus": 2, "object_store_memory": 150 << 20}
np.seterr(all="ignore")  # as the command line has it
os.environ |= {
    "RAY_worker_niceness": "0",  # or workers have no time on a machine that is busy
    "RAY_health_check_initial_delay_ms": "0",  # so that a node that is killed is soon missed
    "RAY_health_check_period_ms": "300",
}


@pytest.fixture(scope="session")
def records() -> list[dict]:
    rng = random.Random(SEED)
    return [made(number, rng) for number in range(200)]


@pytest.fixture(scope="session")
def text(records) -> bytes:
    return "".join(json.dumps(one) + "\n" * (1 + n % 3) for n, one in enumerate(records)).encode()


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture(scope="session")
def proxy(server) -> Iterator[Proxy]:
    """What stands before the server; fsspec finds it by the usual variables, in workers too."""
    proxy = Proxy(server)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_MAX_ATTEMPTS": "1",  # the patience that is tested is ours
    }
    yield proxy
    proxy.shutdown()
    proxy.server_close()


@pytest.fixture
def store(server, proxy, monkeypatch) -> Iterator[Proxy]:
    """The bucket ``runs``."""
    import boto3
    import fsspec
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    fsspec.filesystem("s3").clear_instance_cache()
    proxy.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}")
    proxy.client.create_bucket(Bucket="runs")
    proxy.calm()
    yield proxy
    for one in proxy.client.list_objects_v2(Bucket="runs").get("Contents", []):
        proxy.client.delete_object(Bucket="runs", Key=one["Key"])


_BASH = """#!/bin/sh
# What Ray starts a client's server with: it fails as often as the file beside it says.
case "$*" in *ray.util.client.server*specific-server*)
    if [ "$(cat "$0.left")" -gt 0 ]; then
        echo $(($(cat "$0.left") - 1)) > "$0.left"
        exit 1
    fi;;
esac
exec /bin/bash "$@"
"""


@pytest.fixture(scope="session")
def cluster(proxy) -> Iterator[Any]:
    """Three nodes of two cores, found by RAY_ADDRESS, or as ``client`` from another machine.

    So many clients as the file ``unserved`` says get no server.
    """
    from grpo_cli.engine.cluster import session

    with (
        tempfile.TemporaryDirectory(prefix="g", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        unserved = Path(folder, "bash.left")
        unserved.write_text("0")
        Path(folder, "bash").write_text(_BASH)
        Path(folder, "bash").chmod(0o755)
        Path(folder, "ray").mkdir()
        patch.setenv("PATH", folder, prepend=os.pathsep)
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "20")  # for one that ended
        cluster = headed()
        cluster.node, cluster.unserved = NODE, unserved
        for _ in range(2):
            cluster.add_node(**NODE)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        for connected in session._SESSIONS.values():
            connected.close()
        cluster.shutdown()


def headed() -> Any:
    """A cluster of a head alone; ``client`` is its address from another machine."""
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {**NODE, "include_dashboard": False, "ray_client_server_port": port}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a log that Ray leaves open
        cluster = Cluster(initialize_head=True, head_node_args=head)
        gc.collect()
    cluster.client = f"ray://127.0.0.1:{port}"
    return cluster
