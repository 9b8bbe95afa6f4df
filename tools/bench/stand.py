"""The test stand: a Redis, a model server and workers, each in their own processes, all ended at the end."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from support.processes import Process, Processes
from support.servers import RedisServer

TOOLS = Path(__file__).parents[1]
TESTS = TOOLS.with_name("tests")
MODULES = f"{TOOLS}:{TESTS}"
START_SECONDS = 20.0


class ModelProcess:
    """A model server in its own process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        line = process.wait_for_output("}").splitlines()[0]
        self.openai_url: str = json.loads(line)["openai_url"]
        self.base_url: str = json.loads(line)["base_url"]

    @property
    def pid(self) -> int:
        return self.process.pid


COMPACT = {"stream-node-max-bytes": "1024", "hash-max-listpack-value": "1024"}
"""The settings that docs/deployment.md recommends."""


class Stand:
    """The processes of one measurement."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes = Processes(directory)
        self._servers: list[RedisServer] = []
        self.redis = self.new_redis()
        self.model = self.new_model()

    def new_redis(self) -> RedisServer:
        """Start another, empty Redis."""
        server = RedisServer(config=COMPACT).start()
        self._servers.append(server)
        return server

    def new_model(self, *options: str) -> ModelProcess:
        """Start another model server; as fast as possible unless the options set a pace."""
        return ModelProcess(
            self._processes.python("-m", "antiphon_demo.modelserver", *options, name="modelserver")
        )

    def python(self, *argv: str, env: Mapping[str, str] | None = None, name: str = "") -> Process:
        """Start any other Python process, with the model server and these modules in its environment."""
        return self._processes.python(*argv, name=name, env={**self.environ(), **(env or {})})

    def start(self, program: str, *argv: str, name: str) -> Process:
        """Start any other program."""
        return self._processes.start(program, *argv, name=name)

    def child(
        self, module: str, *argv: str, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> Any:
        """Run a module to its end, and return its last line, decoded from JSON."""
        process = self.python("-m", module, *argv, env=env, name=module)
        if process.wait(timeout) != 0:
            raise RuntimeError(f"{module} {' '.join(argv)} failed:\n{process.output}")
        return json.loads(process.output.splitlines()[-1])

    def worker(
        self,
        *,
        processes: int = 1,
        concurrency: int = 100,
        model: ModelProcess | None = None,
        expected: int = 0,
        without: Sequence[str] = (),
        **settings: str,
    ) -> Process:
        """Start a supervisor, and return it once its processes (``expected``, if there are several cells) take turns.

        The packages in ``without`` cannot be imported there, as if they were not installed.
        """
        env = self.environ(model) | {
            "PYTHONPATH": f"{self._hiding(without)}:{MODULES}",
            "ANTIPHON_REDIS_URL": self.redis.url,
            "ANTIPHON_PROCESSES": str(processes),
            "ANTIPHON_CONCURRENCY": str(concurrency),
            "ANTIPHON_DURABILITY": "none",
            **{f"ANTIPHON_{name.upper()}": value for name, value in settings.items()},
        }
        worker = self._processes.python("-m", "bench.supervise", name="worker", env=env)
        _await_turns(worker, expected or processes)
        return worker

    def environ(self, model: ModelProcess | None = None) -> dict[str, str]:
        return {
            "PYTHONPATH": MODULES,
            "OPENAI_BASE_URL": (model or self.model).openai_url,
            "OPENAI_API_KEY": "any",
            "REDIS_URL": self.redis.url,
        }

    def _hiding(self, packages: Sequence[str]) -> Path:
        """Return a folder whose modules hide these packages and cannot be imported."""
        folder = self._directory / "-".join(["without", *packages])
        folder.mkdir(exist_ok=True)
        for package in packages:
            (folder / f"{package}.py").write_text("raise ModuleNotFoundError(__name__)\n")
        return folder

    def stop(self, process: Process) -> None:
        """Kill a process and its children."""
        process.kill()

    def close(self) -> None:
        self._processes.close()
        for server in self._servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _await_turns(worker: Process, number: int) -> None:
    """Return when ``number`` of its processes take turns. Raises ``RuntimeError`` with the output otherwise."""
    deadline = time.monotonic() + START_SECONDS
    while worker.output.count("takes turns") < number:
        if not worker.running or time.monotonic() > deadline:
            raise RuntimeError(f"the worker takes no turns after {START_SECONDS:g} s:\n{worker.output}")
        time.sleep(0.01)


@contextmanager
def stand() -> Iterator[Stand]:
    """Yield a stand with a Redis and a fast model server."""
    directory = Path(tempfile.mkdtemp(prefix="antiphon-bench-"))
    try:
        with Stand(directory) as built:
            yield built
    finally:
        shutil.rmtree(directory, ignore_errors=True)
