"""Which alerts fire for exported metrics; Prometheus's own tool evaluates the rules."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from support.eventually import patience
from support.source_tree import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
MINUTES = 20

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def get(port: int, path: str) -> tuple[int, str]:
    """Return the status and the body of a response from this machine."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=patience(20)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)


def samples(exposition: str) -> dict[str, float]:
    """Return each sample by its name with labels."""
    lines = [line for line in exposition.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def firing(exposition: str, folder: Path) -> set[str]:
    """Return the alerts that fire if a process has exported this for ``MINUTES`` minutes."""
    series = [{"series": name, "values": f"{value}x{MINUTES}"} for name, value in samples(exposition).items()]
    asked = [{"eval_time": f"{MINUTES}m", "alertname": one["alert"], "exp_alerts": []} for one in ALERTS]
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": asked}],
    }
    path = folder / "case.yml"
    path.write_text(json.dumps(case))
    done = promtool("test", "rules", path)
    assert ("SUCCESS" in done.stdout) == (done.returncode == 0), done.stdout + done.stderr
    return set(re.findall(r'Labels:\{alertname="(\w+)"', done.stdout + done.stderr))
