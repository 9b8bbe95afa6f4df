"""Whole processes: light imports, quiet ends, and what is said where packages are missing."""

import textwrap

import pytest

pytestmark = pytest.mark.main_path


@pytest.fixture
def python(processes):
    def run(code):
        process = processes.python("-W", "error", "-c", textwrap.dedent(code))
        assert process.wait() == 0, process.output
        return process.output

    return run


def test_importing_the_package_is_light(python):
    python("""
        import sys
        import antiphon
        heavy = {"redis", "rq", "msgspec", "asyncio", "openai", "anthropic"} & set(sys.modules)
        assert not heavy, heavy
        from antiphon.stores import MemoryStore
        assert not {"redis", "rq", "sqlite3"} & set(sys.modules)
    """)


def test_a_script_ends_quietly_in_the_middle_of_everything(python):
    output = python("""
        import asyncio
        from antiphon import Agent
        from antiphon.testing import script

        async def forever():
            await asyncio.Event().wait()

        session = Agent(script(["a ", forever], repeat=True), "any").session()
        turn = session.submit("1")
        stream = session.stream("2", if_busy="enqueue")
        other = Agent(script(["a ", forever], repeat=True), "any").session()
        events = iter(other.stream("1"))
        next(events)
    """)
    assert output == ""


def test_the_public_names_are_there(python):
    output = python("""
        import antiphon
        from antiphon import *
        names = antiphon.__all__
        print([name for name in names if name not in globals()], names == sorted(names))
        print(set(antiphon.__all__) <= set(dir(antiphon)))
        try:
            antiphon.nothing
        except AttributeError as exc:
            print(exc)
    """)
    assert output == "[] True\nTrue\nmodule 'antiphon' has no attribute 'nothing'\n"


def test_without_the_workers_packages_one_sentence_says_what_to_install(python):
    output = python("""
        import importlib.abc, sys

        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.startswith("antiphon_worker"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Missing())
        from antiphon import Agent
        from antiphon.errors import MissingPackage
        try:
            Agent("openai", "any").session().run("Hi")
        except MissingPackage as exc:
            print(exc)
    """)
    assert (
        output
        == "Running turns in this process needs the worker's packages: pip install 'antiphon[worker]'.\n"
    )


def test_the_library_prints_nothing_of_its_own_into_a_terminal(python):
    output = python("""
        import antiphon, logging
        logging.getLogger("antiphon.redis").warning("live channels are cut off")
    """)
    assert output == ""
