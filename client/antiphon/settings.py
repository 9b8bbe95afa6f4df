"""Settings of a command: each field is a flag and an environment variable, declared and checked in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self, cast

from antiphon.errors import SettingsError, UsageError
from antiphon.input.values import parse_switch

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value: a function, and words that follow the name of the setting in errors."""

    holds: Callable[[Any], bool]
    words: str


def at_least(lowest: float) -> Rule:
    return Rule(lambda value: value >= lowest, f"must be {lowest:g} or more")


def one_of(*words: str) -> Rule:
    *others, last = words
    return Rule(lambda value: value.lower() in words, f"must be {', '.join(others)} or {last}")


ABOVE_ZERO = Rule(lambda value: value > 0, "must be greater than 0")
PORT = Rule(lambda value: 0 <= value < 65536, "must be a port from 1 to 65535, or 0")


def setting(default: Any, doc: str, rule: Rule | None = None, *, shown: bool = True, kind: str = "") -> Any:
    """Declare a setting.

    ``shown`` is false for a value that may contain a password. ``kind`` is how ``--help`` names the value: ``TEXT``,
    ``N`` (a number), ``TIME`` (seconds, or a number with a unit) or ``yes|no``. The type of the default implies it.
    """
    kinds: dict[type[Any], str] = {bool: "yes|no", int: "N", float: "TIME"}
    metadata = {"doc": doc, "rule": rule, "kind": kind or kinds.get(default.__class__, "TEXT")}
    return field(default=default, metadata=metadata, repr=shown)


def default_of(known: Field[Any]) -> str:
    """Return the default of a setting as it is written on a command line."""
    match known.default:
        case bool(switch):
            return "yes" if switch else "no"
        case float(number):
            return f"{number:g}"
        case tuple(items):
            return ",".join(map(str, cast("tuple[object, ...]", items)))
        case other:
            return str(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSettings:
    """Settings that are read from environment variables. ``VARIABLE`` is the pattern of their names."""

    VARIABLE: ClassVar[str] = "ANTIPHON_{}"

    @classmethod
    def declared(cls) -> list[Field[Any]]:
        """Return the fields in the order in which ``--help`` and the docs list them."""
        return [*fields(cls)]

    @classmethod
    def variable(cls, name: str) -> str:
        """Return the environment variable of a setting."""
        return cls.VARIABLE.format(name.upper())

    @classmethod
    def named(cls, name: str) -> str:
        """Return the name of a setting in errors."""
        return cls.variable(name)

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> Self:
        """Read settings: flags other than None, then variables, then defaults. Raises ``SettingsError``."""
        values: dict[str, Any] = {}
        for known in fields(cls):
            flag = (flags or {}).get(known.name)
            given = flag if flag is not None else environ.get(cls.variable(known.name))
            if given not in (None, ""):
                values[known.name] = cls._parsed(known, given)
        settings = cls(**values)
        settings.check()
        return settings

    def check(self) -> None:
        """Check each setting. Raises ``SettingsError``, which names the variable and the rule."""
        for known in fields(self):
            rule: Rule | None = known.metadata["rule"]
            if rule is not None:
                self._require(rule.holds(getattr(self, known.name)), known.name, rule.words)

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise SettingsError(f"{self.named(name)} {rule}.")

    @classmethod
    def _parsed(cls, known: Field[Any], value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return cls.parse(known, value)
        except (ValueError, UsageError) as exc:
            raise SettingsError(f"{cls.named(known.name)} cannot be read: {str(exc).rstrip('.')}.") from exc

    @classmethod
    def parse(cls, known: Field[Any], text: str) -> Any:
        """Convert text to the type of a setting. Raises ``ValueError``."""
        if isinstance(known.default, bool):
            return parse_switch(text)
        match known.metadata["kind"]:
            case "TIME":
                return parse_seconds(text)
            case "N":
                return _number(text, whole=isinstance(known.default, int))
            case _:
                return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings(DeclaredSettings):
    """The settings of all long-running commands, each also a flag; subclasses add their own."""

    log_level: str = setting(
        "info", "debug, info, warning or error", one_of("debug", "info", "warning", "error")
    )
    log_format: str = setting("text", "text, or json for a JSON object on each line", one_of("text", "json"))
    status_port: int = setting(
        0, "Port for /health, /ready and, with antiphon[metrics], /metrics for Prometheus; 0 for none", PORT
    )
    status_host: str = setting("127.0.0.1", "The address on which status_port listens")
    traces: bool = setting(
        False, "Export OpenTelemetry traces, configured by the OTEL_* variables; needs antiphon[otel]"
    )

    @classmethod
    def declared(cls) -> list[Field[Any]]:
        """Return the fields, those of the command first."""
        shared = CommandSettings.__dataclass_fields__
        return sorted(fields(cls), key=lambda known: known.name in shared)

    @classmethod
    def named(cls, name: str) -> str:
        return f"{cls.variable(name)} (--{name.replace('_', '-')})"


def _number(text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a {'whole ' if whole else ''}number") from None


def parse_seconds(text: str) -> float:
    """Convert ``30``, ``30s``, ``500ms``, ``5m`` or ``1h`` to seconds. Raises ``ValueError``."""
    number = text.strip()
    unit = next((unit for unit in _UNITS if number.endswith(unit)), "")
    number = number.removesuffix(unit).rstrip()
    if not number.isascii() or not number.replace(".", "", 1).isdigit() or number.endswith("."):
        raise ValueError(f"{text!r} is not a duration like 30, 30s, 500ms, 5m or 1h")
    return float(number) * _UNITS[unit or "s"]
