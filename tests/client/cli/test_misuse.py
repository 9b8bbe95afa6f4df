"""What people get wrong: each misuse of a command or of the library is answered with one sentence and the fix."""

from __future__ import annotations

import re
import shlex

import pytest

from antiphon.cli.main import main

pytestmark = pytest.mark.one_server

COMMANDS = """
submitt s hi                                   | Did you mean 'submit'?
submit                                         | session, text. Run `antiphon submit --help`
submit s                                       | text. Run `antiphon submit --help`
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
serve --host 0.0.0.0                           | ANTIPHON_GATEWAY_KEYS
serve --drain soon                             | is not a duration like 30, 30s
serve --log-level loud                         | debug, info, warning or error
serve --keys nowhere.keys                      | nowhere.keys
worker --processes none                        | 'none' is not a whole number
worker --app nowhere:app                       | nowhere
worker --processes 0                           | ANTIPHON_PROCESSES (--processes)
worker --lease soon                            | ANTIPHON_LEASE (--lease)
worker --queues 'a b'                          | ANTIPHON_QUEUES (--queues)
worker --colour red                            | Unrecognized arguments: --colour red
run hi --provider nobody --model m             | no provider 'nobody'
redis --port 99999                             | not a port
demo --pace 0                                  | words per second
run                                            | Run `antiphon run --help`
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
        code = main(shlex.split(command))
    except SystemExit as exc:
        code = exc.code
    said = capsys.readouterr()
    assert (code in (1, 2), said.out, said.err.count("\n")) == (True, "", 1), said
    assert says in said.err, said.err
    assert not re.search(r"(?<![\w(.])\w+=[ :,;.…]|Traceback|timedelta|None|invalid _", said.err), (
        f"a Python name: {said.err}"
    )
