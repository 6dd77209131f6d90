"""A real S3 server on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

__all__ = ["s3"]

SECRET = "canary-of-the-bucket"


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """The options of a store whose bucket is called ``bucket``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from moto.server import main; main(['-p', '{port}', '-H', '127.0.0.1'])",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(endpoint, timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    os.environ["DPDASK_TEST_SECRET"] = SECRET
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key=SECRET,
    )
    client.create_bucket(Bucket="bucket")
    yield {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": {"env": "DPDASK_TEST_SECRET"},
        "secret_access_key": {"env": "DPDASK_TEST_SECRET"},
        "allow_http": True,
    }
    server.kill()
