"""The App for tests of erasure: the agent ``support`` with a memory, facts, and the search of turns."""

import os
from pathlib import Path

from chaos.rememberers import notetaker
from support import operated
from support.stage import Stage

from antiphon.memory import FactModel, FaissStore, Memory, WordEmbeddings
from antiphon_worker import App

APP = "support.remembering:app"


def make_app(stage: Stage) -> App:
    """Return the App of ``support.operated`` with a memory of the tenant: what a turn's user said is a fact."""
    store = FaissStore(stage.directory / "memory", WordEmbeddings(64))
    memory = Memory(store, scope="tenant", recall="start", facts=FactModel("notetaker", "any"))
    return operated.make_app(stage, memory=memory, providers={"notetaker": notetaker()}, search=True)


if "STAGE" in os.environ:  # a worker process
    app = make_app(Stage(Path(os.environ["STAGE"])))
