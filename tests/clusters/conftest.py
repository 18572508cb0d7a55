"""What the tests of clusters and stores share. Run them by their name: pytest tests/clusters"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from store import Proxy
from test_engine_same_bytes import made

SEED = 2_016


@pytest.fixture(scope="session")
def records() -> list[dict]:
    rng = random.Random(SEED)
    return [made(number, rng) for number in range(400)]


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


@pytest.fixture
def store(server, monkeypatch) -> Iterator[Proxy]:
    """The bucket ``runs`` behind a proxy; fsspec finds it by the usual variables."""
    import boto3
    import fsspec
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    proxy = Proxy(server)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_MAX_ATTEMPTS": "1",  # the patience that is tested is ours
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()
    proxy.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}")
    proxy.client.create_bucket(Bucket="runs")
    yield proxy
    for one in proxy.client.list_objects_v2(Bucket="runs").get("Contents", []):
        proxy.client.delete_object(Bucket="runs", Key=one["Key"])
    proxy.shutdown()
    proxy.server_close()
