"""Each script says in its header what it takes and answers, and each answer is understood by its wrapper."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from redis import Redis
from support.offenders import for_each

import antiphon.wire
from antiphon.wire import (
    answered,
    archiving,
    editing,
    errors,
    feedback,
    files,
    forwarding,
    placed,
    promotions,
    requests,
    revisions,
    suspension,
    variants,
)
from antiphon.wire.cell import Cell
from antiphon.wire.joining import inlined_keys
from antiphon.wire.keys import CHANNELS, KINDS, RQ_KEYS
from antiphon.wire.lists import notices, schedules, webhooks
from antiphon.wire.scripts import load_script, script_names

FOLDER = Path(antiphon.wire.__file__).parent / "lua"
NAMES = [
    *script_names(),
    *(
        f"{kind}/{path.stem}"
        for kind in ("archiving", "children", "editing", "files", "notices", "schedules", "webhooks")
        for path in sorted((FOLDER / kind).glob("*.lua"))
    ),
]
WRAPPERS = {
    "archiving/forgotten": archiving.forgotten,
    "archiving/mark": archiving.mark_archived,
    "archiving/restore": archiving.restore_session,
    "archiving/set_aside": archiving.set_aside,
    "archiving/take": archiving.take_work,
    "children/forward": forwarding.forward,
    "editing/edit": editing.change_session,
    "editing/fork": editing.fork_session,
    "editing/delete": editing.delete_session,
    "editing/erase": editing.erase_turns,
    "editing/erase_turns": editing.erase_turns_of,
    "editing/forget": editing.forget_turn,
    "files/add_chunk": files.add_chunks,
    "files/drop_files": files.drop_files,
    "files/list_files": files.list_files,
    "files/place_file": files.place,
    "files/places": placed.places_of,
    "files/read_chunk": files.read_file,
    "suspend": suspension.suspend,
    "begin": revisions.begin,
    "promote": promotions.write_promotions,
    "count": feedback.keep_figures,
    "rate": feedback.rate,
    "route": revisions.write_route,
    "keep_answered": answered.keep_answered,
    "keep_request": requests.keep_request,
    "keep_variant": variants.keep_variant,
    "wake": revisions.wake_missing,
    "decide": suspension.decide,
    "notices/follow": notices.follow,
    "schedules/advance": schedules.advance,
    "schedules/of_event": schedules.schedules_of_event,
    "schedules/write": schedules.write_schedule,
    "webhooks/release": webhooks.release_webhook,
    "webhooks/settle": webhooks.settle,
    "webhooks/take": webhooks.take_webhook,
    "webhooks/write": webhooks.write_webhook,
}
PIECES = sorted(path.stem for path in (FOLDER / "include").glob("*.lua"))


def read(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text()


def code(name: str) -> str:
    return "\n".join(line for line in read(name).split("\n") if not line.lstrip().startswith("--"))


def answered_words(name: str) -> set[str]:
    """The first elements of the tables that the script's own code returns."""
    words: set[str] = set()
    own = code("include/accept") if name == "submit" else code(name)
    for start in re.findall(r"return \{([^\n]*)", own):
        found = re.findall(r"'([A-Z_]{2,})'", start)
        words.update(found[:1] if start.startswith("'") else found)
    return words


@for_each(NAMES)
def test_the_header_names_purpose_arguments_and_outcomes(name):
    lines = read(name).split("\n")
    assert re.match(r"-- [A-Z].*[.:]?$", lines[0])
    assert re.search(r"^-- @args \w+", read(name), re.MULTILINE)
    assert re.search(r"^-- @include", read(name), re.MULTILINE)
    assert load_script(name).outcomes


@for_each(NAMES)
def test_the_words_returned_are_the_words_of_the_header(name):
    assert answered_words(name) == {word.decode() for word in load_script(name).outcomes}


@for_each(NAMES)
def test_every_word_is_understood_by_the_wrapper(name):
    source = inspect.getsource(WRAPPERS[name] if name in WRAPPERS else getattr(Cell, name))
    for reader in (Cell._held, Cell.run_held, Cell._emitted, errors.accepted, errors.refusal, files.refused):
        source += inspect.getsource(reader) if f"{reader.__name__}(" in source else ""
    if name == "fail_job":
        return  # its one word says nothing
    for word in load_script(name).outcomes:
        assert repr(word).replace("'", '"') in source, word


@for_each(NAMES)
def test_every_argument_is_used(name):
    script = load_script(name)
    for argument in script.arguments:
        text = "\n".join([code(name), *(code(f"include/{piece}") for piece in includes(name))])
        assert re.search(rf"\b{argument.removesuffix('...')}\b", text), argument


def includes(name: str) -> list[str]:
    found = re.search(r"^-- @include[ \t]*([^\n]*)", read(name), re.MULTILINE)
    assert found
    return found.group(1).split()


def functions_of(piece: str) -> dict[str, str]:
    """The functions of a shared piece, each with its text."""
    parts = re.split(r"^local function (\w+)", code(f"include/{piece}"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def reachable(text: str, functions: dict[str, str]) -> set[str]:
    """The functions that are called or handed on from here, and from those."""
    found: set[str] = set()
    texts = [text]
    while texts:
        named = re.findall(r"\b(\w+)\((?:(?:(?<=guarded\()|(?<=pcall\())(\w+))?", texts.pop())
        called = {name for pair in named for name in pair} & functions.keys() - found
        found |= called
        texts += [functions[name] for name in called]
    return found


@for_each(NAMES)
def test_what_is_included_is_needed_and_what_is_needed_is_included(name):
    pieces = {piece: functions_of(piece) for piece in PIECES if piece != "test_clock"}
    everything = {function: text for functions in pieces.values() for function, text in functions.items()}
    called = reachable(code(name), everything)
    needed = {piece for piece, functions in pieces.items() if called & functions.keys()}
    assert set(includes(name)) == needed - {"clock"}


@for_each([*NAMES, *(f"include/{piece}" for piece in PIECES)])
def test_scripts_reach_keys_and_time_by_the_shared_functions_alone(name):
    text = code(name)
    if name != "include/test_clock":
        assert not re.search(r"PREFIX|\b(DB|ARGV|KEYS)\b", text)
    assert "cjson" not in text or name in ("count", "include/give_up")  # they add sums
    assert "TIME" not in text or name == "include/clock"
    assert not re.search(r"['\"](ant|rq):", text)
    known = {f"key_{kind.name}" for kind in KINDS} | {f"key_{kind}" for kind in [*CHANNELS, *RQ_KEYS]}
    assert set(re.findall(r"\bkey_\w+", text)) <= known


@for_each(NAMES)
def test_nothing_newer_than_redis_6_2_is_asked_of_the_server(name):
    text = load_script(name).source
    assert not text.startswith("#!")
    for newer in (
        "redis.setresp",
        "redis.acl_check",
        "redis.register_function",
        "EXPIRETIME",
        "LMPOP",
        "ZMPOP",
    ):
        assert newer not in text
    assert not re.search(r"'P?EXPIRE'[^\n]*'(NX|XX|GT|LT)'", text)


def test_keys_in_scripts_are_spelled_as_in_python(redis_url):
    from antiphon.wire.keys import Keys, rq_key

    with Redis.from_url(redis_url, decode_responses=True) as redis:
        for kind in KINDS:
            ids = ["a:b"] * kind.template.count("{}")
            expected = getattr(Keys("p"), kind.name)
            expected = expected(*ids) if ids else expected
            assert call(redis, f"key_{kind.name}({', '.join(map(repr, ids))})") == expected
        for name, template in RQ_KEYS.items():
            ids = ["a:b"] * template.count("{}")
            assert call(redis, f"key_{name}({', '.join(map(repr, ids))})") == rq_key(name, *ids)
        assert call(redis, "key_live('a:b')") == Keys("p").live(5, "a:b")


def call(redis: Redis, expression: str) -> str:
    return redis.eval(f"local PREFIX, DB = 'p', '5'\nreturn {inlined_keys(expression)}", 0)
