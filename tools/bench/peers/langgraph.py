"""LangGraph's development server: a turn is a run of a graph on a thread, which the server orders and stores."""

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import NAMESPACE_URL, uuid5

from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph

from bench.peers.driver import CONCURRENCY, Stream, drive, port
from bench.peers.sse import events, open_http
from bench.peers.work import TAIL, stream_deltas

GRAPH = "turn"


def appended(known: list[dict[str, str]], new: list[dict[str, str]]) -> list[dict[str, str]]:
    return known + new


class State(TypedDict):
    messages: Annotated[list[dict[str, str]], appended]


async def answered(state: State) -> dict[str, Any]:
    *history, question = state["messages"]
    publish, said = get_stream_writer(), ""
    async for delta in stream_deltas(history[-TAIL:], question["content"]):
        said += delta
        publish(delta)
    return {"messages": [{"role": "assistant", "content": said}]}


graph = StateGraph(State).add_node("answered", answered).set_entry_point("answered").compile()


def worker() -> None:
    """Run ``langgraph dev``, which writes its state to its working directory."""
    os.chdir(os.environ["PEER_FOLDER"])
    config = {"dependencies": ["."], "graphs": {GRAPH: f"{__spec__.name}:graph"}}
    Path("langgraph.json").write_text(json.dumps(config))
    os.environ |= {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "1"}
    options = ["--no-browser", "--no-reload", "--port", str(port()), "--n-jobs-per-worker", str(CONCURRENCY)]
    os.execv(sys.executable, [sys.executable, "-m", "langgraph_cli", "dev", *options])


async def streamer() -> Stream:
    http = open_http()

    def stream(session: str, text: str) -> AsyncIterator[bytes]:
        run = {
            "assistant_id": GRAPH, "input": {"messages": [{"role": "user", "content": text}]},
            "stream_mode": "custom", "multitask_strategy": "enqueue", "if_not_exists": "create",
        }  # fmt: skip
        return events(http, f"/threads/{uuid5(NAMESPACE_URL, session)}/runs/stream", b"custom", json=run)

    return stream


if __name__ == "__main__":
    drive(worker, streamer=streamer)
