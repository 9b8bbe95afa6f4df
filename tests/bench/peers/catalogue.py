"""The other queues, each installed apart from Antiphon: they may need another redis-py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import distributions, version
from pathlib import Path

from bench.stand import TESTS

__all__ = ["PEERS", "WITH_LEASE", "Peer", "env_of", "install", "installed_version"]

INSTALL_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Peer:
    """``share`` is how many of the turns it gets, ``probes`` how often it is asked alone: the slow ones get fewer."""

    name: str
    module: str
    requires: str = ""
    share: float = 1.0
    probes: int = 40
    env: Mapping[str, str] = field(default_factory=dict[str, str])


PEERS = (
    Peer("rq worker (forks)", "rq", share=0.01, probes=6, env={"RQ_KIND": "forking"}),
    Peer("rq SimpleWorker", "rq", share=0.25, env={"RQ_KIND": "simple"}),
    Peer("arq", "arq", "arq>=0.26", probes=8),
    Peer("SAQ", "saq", "saq[redis]>=0.24"),
    Peer("docket", "docket", "pydocket>=0.20"),
    Peer(
        "Celery, 100 threads", "celery", "celery[redis]>=5.5", share=0.5, env={"CELERY_POOL": "threads:100"}
    ),
    Peer("Celery, 2 processes", "celery", "celery[redis]>=5.5", share=0.25, env={"CELERY_POOL": "prefork:2"}),
)

WITH_LEASE = Peer(
    "docket, redelivery after 10 s", "docket", "pydocket>=0.20", env={"DOCKET_REDELIVERY": "10"}
)
"""The one among them whose claim on a running job can be as short as Antiphon's lease."""


def install() -> dict[str, str]:
    """Install what is missing, all at once; by module, why one cannot be used."""
    wanted = {peer.module: peer.requires for peer in PEERS if peer.requires}
    with ThreadPoolExecutor(len(wanted)) as pool:
        failed = pool.map(_installed, wanted, wanted.values())
    return {module: why for module, why in zip(wanted, failed, strict=True) if why}


def env_of(peer: Peer) -> dict[str, str]:
    """What its processes need to find it and these modules."""
    path = [str(_folder(peer.module)), str(TESTS)] if peer.requires else [str(TESTS)]
    return {**peer.env, "PYTHONPATH": ":".join(path)}


def installed_version(peer: Peer) -> str:
    """Such as ``arq 0.26.3``."""
    if not peer.requires:
        return f"{peer.module} {version(peer.module)}"
    name = peer.requires.partition(">=")[0].partition("[")[0]
    found = [
        one.version for one in distributions(path=[str(_folder(peer.module))]) if one.name.lower() == name
    ]
    return f"{name} {found[0]}" if found else name


def _folder(module: str) -> Path:
    return Path(sys.prefix) / "peers" / module


def _installed(module: str, requires: str) -> str:
    """Install it where it is not; why it could not be, or nothing."""
    folder = _folder(module)
    done = folder / "installed"
    if done.exists() and done.read_text() == requires:
        return ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    try:
        subprocess.run(
            [*command, "--target", str(folder), requires],
            check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not installed within {INSTALL_SECONDS} s"
    except subprocess.CalledProcessError as exc:
        return f"not installed: {(exc.stderr.strip().splitlines() or ['pip failed'])[-1]}"
    done.write_text(requires)
    return ""
