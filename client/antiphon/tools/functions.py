"""``@tool`` and ``Tool``: a tool from the signature and the docstring of a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, get_args, get_type_hints, overload

import msgspec

from antiphon.errors import InvalidTool, ToolArgumentsInvalid, UsageError
from antiphon.input.json_schema import misfits
from antiphon.input.limits import check_depth
from antiphon.input.schema import NotStrict, Shape, strict_schema
from antiphon.model import AtLimit, File, Image, Text
from antiphon.tools.approval import ToolRule, tool_rule
from antiphon.tools.context import Context
from antiphon.tools.results import content_of, plain_value

_HEADERS = ("args:", "arguments:", "parameters:", "params:")
_NAME = re.compile(r"\*{0,2}(\w+)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text without its ``Args:`` section, and the description of each argument.

    >>> read_docstring("Add.\\n\\nArgs:\\n    a: One number.\\n    b (int): Another\\n        number.")
    ('Add.', {'a': 'One number.', 'b': 'Another number.'})
    """
    about: list[str] = []
    arguments: list[tuple[str, str]] = []
    section: int | None = None  # the indent of the Args header, while inside the section
    entries: int | None = None  # the indent of its entries
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if section is None or (stripped and (indent < section or _is_section(stripped, indent, section))):
            section, entries = (indent, None) if stripped.lower() in _HEADERS else (None, None)
            if section is None:
                about.append(line)
            continue
        if not stripped:
            continue
        entries = indent if entries is None else entries
        entry = _entry(stripped) if indent <= entries else None
        if entry:
            arguments.append(entry)
        elif arguments:
            name, said = arguments[-1]
            arguments[-1] = name, f"{said} {stripped}".strip()
    return "\n".join(about).strip(), dict(arguments)


def _is_section(stripped: str, indent: int, section: int) -> bool:
    return indent == section


def _entry(line: str) -> tuple[str, str] | None:
    """Return the name and description of ``name: …`` or ``name (type): …``, or None for other lines."""
    named = _NAME.match(line)
    if named is None:
        return None
    rest = line[named.end() :].lstrip()
    if rest.startswith("("):
        rest = rest.partition(")")[2].lstrip()
    return (named[1], rest[1:].lstrip()) if rest.startswith(":") else None


P = ParamSpec("P")
R = TypeVar("R")

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_EMPTY = inspect.Parameter.empty


class _Parameter:
    """A parameter whose value comes from the model."""

    __slots__ = ("default", "name", "positional_only", "required", "schema", "shape")

    def __init__(self, parameter: inspect.Parameter, shape: Shape, description: str) -> None:
        self.name = parameter.name
        self.positional_only = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        self.default = parameter.default
        self.required = parameter.default is _EMPTY
        self.shape = shape
        self.schema = dict(shape.schema)
        if description:
            self.schema["description"] = description
        if not self.required:
            self.schema.update(_default_of(parameter.default))

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """Return the value for the function, or the default if the value is missing or is an invalid null."""
        if self.name not in arguments:
            return self.default
        try:
            return self.shape.read(arguments[self.name])
        except ValueError:
            if arguments[self.name] is None and not self.required:
                return self.default
            raise


class ToolOptions(TypedDict, total=False):
    """The keywords of ``Tool`` and of ``@tool``."""

    name: str | None
    description: str | None
    parameters: Mapping[str, Any] | None
    timeout: float | None
    at_most_once: bool
    strict: bool
    approval: ToolRule
    approval_timeout: float | timedelta | None
    approval_at_limit: AtLimit


class Tool(Generic[P, R]):
    """A function that a model can call. Python code can still call it like the function itself.

    ``parameters`` is the JSON schema of its arguments, by default that of the function's parameters. A function whose
    schema is given is called with keywords; their values are checked but not converted. ``timeout`` is in seconds;
    None uses the worker's. With ``at_most_once``, a call is never started a second time, even after a worker crash.
    With ``strict``, the model service enforces the schema.

    With ``approval``, a call waits until it is approved: every call, or those for which a function of the arguments
    returns True. After ``approval_timeout`` seconds without a decision, ``approval_at_limit`` applies: ``"reject"``,
    ``"approve"``, or ``"fail"``, which fails the turn.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        at_most_once: bool = False,
        strict: bool = False,
        approval: ToolRule = False,
        approval_timeout: float | timedelta | None = None,
        approval_at_limit: AtLimit = "reject",
    ) -> None:
        self._options = ToolOptions(
            name=name, description=description, parameters=parameters, timeout=timeout, at_most_once=at_most_once,
            strict=strict, approval=approval, approval_timeout=approval_timeout, approval_at_limit=approval_at_limit,
        )  # fmt: skip
        self.function = function
        self.name = _checked_name(function, name)
        self.timeout = _checked_timeout(timeout, self.name)
        self.at_most_once, self.strict = at_most_once, strict
        self.approval = tool_rule(self.name, approval, approval_timeout, approval_at_limit)
        self.is_async = _is_async(function, self.name)
        about, arguments = read_docstring(inspect.getdoc(_plain(function)) or "")
        self.description = description if description is not None else about
        self._unbound = _is_method(function)
        self._context: list[str] = []
        self._given = None if parameters is None else _object_schema(parameters, self.name)
        self._offered = self._read_signature(arguments)
        self.parameters = self._given or self._schema()
        update_wrapper(self, _plain(function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., Any]:
        """Bind a tool that is defined in a class to an instance."""
        if instance is None or not self._unbound:
            return self
        bound = self.function.__get__(instance, owner)  # type: ignore[attr-defined]
        return Tool(bound, **self._options)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def bind(self, arguments: Mapping[str, Any], context: Context) -> tuple[list[Any], dict[str, Any]]:
        """Convert the arguments from the model to those of the function. Raises ``ToolArgumentsInvalid``."""
        if self._unbound:
            raise ToolArgumentsInvalid(f"{self.name} is a method: give the agent the tool of an instance.")
        if self._given is not None:
            if reasons := misfits(arguments, self._given):
                raise ToolArgumentsInvalid(f"The arguments do not match {self.name}: {'; '.join(reasons)}.")
            return [], {**arguments, **dict.fromkeys(self._context, context)}
        unknown = [name for name in arguments if name not in self.parameters["properties"]]
        missing = [p.name for p in self._offered if p.required and p.name not in arguments]
        problems = [f"there is no argument {name!r}" for name in unknown]
        problems += [f"{name!r} is missing" for name in missing]
        positional: list[Any] = []
        keywords: dict[str, Any] = dict.fromkeys(self._context, context)
        for parameter in self._offered:
            try:
                value = parameter.read(arguments)
            except ValueError as exc:
                problems.append(f"{parameter.name!r}: {exc}")
                continue
            if parameter.positional_only:
                positional.append(value)
            elif value is not _EMPTY:
                keywords[parameter.name] = value
        if problems:
            raise ToolArgumentsInvalid(f"The arguments do not match {self.name}: {'; '.join(problems)}.")
        return positional, keywords

    def content_of(self, value: Any) -> str | list[Text | Image | File]:
        """Convert a returned value to the content for the model. Raises ``ToolRaised`` if it has no JSON form."""
        return content_of(value)

    def _read_signature(self, arguments: dict[str, str]) -> list[_Parameter]:
        offered: list[_Parameter] = []
        signature = _signature(self.function, self.name)
        if self._given is not None:
            _check_accepts(signature, self._given, self.name)
        for parameter in signature.values():
            annotation = parameter.annotation
            if annotation is Context or Context in get_args(annotation):
                self._context.append(parameter.name)
                continue
            if self._given is not None:
                continue
            shape = _shape_of(parameter, self.name)
            description = arguments.get(parameter.name) or _annotated_text(annotation)
            offered.append(_Parameter(parameter, shape, description))
        return offered

    def _schema(self) -> dict[str, Any]:
        definitions: dict[str, Any] = {}
        for parameter in self._offered:
            for name, definition in parameter.shape.definitions.items():
                if definitions.setdefault(name, definition) != definition:
                    raise InvalidTool(
                        f"The tool {self.name} uses two different types named {name}, the second one"
                        f" in the parameter {parameter.name!r}: rename one of them."
                    )
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self._offered},
            "required": [parameter.name for parameter in self._offered if parameter.required],
            "additionalProperties": False,
        }
        if definitions:
            schema["$defs"] = definitions
        if not self.strict:
            return schema
        try:
            return strict_schema(schema)
        except NotStrict as exc:
            raise InvalidTool(f"The tool {self.name} cannot be strict: {exc}.") from exc


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    at_most_once: bool = False,
    strict: bool = False,
    approval: ToolRule = False,
    approval_timeout: float | timedelta | None = None,
    approval_at_limit: AtLimit = "reject",
) -> Any:
    """Turn a function into a tool. Raises ``InvalidTool`` if its signature has no JSON schema.

    The keywords are those of ``Tool``. ``parameters`` makes a tool from a JSON schema, for functions of an OpenAPI
    document or of another server.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> add(2), add.name, add.parameters["required"]
    (3, 'add', ['a'])
    >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    >>> weather = tool(name="weather", parameters=schema)(lambda **arguments: f"Sun in {arguments['city']}")
    >>> weather.parameters["required"]
    ['city']
    """
    options = ToolOptions(
        name=name, description=description, parameters=parameters, timeout=timeout, at_most_once=at_most_once,
        strict=strict, approval=approval, approval_timeout=approval_timeout, approval_at_limit=approval_at_limit,
    )  # fmt: skip
    return partial(Tool, **options) if function is None else Tool(function, **options)


def _object_schema(parameters: Any, name: str) -> dict[str, Any]:
    """Return a copy of the schema that a tool is declared with. Raises ``InvalidTool``."""
    try:
        schema = msgspec.json.decode(msgspec.json.encode(parameters), type=dict[str, Any])
        check_depth(schema, "The schema")
    except (TypeError, ValueError, RecursionError, UsageError, msgspec.MsgspecError) as exc:
        raise InvalidTool(f"parameters= of the tool {name} is not a JSON schema: {exc}") from exc
    if schema.get("type") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise InvalidTool(
            f'parameters= of the tool {name} must be the JSON schema of an object: {{"type": "object", …}}.'
        )
    return schema


def _check_accepts(signature: Mapping[str, inspect.Parameter], schema: Mapping[str, Any], name: str) -> None:
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.values()):
        return
    refused = [one for one in schema.get("properties", {}) if one not in signature]
    if refused:
        raise InvalidTool(
            f"The function of the tool {name} does not accept {refused[0]!r}, which its schema has: add this "
            "parameter, or **arguments."
        )


def _checked_timeout(timeout: float | None, name: str) -> float | None:
    if timeout is not None and not timeout > 0:
        raise InvalidTool(f"The timeout of the tool {name} must be a positive number of seconds.")
    return timeout


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside ``partial``."""
    while isinstance(function, partial):
        function = function.func
    return function


def _checked_name(function: object, name: str | None) -> str:
    if isinstance(function, Tool):
        raise InvalidTool(f"{function.name} is already a tool.")
    if isinstance(function, type) or not callable(function):
        kind = "class" if isinstance(function, type) else type(function).__name__
        raise InvalidTool(f"A tool must be a function, not the {kind} {function!r}.")
    if name is None:
        name = str(getattr(_plain(function), "__name__", type(function).__name__))
    if not TOOL_NAME.fullmatch(name):
        raise InvalidTool(
            f"{name!r} is not a valid tool name (1 to 64 letters, digits, '_' and '-'): give name=…."
        )
    return name


def _is_async(function: Callable[..., Any], name: str) -> bool:
    plain = _plain(function)
    called = plain if inspect.isroutine(plain) else type(plain).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidTool(f"The tool {name} yields: a tool must return its result.")
    return inspect.iscoroutinefunction(called)


def _is_method(function: Callable[..., Any]) -> bool:
    """Return True for a function that is defined in a class and has ``self`` as its first parameter."""
    if not inspect.isfunction(function):
        return False
    within = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), "")
    return bool(within) and not within.endswith("<locals>") and first == "self"


def _signature(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """Return the unbound parameters, with their annotations evaluated."""
    plain = _plain(function)
    try:
        parameters = dict(inspect.signature(function).parameters)
        hints = get_type_hints(
            plain if inspect.isroutine(plain) else type(plain).__call__, include_extras=True
        )
    except NameError as exc:
        culprit = _naming(parameters, exc.name or "")  # pyright: ignore[reportPossiblyUnboundVariable]
        raise InvalidTool(
            f"{culprit} of the tool {name} has an annotation that is not defined: {exc}."
        ) from exc
    except (TypeError, ValueError) as exc:
        raise InvalidTool(f"The signature of the tool {name} cannot be read: {exc}.") from exc
    if _is_method(function):
        parameters.pop("self")
    if isinstance(function, partial):
        parameters = {n: p for n, p in parameters.items() if n not in function.keywords}
    return {n: p.replace(annotation=hints.get(n, p.annotation)) for n, p in parameters.items()}


def _naming(parameters: Mapping[str, inspect.Parameter], undefined: str) -> str:
    for parameter in parameters.values():
        if undefined and undefined in str(parameter.annotation):
            return f"The parameter {parameter.name!r}"
    return "A parameter"


def _shape_of(parameter: inspect.Parameter, tool_name: str) -> Shape:
    where = f"The parameter {parameter.name!r} of the tool {tool_name}"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise InvalidTool(f"{where} takes any number of arguments: name each argument instead.")
    if parameter.annotation is _EMPTY:
        raise InvalidTool(f"{where} has no type annotation: add one.")
    try:
        return Shape(parameter.annotation)
    except TypeError as exc:
        reason = str(exc).strip().rsplit("\n", 1)[-1]
        raise InvalidTool(f"{where} has a type without a JSON schema: {reason}.") from exc


def _annotated_text(annotation: Any) -> str:
    """Return the text of ``Annotated[type, "text"]``."""
    return next((extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, str)), "")


def _default_of(value: Any) -> dict[str, Any]:
    """Return the default for the schema, or nothing if it has no JSON form."""
    try:
        return {"default": msgspec.to_builtins(value, enc_hook=plain_value, str_keys=True)}
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {}
