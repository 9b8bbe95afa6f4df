---
name: antiphon
description: Build and change applications on Antiphon (LLM sessions on Redis and RQ). Use for agents, tools, turns, streaming, tests with scripted answers, workers and the `antiphon` command.
---

# Antiphon

A client submits *turns* of a *session*. Workers run them: they call the model, run its tools, append to the history and
publish each piece of the answer. Each session runs one turn at a time, in order.

## Read the docs of the installed version

Do not rely on memory: the interface changes between releases. This project was created with {{version}}.

```console
$ antiphon --version
$ antiphon docs                  # the list of pages
$ antiphon docs quickstart       # one page: sessions, tools, clients, providers, limits, memory, http, …
$ antiphon docs --search approval
$ python -m pydoc antiphon.Agent # a class or function, with an example of each operation
$ antiphon COMMAND --help
```

## Rules

- Register agents and tools in an `App` (`app.py`). A client submits with `agent="NAME"` and needs only `antiphon`.
- A tool is a typed function with a docstring and `@tool`. After a worker crash a tool call may run again: make it
  idempotent with `context.key`, or mark it `@tool(at_most_once=True)`.
- Pass `key=` to `submit` if the caller may repeat a request: the turn then runs once.
- Pass the cursor of the last event to continue a stream after a lost connection.
- Set API keys in the environment of the workers, never in code.

## Test

Use `antiphon.testing.script`: each entry answers one model call, without a network, a Redis or an API key.

```python
from antiphon import Agent
from antiphon.testing import script, tool_call

lines = script(tool_call("order_status", order_id="7"), "It was shipped.")
agent = Agent(provider=lines, model="any", tools=[order_status])
assert agent.session().run("Where is order 7?").text == "It was shipped."
```

## Look at a deployment

`antiphon top`, `antiphon explain TURN`, `antiphon failed`, `antiphon tail SESSION` and `antiphon worker check --app app:app`
print JSON with `--json` (except `tail`, which prints one event per line).
