"""The fields of hashes and streams that the Lua scripts read and write, by the kind of their key."""

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import resources

_CALL = re.compile(r"redis\.p?call\(")
_LOCAL = re.compile(r"^\s*local ([\w, ]+) = (.*)$", re.MULTILINE)
_KEY = re.compile(r"^key_(\w+)\(")
_FIELD = re.compile(r"^'([a-z_]+:?)'")
_PAIRS = {"HSET", "HSETNX", "HINCRBY", "HINCRBYFLOAT"}
_NAMES = {"HGET", "HMGET", "HDEL", "HEXISTS"}
_LISTS = {
    "VIEWED": "turn",
    "BESIDE": "turn",
    "FIELDS": "turn",
    "OF_SESSION": "session",
    "OF_ITS_SESSION": "session",
    "LIFE": "session",
}
"""Lists of fields that several calls share, with the kind of their key."""


def fields_of_scripts() -> dict[str, set[str]]:
    """Return by kind of key (``session``, ``turn``, ``rq_job``, …) the names of its fields.

    A name that ends with a colon is a prefix.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for path in (resources.files("antiphon.wire") / "lua").rglob("*.lua"):  # type: ignore[attr-defined]
        text = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
        kinds = _kinds_of_names(text)
        for key, names in _of_calls(text):
            kind = _KEY.match(key)
            if kind or key in kinds:
                found[kind[1] if kind else kinds[key]].update(names)
        found["session"].update(
            re.findall(r"\bkeep\('(\w+)'", text)
        )  # what a session keeps from its first turn on
        for more in re.findall(r"\{('done'.*?)\}\)", text, re.DOTALL):  # what a turn keeps from its end on
            found["turn"].update(_literals(arguments(more)[::2]))
        for name, listed in re.findall(r"^local (\w+) = \{(.*?)\}", text, re.DOTALL | re.MULTILINE):
            if name in _LISTS:
                found[_LISTS[name]].update(_literals(arguments(listed)))
    return {kind: names for kind, names in found.items() if names}


def _kinds_of_names(text: str) -> dict[str, str]:
    """Return the local names of keys, with the key's kind."""
    return {
        name.strip(): kind[1]
        for names, values in _LOCAL.findall(text)
        for name, value in zip(names.split(","), arguments(values), strict=False)
        if (kind := _KEY.match(value))
    }


def _of_calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield for each command on a hash or stream the expression of its key, and the fields it names."""
    for call in _CALL.finditer(text):
        command, *rest = arguments(text[call.end() :])
        command = command.strip("'")
        if not rest:
            continue
        key, *more = rest
        if command in _PAIRS:
            yield key, _literals(more[::2])
        elif command in _NAMES or command == "XADD":
            yield key, _literals(more)


def _literals(values: list[str]) -> list[str]:
    return [match[1] for value in values if (match := _FIELD.match(value))]


def arguments(text: str) -> list[str]:
    """Return the expressions up to the closing parenthesis of a call whose arguments begin here, or to the end.

    >>> arguments("'HSET', key_turn(a, b), 'x', {1, 2}) then")
    ["'HSET'", 'key_turn(a, b)', "'x'", '{1, 2}']
    """
    found, depth, quote, begin = [], 0, "", 0
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return [*found, text[begin:at].strip()]
        elif character == "," and depth == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [*found, text[begin:].strip()]
