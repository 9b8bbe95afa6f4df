"""What people get wrong: each misuse of a command or of the library is answered with one sentence and the fix."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from antiphon import Agent, AsyncClient, Client, tool
from antiphon.cli.main import main
from antiphon.errors import AgentError
from antiphon.model import Image
from antiphon.stores import SQLiteStore
from antiphon.window import Window
from antiphon_gateway import gateway
from antiphon_worker import TitleModel
from antiphon_worker.app import App
from antiphon_worker.inline_agents import Allow

pytestmark = pytest.mark.one_server

COMMANDS = """
submitt s hi                                   | Did you mean 'submit'?
submit                                         | session. Run `antiphon submit --help`
submit s                                       | Give a text, or --continue without one. Run `antiphon submit --help`
submit s hi there                              | Unrecognized arguments: there
submit s hi --wat                              | Unrecognized arguments: --wat
submit s hi --timeout -5                       | --timeout must be a positive number of seconds, not -5.0
submit s hi --timeout soon                     | 'soon' is not a number of seconds
submit s hi --delay nan                        | --delay must be a positive number
submit s hi --ttl -1                           | --ttl must be a positive number
submit s hi --ttl never                        | 'never' is not a number of seconds
submit s hi --priority urgent                  | choose from 'high', 'low', 'normal'
submit s hi --if-busy wait                     | --if-busy: invalid choice: 'wait' (choose from
submit s hi --metadata 5                       | --metadata must be a dictionary
submit s hi --metadata '{a'                    | must be JSON, or @FILE
submit s hi --metadata @nowhere.json           | must be JSON, or @FILE
submit s hi --schema '{}'                      | must have the type 'object'
submit s hi --tenant ''                        | A tenant must have 1 to 200 bytes
submit s hi --model m                          | --model needs --provider and --model
submit s hi --provider openai                  | --provider needs --model
submit s hi --agent a --provider openai        | leave out --provider
submit s hi --wait --stream                    | not allowed with argument --wait
submit s hi --params '{"api_key": "sk"}'       | Set the key in the environment
submit s hi --cursor first                     | 'first' is not a whole number
submit s ''                                    | non-blank text
submit '' hi                                   | A session id must have 1 to 200 bytes
submit s hi --redis-url localhost:6379         | redis://
submit s hi --redis-url http://localhost       | redis://
submit s hi --redis-url ''                     | set --redis-url or ANTIPHON_REDIS_URL
submit s hi --redis-url redis://localhost/x    | database
submit s hi --prefix 'a b'                     | prefix
submit s hi --retry-failed                     | --retry-failed needs --key
submit s hi --delay 5 --if-busy steer          | --delay
submit s hi --queue a:b                        | A queue name
submit 's' hi                               | control characters
submit s hi --redis-url redis://127.0.0.1:1/0  | set another URL with --redis-url, or start one with `antiphon redis`
sessions --url redis://localhost               | did you mean --redis-url?
tail s --after first                           | --after must be the seq of an event
history nosuch                                 | does not exist or has expired
history                                        | session. Run `antiphon history --help`
sessions --limit 0                             | '0' is not a number above 0
sessions --metadata plan=paid                  | must be JSON
cancel nosuch                                  | does not exist or has expired
cancel 'no such'                               | A turn id must be
explain nosuch                                 | Unknown turn 'nosuch'
approve nosuch                                 | Unknown turn 'nosuch'
reject nosuch                                  | Unknown turn 'nosuch'
tool-result nosuch --result 1                  | Unknown turn 'nosuch'
failed --since yesterday                       | use 30m, 2h, 7d
failed --code nosuch                           | No turn has the code 'nosuch': the codes are already_decided,
failed --code provider_rejekted                | did you mean 'provider_rejected'?
failed --limit none                            | 'none' is not a number above 0
failed --since 2h --until soon                 | use 30m, 2h, 7d
requeue --code nosuch                          | No turn has the code 'nosuch'
failed list                                    | Unrecognized arguments: list
requeue                                        | or select them with a filter or --all
requeue nosuch                                 | nosuch
limits acme --in-flight -3                     | --in-flight must be a number from 1
schedules add                                  | name, text. Run `antiphon schedules add --help`
schedules add nightly s hi --cron nonsense     | nonsense
schedules add nightly s hi                     | --cron
webhooks add w ftp://x                         | https://
webhooks add w http://127.0.0.1/               | --private
webhooks remove nosuch                         | nosuch
facts remove nosuch                            | Unknown fact: 'nosuch'
batch nowhere.jsonl --out out.jsonl            | nowhere.jsonl
api nosuch                                     | There is no operation 'nosuch'
docs nosuch                                    | `antiphon docs` lists the pages
completion fish                                | choose from 'bash'
serve --port 99999                             | must be a port from 1 to 65535
serve --port http                              | 'http' is not a whole number
serve --archive nowhere                        | --archive must be sqlite:///
serve --archive sqlite:///no/such/place.db     | whose directory does not exist: create it
search tea                                     | --archive
search ''                                      | must have a word
forget --user ''                               | A user must have 1 to 200 bytes
forget                                         | Pass --session, --tenant or --user: what is to be forgotten
forget --session s --user u                    | Pass --session or --user, not both
export                                         | Pass --session
top --interval never                           | from 0.1 to 3600
limits ''                                      | A tenant must have 1 to 200 bytes
turns                                          | session. Run `antiphon turns --help`
sessions --state gone                          | choose from 'delayed'
worker --archive ftp://x                       | must be sqlite:///
init /proc/x                                   | Cannot write
serve --host 0.0.0.0                           | ANTIPHON_GATEWAY_KEYS
serve --drain soon                             | is not a duration like 30, 30s
serve --log-level loud                         | debug, info, warning or error
serve --keys nowhere.keys                      | nowhere.keys
worker --processes none                        | 'none' is not a whole number
worker --app nowhere:app                       | nowhere
worker --processes 0                           | ANTIPHON_PROCESSES (--processes)
worker --lease soon                            | ANTIPHON_LEASE (--lease)
worker --queues 'a b'                          | ANTIPHON_QUEUES (--queues)
worker --retire --lease soon                   | ANTIPHON_LEASE (--lease)
worker --retire maybe                          | 'maybe' is neither yes nor no
worker --colour red                            | Unrecognized arguments: --colour red
run hi --provider nobody --model m             | no provider 'nobody'
redis --port 99999                             | not a port
--redis-url redis://localhost sessions         | Options follow a command: `antiphon COMMAND --redis-url`
-v                                             | Options follow a command
hlep                                           | Did you mean 'help'?
submit s hi --if_busy steer                    | did you mean --if-busy?
limits acme --inflight 5                       | did you mean --in-flight?
limits acme --in-flight many                   | 'many' is not a whole number
schedules add nightly s hi --every soon        | 'soon' is not a number of seconds
schedules delete nightly                       | Unrecognized arguments: delete nightly: use add
submit s hi --agent a --schema 5               | must be a type or a JSON schema as a dictionary, not 5
submit s hi --redis-url redis://127.0.0.1:{port}/99 | Redis refuses the database of the URL
webhooks add w https://localhost/x             | private host localhost: use --private
webhooks add w https://10.0.0.1/x              | private host 10.0.0.1: use --private
docs sesions                                   | Did you mean 'sessions'?
export --session nosuch                        | Nothing is stored
serve --cors example.com                       | must name origins like https://chat.example.com
serve --host localhost:8000                    | must be an address without a port
serve --port {port}                            | (Address already in use): choose another port with --port
serve --port 0 --status-port {port}            | choose another port with --status-port
worker --app app.py                            | write app:app
worker --app shop.py:app                       | write shop:app
worker --queue x                               | did you mean --queues?
search tea --archive postgresql://nobody@127.0.0.1:9/x | check the URL, and that the server runs
demo --pace 0                                  | words per second
run                                            | Run `antiphon run --help`
"""


CALLS = """
Agent("scripted", "any", tools=print)          | use tools=[…]
Agent("scripted", "any", tools=["add"])        | must be a function, not the str 'add'
Agent("scripted", "any", tools=[len])          | has no type annotation: add one
Agent("scripted", "any", tools=[lambda: 0])    | give name=…
Agent("", "any")                               | such as 'openai'
Agent(None, "any")                             | such as 'openai'
Agent("scripted", "")                          | must be the name of a model
Agent("scripted", "any", name=5)               | name= must be text
Agent("scripted", "any", prefix="x")           | give redis=
Agent("scripted", "any", store="sessions.db")  | such as SQLiteStore('sessions.db')
Agent("scripted", "any", window="last")        | a number of turns, a Window or a Summary
Agent("scripted", "any", window=0)             | use at least 1
Agent("scripted", "any", max_steps="5")        | a whole number of at least 1
Agent("scripted", "any", retry=3)              | such as Retry(seconds=60)
Agent("scripted", "any", timeouts=30)          | such as Timeouts(first_token=20)
Agent("scripted", "any", limits=5)             | such as Limits(steps=10)
Agent("scripted", "any", fallback="openai/x")  | must be a list of models
Agent("scripted", "any", fallback=["gpt-5"])   | write 'provider/model'
Agent("scripted", "any", approval="refund")    | a list of names of tools
Agent("scripted", "any", memory=5)             | must be a Memory
Agent("nosuch", "any").session().run("hi")     | Known here: anthropic, openai
Agent("openai", "x", api_key="sk-1")           | OPENAI_API_KEY
Agent("openai", "x", base_url="http://x")      | OPENAI_BASE_URL
Agent("scripted", "any", redis="localhost").session().run("hi") | must begin with redis://
agent.session(5)                               | A session id must be text
agent.session("x" * 300)                       | this one has 300
agent.session(ttl="1h")                        | a positive number of seconds or a timedelta
agent.session(messages="hi")                   | Messages must be a list
agent.session(variables=[1])                   | must be a dictionary
agent.session(store="sessions.db").run("hi")   | such as SQLiteStore('sessions.db')
agent.session().run("")                        | pass non-blank text
agent.session().run(None)                      | must be text, parts or messages
agent.session().run(b"hi")                     | must be text, parts or messages
agent.session().run(Image("photo.png"))        | Image.from_path
agent.session().run("hi", timeout="5")         | a positive number of seconds
agent.session().run("hi", schema="int")        | must be a type or a JSON schema
agent.session().run("hi", agent=5)             | an Agent or an agent's name
agent.session().run("hi", if_busy="wait")      | must be one of 'enqueue'
agent.session().run("hi", priority=1)          | 'high', 'normal' or 'low'
agent.session().run("hi", delay=5)             | use session.submit(…, delay=…)
agent.session().run("hi", strem=True)          | did you mean stream=?
agent.session().json("hi", schema=print)       | cannot be used for structured output
agent.session().edit("nosuch", "hi")           | one of session.messages
agent.session().set_variables({"a": object()}) | cannot be written as JSON
agent.session().fork(at="nosuch")              | one of session.messages
client.submit_many("hi")                       | needs Submission(session, text, …)
client.submit("s", "hi", key="")               | must be a non-empty string
client.submit("s", "hi", queue="a b")          | A queue name must be
client.turn("nosuch").result()                 | Unknown turn 'nosuch'
client.turn("no such")                         | A turn id must be
list(client.sessions(limit=-1))                | a positive whole number
list(client.sessions(cursor="x"))              | must be the cursor of a list of sessions
Client()                                       | or set ANTIPHON_REDIS_URL
Client(None)                                   | Pass the URL of Redis
Client("")                                     | such as "redis://localhost:6379/0"
App(titles="gpt-4o-mini")                      | must be a TitleModel(provider, model)
App(titles=TitleModel("nosuch", "x"))          | no provider 'nosuch'
App(search="yes")                              | must be True or False
TitleModel("openai", None)                     | model= must be a name
client.search("")                              | must have a word
client.search("tea", limit=0)                  | a whole number from 1
client.search("tea")                           | pass archive= to the client
client.forget()                                | session=
client.session("s").set_metadata("title")      | must be a dictionary
client.session("s").set_metadata({"a": object()}) | cannot be written as JSON
client.session("s").add_message("hi", "there") | Message
client.submit("s", "hi", agent="a", user="")   | A user
client.submit("s", "hi", agent="a", ttl=-1)    | a positive number of seconds
client.submit("s", "hi", agent="a", metadata=[1]) | must be a dictionary
client.submit("s", "hi", agent="a", caller_tools=["f"]) | 'f'
client.schedules("s").set("n", "hi", every=0)  | every=
client.webhooks().set("w", "example.com")      | https://
Client("localhost:6379")                       | must begin with redis://
Client([])                                     | pass a URL
App(agents=agent)                              | must be a list, not Agent
App(agents=[agent])                            | use Agent(name=…)
App(agents=["support"])                        | must be a list of Agents
App(providers={"x": 5})                        | such as OpenAIChat(base_url=…)
App(store="sessions.db")                       | such as SQLiteStore('sessions.db')
Allow(providers="openai")                      | a list of names
tool(name="a b")(len)                          | is not a valid tool name
Agent("scripted", "any", llm="gpt-4o")         | use Agent(provider=…, model=…)
Agent("scripted", "any", tool_use_behavior="x") | use Agent(limits=Limits(…))
Agent("scripted", "any", temprature=0.5)       | did you mean temperature=?
Agent("scripted", "any", api_base="http://x")  | OPENAI_BASE_URL
Agent("scripted", "any", window=Window("x"))   | turns= must be a whole number
agent.session().run("hi", tools=[print])       | give functions to the agent
agent.session().run("hi", schema=5)            | must be a type or a JSON schema as a dictionary, not 5
agent.session().run(Image(Path("photo.png")))  | Image.from_path
agent.session().run(Image(data=b"PNG"))        | must be text in base64
agent.session().run(Image(data="photo.png"))   | must be text in base64
client.webhooks().set("w", "https://localhost/x") | use private=True
gateway("redis://localhost")                   | must be an AsyncClient, not str
gateway(Client("redis://localhost"))           | must be an AsyncClient, not Client
gateway(AsyncClient("redis://localhost"), access="key") | must be an Access
gateway(AsyncClient("redis://localhost"), cors="*") | must be a list of origins
SQLiteStore("/nonexistent/x.db").list_sessions() | does not exist
"""


def misuses(table: str) -> list[tuple[str, str]]:
    return [
        (given.strip(), said.strip())
        for given, _, said in (line.rpartition("|") for line in table.strip().splitlines())
    ]


@pytest.mark.parametrize(("command", "says"), misuses(COMMANDS))
def test_a_misused_command_is_answered_with_one_sentence(
    command, says, redis_url, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("ANTIPHON_REDIS_URL", redis_url)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(shlex.split(command.replace("{port}", redis_url.rpartition(":")[2].partition("/")[0])))
    except SystemExit as exc:
        code = exc.code
    said = capsys.readouterr()
    assert (code in (1, 2), said.out, said.err.count("\n")) == (True, "", 1), said
    assert says in said.err, said.err
    assert not re.search(r"(?<![\w(.])\w+=[ :,;.…]|Traceback|timedelta|None|invalid _", said.err), (
        f"a Python name: {said.err}"
    )


@pytest.mark.parametrize(("call", "says"), misuses(CALLS))
def test_a_misused_call_is_answered_with_one_sentence(call, says, redis_url, monkeypatch):
    known = {
        "Agent": Agent,
        "App": App,
        "Allow": Allow,
        "Client": Client,
        "Image": Image,
        "SQLiteStore": SQLiteStore,
        "TitleModel": TitleModel,
        "AsyncClient": AsyncClient,
        "Path": Path,
        "Window": Window,
        "gateway": gateway,
    }
    monkeypatch.delenv("ANTIPHON_REDIS_URL", raising=False)
    with Client(redis_url) as client, pytest.raises(AgentError) as caught:
        eval(call, known | {"agent": Agent("scripted", "any"), "client": client, "tool": tool})
    assert says in caught.value.message
    assert "\n" not in caught.value.message
