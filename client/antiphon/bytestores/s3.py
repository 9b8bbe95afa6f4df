"""``S3Store``: contents as objects in Amazon S3, or in a compatible service. Needs ``antiphon[s3]``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, urlsplit

from antiphon.bytestores.base import ByteStore
from antiphon.errors import MissingPackage, SettingsError

MOST_AT_ONCE = 1000
CONNECT_SECONDS, SILENT_SECONDS, TRIES = 5, 30, 3
OPTIONS = ("endpoint", "region")


class S3Store(ByteStore):
    """Stores each content as an object in a bucket, below a ``prefix``.

    boto3 finds the credentials: in the environment, a profile, or the role of the machine or the pod. They need
    ``s3:PutObject``, ``s3:GetObject``, ``s3:DeleteObject`` and ``s3:ListBucket``. ``endpoint`` is the URL of an
    S3-compatible service. Raises ``MissingPackage``.

    >>> store = S3Store("our-files", "antiphon", endpoint="https://minio.example.com")  # doctest: +SKIP
    """

    def __init__(
        self, bucket: str, prefix: str = "", *, endpoint: str | None = None, region: str | None = None
    ) -> None:
        if find_spec("boto3") is None:
            raise MissingPackage("S3Store needs boto3: pip install 'antiphon[s3]'.")
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._where = {"endpoint_url": endpoint, "region_name": region}
        self._opened: tuple[int, Any] = (0, None)

    @classmethod
    def from_url(cls, url: str) -> S3Store:
        """Open ``s3://bucket/prefix?endpoint=https://…&region=…``. Raises ``SettingsError`` and ``MissingPackage``."""
        parts = urlsplit(url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if unknown := sorted(given.keys() - {*OPTIONS}):
            raise SettingsError(
                f"The URL of S3 has the unknown option {unknown[0]!r}: use {' or '.join(OPTIONS)}."
            )
        if not parts.netloc or "@" in parts.netloc:
            raise SettingsError("The URL of S3 must be s3://bucket/prefix, without a user or a password.")
        return cls(parts.netloc, parts.path, endpoint=given.get("endpoint"), region=given.get("region"))

    def save(self, name: str, data: bytes) -> None:
        """Put the object."""
        self._client().put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def load(self, name: str) -> bytes | None:
        """Get the object."""
        client = self._client()
        try:
            return client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None

    def delete(self, names: Sequence[str]) -> None:
        """Delete these objects, up to a thousand per request."""
        for at in range(0, len(names), MOST_AT_ONCE):
            keys = [{"Key": self._prefix + name} for name in names[at : at + MOST_AT_ONCE]]
            answer = self._client().delete_objects(
                Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
            )
            for failed in answer.get("Errors", ()):
                raise OSError(f"S3 has not deleted an object: {failed.get('Code')}")

    def names(self, prefix: str) -> Iterator[str]:
        """List the objects, up to a thousand per request."""
        pages = self._client().get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
            for one in page.get("Contents", ()):
                yield one["Key"].removeprefix(self._prefix)

    def _client(self) -> Any:
        """Return the client of this process. A forked process opens its own connections."""
        process, client = self._opened
        if process != os.getpid():
            boto3: Any = import_module("boto3.session")  # it has no types
            config = import_module("botocore.config").Config(
                connect_timeout=CONNECT_SECONDS, read_timeout=SILENT_SECONDS,
                retries={"mode": "standard", "total_max_attempts": TRIES}, max_pool_connections=32,
                request_checksum_calculation="when_required",  # other services do not support checksums
                response_checksum_validation="when_required",
            )  # fmt: skip
            client = boto3.Session().client("s3", config=config, **self._where)
            self._opened = os.getpid(), client
        return client
