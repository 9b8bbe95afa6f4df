"""Byte stores for tests: a folder, and S3 as moto serves it over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon.bytestores import ByteStore, FolderStore, S3Store, use_byte_store

KINDS = ["folder", "s3"]


@contextmanager
def s3_server(monkeypatch) -> Iterator[str]:
    """Yield the URL of a bucket on its own server."""
    pytest.importorskip("boto3", reason="pip install 'antiphon[dev]' has it")
    import boto3
    from moto.server import ThreadedMotoServer

    for name, value in {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        boto3.session.Session().client("s3", endpoint_url=endpoint).create_bucket(Bucket="files")
        yield f"s3://files/antiphon?endpoint={endpoint}"
    finally:
        server.stop()


@contextmanager
def byte_store(kind: str, folder: Path, monkeypatch) -> Iterator[ByteStore]:
    """Have this process use a store of this kind, and yield it."""
    if kind == "folder":
        with used(FolderStore(folder)) as store:
            yield store
    else:
        with s3_server(monkeypatch) as url, used(S3Store.from_url(url)) as store:
            yield store


@contextmanager
def used(store: ByteStore) -> Iterator[ByteStore]:
    use_byte_store(store)
    try:
        yield store
    finally:
        use_byte_store(None)
