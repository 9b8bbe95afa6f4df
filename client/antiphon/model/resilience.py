"""What an agent does when its model service fails, and the service's error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from antiphon.errors import ProviderError, UsageError


class Retry(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """When to retry a turn whose model service fails: ``Agent(…, retry=Retry(seconds=60))``.

    ``seconds`` counts from the first error of a step (model call), so that each step has the full time; with 0 the
    first error fails the turn. ``times`` is the maximum number of retries of a run. ``delay`` is the pause in seconds
    before the first retry; it doubles up to a minute. If the service returns a time to wait, that is used. ``codes``
    are the errors to retry, by default all temporary ones (``retryable``).

    It applies to workers and to turns in this process, which wait in place. Without a ``Retry``, a worker retries for
    ten minutes (``ANTIPHON_RETRY_SECONDS``), and a turn in this process fails with its first error.

    >>> from antiphon import Agent
    >>> from antiphon.errors import ProviderOverloaded
    >>> from antiphon.testing import script
    >>> model = script(ProviderOverloaded(), "Here I am.")
    >>> Agent(model, "any", retry=Retry(times=3, delay=0.01)).session().run("Hello").text
    'Here I am.'
    """

    seconds: float = 600.0
    times: int | None = None
    delay: float | None = None
    codes: tuple[str, ...] | None = None


class Timeouts(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """How long a model call may be silent, and take in all: ``Agent(…, timeouts=Timeouts(first_token=20))``.

    All are in seconds; None means no limit. ``first_token`` counts from the request to the first piece of the answer
    (``ProviderFirstTokenTimedOut``), ``between_tokens`` from one piece to the next (``ProviderSilent``). Keep-alive
    signals of the service do not count as pieces. ``step`` counts from the request to the end of the answer
    (``ProviderStepTimedOut``). An omitted field has its default. An agent without ``timeouts`` has those of
    ``App(timeouts=…)``; without either, only the time limits of the connection and the turn apply. Time that the
    answer spends waiting for a slow Redis does not count as silence.

    >>> from antiphon import Agent
    >>> Agent(provider="scripted", model="any", timeouts=Timeouts(first_token=20)).timeouts
    Timeouts(first_token=20)
    """

    first_token: float | None = 300.0
    between_tokens: float | None = 180.0
    step: float | None = 1800.0


class FallbackModel(Struct, frozen=True, omit_defaults=True):
    """A model that answers if another one fails. ``params`` replace the agent's params of the same names."""

    provider: str
    model: str
    params: dict[str, Any] = field(default_factory=dict)


class ServiceAnswer(Struct, frozen=True, omit_defaults=True):
    """A model service's error: the HTTP status, its id of the request, and the seconds to wait.

    Each is None if the service did not send it, or did not answer.
    """

    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: BaseException) -> ServiceAnswer | None:
        """Return the details of a service's error, or None."""
        if not isinstance(error, ProviderError):
            return None
        said = cls(error.status, error.request_id, error.retry_after)
        return None if said == cls() else said


def checked_retry(retry: object) -> Retry | None:
    """Return the checked ``Retry``. Raises ``UsageError``, which names the argument."""
    if retry is None:
        return None
    if not isinstance(retry, Retry):
        raise UsageError(f"retry= must be a Retry, such as Retry(seconds=60), not {retry!r}.")
    for name, value in (("seconds", retry.seconds), ("delay", retry.delay)):
        if value != 0:
            _check_seconds(value, f"Retry({name})")
    times: Any = retry.times
    if times is not None and (type(times) is not int or times < 0):
        raise UsageError(f"Retry(times)= must be a whole number of at least 0, not {times!r}.")
    return msgspec.structs.replace(retry, codes=_codes(retry.codes))


def checked_timeouts(timeouts: object, error: type[UsageError] = UsageError) -> Timeouts | None:
    """Return the checked ``Timeouts``. Raises ``error``, which names the argument."""
    if timeouts is None:
        return None
    if not isinstance(timeouts, Timeouts):
        raise error(f"timeouts= must be Timeouts, such as Timeouts(first_token=20), not {timeouts!r}.")
    for name in Timeouts.__struct_fields__:
        _check_seconds(getattr(timeouts, name), f"Timeouts({name})", error)
    return timeouts


def checked_fallback(fallback: Any) -> list[Any]:
    """Return the models that an agent names: each a ``FallbackModel``, or the agent whose model to use."""
    if isinstance(fallback, str) or not isinstance(fallback, Iterable):
        raise UsageError(f"fallback= must be a list of models, such as ['anthropic/…'], not {fallback!r}.")
    return [_model(one) for one in cast("Iterable[Any]", fallback)]


def _model(named: Any) -> Any:
    if isinstance(named, str):
        provider, slash, model = named.partition("/")
        if not (provider and slash and model):
            raise UsageError(f"fallback= has {named!r}: write 'provider/model', such as 'openai/gpt-5-mini'.")
        return FallbackModel(provider, model)
    if isinstance(named, FallbackModel):
        return named
    if not all(hasattr(named, name) for name in FallbackModel.__struct_fields__):
        raise UsageError(f"fallback= must name models as 'provider/model' or as Agents, not {named!r}.")
    return named


def _codes(codes: Any) -> tuple[str, ...] | None:
    """Return the codes to retry. Raises ``UsageError``, which names a code that is never retried."""
    if codes is None:
        return None
    if isinstance(codes, str) or not isinstance(codes, Iterable):
        raise UsageError(f"Retry(codes)= must be a list of codes of errors, not {codes!r}.")
    known = sorted({str(kind.code) for kind in _kinds(ProviderError) if kind.retryable})
    for code in (found := tuple(cast("Iterable[Any]", codes))):
        if code not in known:
            raise UsageError(
                f"Retry(codes)= has {code!r}, which is never retried; use one of: {', '.join(known)}."
            )
    return found


def _kinds(kind: type[ProviderError]) -> list[type[ProviderError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _kinds(child))]


def _check_seconds(value: Any, name: str, error: type[UsageError] = UsageError) -> None:
    known = value is None or (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e10
    )
    if not known:
        raise error(f"{name}= must be a positive number of seconds, not {value!r}.")
