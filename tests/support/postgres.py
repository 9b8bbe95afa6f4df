"""A PostgreSQL server for a test, from Debian's package, in a temporary folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self
from uuid import uuid4

from support.eventually import patience
from support.guard import guard, release
from support.network import free_port


def postgres_binaries() -> Path | None:
    """Return the folder of the server's programs, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    known = shutil.which("initdb")
    return found[-1].parent if found else Path(known).parent if known else None


class PostgresServer:
    """The server refuses to run as root: it then runs as the user ``postgres`` of its package, or ``nobody``."""

    def __init__(self, binaries: Path | None = None) -> None:
        binaries = binaries or postgres_binaries()
        if binaries is None:
            import pytest  # not installed for the benchmark

            pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
        self._binaries = binaries
        self._user = _user()
        self.folder = Path(tempfile.mkdtemp(prefix="antiphon-postgres-"))
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self.port = free_port()
        self.url = f"postgresql://antiphon@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "antiphon", "--auth=trust", "--no-sync",
                  "--no-locale", "--encoding=UTF8")  # fmt: skip

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        command = [
            str(self._binaries / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-k", "",
            "-h", "127.0.0.1", "-c", "fsync=off", "-c", "max_connections=40",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True, **self._identity()
            )
        guard(self._process.pid)
        deadline = time.monotonic() + patience(60)
        while subprocess.run(
            [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        ).returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop as in a crash, without notice to clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(patience(30))
            release(self._process.pid)
            self._process = None

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        name = f"made_{uuid4().hex}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "antiphon", name)
        return self.url.replace("/postgres", f"/{name}")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._identity())

    def _identity(self) -> dict[str, int]:
        return {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}


def _user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
