"""Build the release into ``dist/``, and try it in empty environments, away from its source: ``make release``.

- wheel and source of `antiphon` and of `antiphon-demo`: their contents, and their metadata (twine);
- the quick start of the README, word for word, from the wheel with the extras that the README names;
- the image's steps: pinned packages with their hashes, and then only the wheel;
- an SBOM (CycloneDX) of the image's packages.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.models import ModelProcess
from support.network import free_port
from support.processes import Processes
from support.source_tree import ROOT, WHEELS

from release.artifacts import VERSION, build, complaints
from release.pins import RUN, TOOLS

DIST = ROOT / "dist"
README = (ROOT / "README.md").read_text()
IMAGE = "python3.12"


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    built = {name: build(name, DIST) for name in WHEELS}
    if wrong := [f"{name}: {one}" for name, files in built.items() for one in complaints(name, *files)]:
        print("\n".join(wrong))
        return 1
    run(TOOLS / "twine", "check", "--strict", *(file for files in built.values() for file in files))
    wheel = built["antiphon"][0]
    with tempfile.TemporaryDirectory(prefix="antiphon-release-") as name:
        folder = Path(name)
        python = environment(folder / "readme")
        (extras,) = re.findall(r"pip install 'antiphon\[([\w,]+)\]'", README)[:1]
        run(python, "-m", "pip", "install", "--quiet", "--find-links", DIST, f"{wheel}[{extras}]")
        print("README:", quick_start(python, folder))
        python = environment(folder / "image", python_of_the_image())
        run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", RUN)
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
        run(python, "-m", "pip", "check")
        run(
            python,
            "-c",
            "import antiphon_gateway.serve, antiphon_worker.observing.metrics",
            cwd=folder,
        )
        sbom = DIST / f"antiphon-{VERSION}.cdx.json"
        write_sbom(python, sbom)
    print("\n".join(f"{path.name}  {path.stat().st_size:,} bytes" for path in sorted(DIST.iterdir())))
    return 0


def environment(folder: Path, python: str = sys.executable) -> Path:
    """Create an empty virtual environment, and return its interpreter."""
    run("sh", ROOT / ".ci" / "venv", folder, env={"PYTHON": python})
    return folder / "bin" / "python"


def python_of_the_image() -> str:
    """Return the image's Python version if this machine has it, else this interpreter."""
    try:
        subprocess.run([IMAGE, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return sys.executable
    return IMAGE


def quick_start(python: Path, folder: Path) -> str:
    """Run the first two programs of the README in a folder. Return the last line that the client prints."""
    app, client = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:2]
    port, processes = free_port(), Processes(folder)
    (folder / "app.py").write_text(app)
    (folder / "client.py").write_text(client.replace("localhost:6379", f"localhost:{port}"))
    command, url = python.with_name("antiphon"), f"redis://localhost:{port}/0"
    try:
        models = ModelProcess(processes, "--length", "5")
        elsewhere = {
            "PYTHONPATH": str(folder),
            "PYTHONSAFEPATH": "1",
            "ANTIPHON_REDIS_URL": url,
            **models.environment,
        }
        processes.start(command, "redis", "--port", str(port), env=elsewhere).wait_for_output(str(port))
        worker = processes.start(command, "worker", "--app", "app:app", "--processes", "2", env=elsewhere)
        worker.wait_for_output("takes turns")
        done = processes.start(python, folder / "client.py", env=elsewhere)
        assert done.wait(60) == 0, done.output
        place = processes.start(python, "-c", "import antiphon; print(antiphon.__file__)", env=elsewhere)
        assert place.wait() == 0, place.output
        assert place.output.startswith(str(folder)), f"not the installed one: {place.output}"
        return done.output.strip().splitlines()[-1].strip()
    finally:
        processes.close()


def write_sbom(python: Path, path: Path) -> None:
    """Write the packages of an environment as CycloneDX, without paths of this machine."""
    run(
        TOOLS / "cyclonedx-py", "environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "application",
        "--output-reproducible", "--of", "JSON", "-o", path, python,
    )  # fmt: skip
    text = path.read_text()
    assert not re.search(r"file:|/tmp/|" + re.escape(str(ROOT)), text), (
        "the SBOM names places of this machine"
    )


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **(env or {})}, check=True)


if __name__ == "__main__":
    sys.exit(main())
