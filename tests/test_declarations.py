"""Each option and each operation is declared once, and every interface has it."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from support.interfaces import other_places, surfaces
from support.source_tree import ROOT

from antiphon.session.work import INTERFACES, OPTIONS, options_of

PLACES = surfaces(ROOT)
OTHERS = other_places()

OPTION = """    colour: Annotated[
        str | None, Option(doc="the colour of the answer", json=str | None, check=lambda value: value.upper())
    ]
    timeout: Annotated["""
OPERATION = '''

class Painted(msgspec.Struct):
    """A session with its colour."""

    session_id: str
    colour: str


@operation("POST", "/sessions/{session}/paint", right="write")
async def paint_session(call: Call[None, Cancel]) -> Painted:
    """Paint a session"""
    return Painted(call.path["session"], call.body.reason)


OPERATIONS = [
    paint_session,'''
CHANGES = {
    "client/antiphon/session/work.py": {
        "    timeout: Annotated[": OPTION,
        "    on_tool: OnTool | None = None\n": "    on_tool: OnTool | None = None\n    colour: str | None = None\n",
    },
    "client/antiphon/input/request.py": {
        '    trace: str = ""\n': '    trace: str = ""\n    colour: str | None = None\n',
    },
    "client/antiphon_gateway/interface/sessions.py": {"\n\nOPERATIONS = [": OPERATION},
}
SEEN = """
import json, sys
from pathlib import Path
from support.interfaces import surfaces
from antiphon.input.request import encode_request
from antiphon.session.work import work_of_client
from antiphon_gateway.app import operations
from antiphon_gateway.interface.openapi import openapi

work = work_of_client("Hello", {"colour": "red"})
print(json.dumps({
    "places": {place: sorted(names) for place, (_, names) in surfaces(Path(sys.argv[1])).items()},
    "request": encode_request(work.request(None)).decode(),
    "openapi": openapi(operations()),
}))
"""


@pytest.mark.parametrize("place", PLACES)
def test_an_interface_has_each_option_unless_the_declaration_says_why_not(place):
    interface, names = PLACES[place]
    assert names == {*options_of(interface)}


@pytest.mark.parametrize("place", OTHERS)
def test_options_of_sessions_and_lists_are_everywhere_too(place):
    options, interface, names = OTHERS[place]
    assert {name for name, one in options.items() if interface not in one.missing} == names & options.keys()


def test_each_interface_is_one_that_was_looked_at():
    assert {interface for interface, _ in PLACES.values()} == {*INTERFACES}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_described_and_its_absence_is_explained(name):
    option = OPTIONS[name]
    assert option.doc[0].islower()
    assert option.missing.keys() <= INTERFACES.keys()
    assert all(len(reason.split()) > 3 for reason in option.missing.values())


def test_what_is_generated_is_current():
    check = [sys.executable, ROOT / "tools" / "interfaces.py", "--check"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(check, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_option_and_an_operation_are_added_in_three_files(tmp_path):
    """In a copy. The option is one of those that workers receive."""
    assert len(CHANGES) <= 3
    for folder in (
        "client/antiphon",
        "client/antiphon_gateway",
        "client/node/src",
        "worker",
        "docs",
        "tools",
    ):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, places in CHANGES.items():
        text = (tmp_path / name).read_text()
        for place, more in places.items():
            assert text.count(place) == 1, place
            text = text.replace(place, more)
        (tmp_path / name).write_text(text)
    paths = [tmp_path / "client", tmp_path / "worker", ROOT / "tests"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    subprocess.run(
        [sys.executable, tmp_path / "tools/interfaces.py"], env=env, check=True, capture_output=True
    )
    done = subprocess.run([sys.executable, "-c", SEEN, tmp_path], env=env, check=True, capture_output=True)
    seen = json.loads(done.stdout)
    assert [place for place, names in seen["places"].items() if "colour" not in names] == []
    assert json.loads(seen["request"])["colour"] == "RED"
    assert "colour" in seen["openapi"]["components"]["schemas"]["Submit"]["properties"]
    assert "post" in seen["openapi"]["paths"]["/sessions/{session}/paint"]
    run = "from antiphon_gateway.api import api; api(['paint_session', '--help'])"
    told = subprocess.run(
        [sys.executable, "-c", run], env=env, check=True, capture_output=True, text=True
    ).stdout
    assert "Paint a session" in told
    docs, node = tmp_path / "docs", tmp_path / "client/node/src"
    assert "| `POST /sessions/{session}/paint` | write | Paint a session |" in (docs / "http.md").read_text()
    assert "| `colour` | the colour of the answer |" in (docs / "options.md").read_text()
    assert (
        "paint_session: { asked: { session: string } & Cancel; answer: Painted }"
        in (node / "types.d.ts").read_text()
    )
    assert '"/sessions/{session}/paint"' in (node / "generated.js").read_text()
