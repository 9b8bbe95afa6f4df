"""Whatever the SDKs and httpx2 can raise is one of our errors."""

import inspect
import ssl
from types import ModuleType
from typing import Any

import anthropic
import anyio
import httpx2
import openai
import pytest

from antiphon.errors import (
    ContextTooLong,
    ProviderError,
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderTimedOut,
    ProviderUnauthorized,
    ProviderUnreachable,
)
from antiphon_worker.providers.anthropic.provider import AnthropicConnection
from antiphon_worker.providers.errors import error_of_body, error_of_status, retry_after
from antiphon_worker.providers.http.connection import Options
from antiphon_worker.providers.http.failures import TransportErrors, map_transport_error
from antiphon_worker.providers.openai_sdk import OpenAIConnection
from antiphon_worker.providers.secrets import without_keys

REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1")
KEY = "sk-secret-of-this-test"
map_openai_error = OpenAIConnection(Options()).map_error
map_anthropic_error = AnthropicConnection(Options()).map_error


def exceptions(*modules: ModuleType) -> dict[str, type[BaseException]]:
    """Every public exception class of these modules."""
    found = {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, BaseException) and not issubclass(value, Warning) and not name.startswith("_")
    }
    assert len(found) > 10
    return found


def make(kind: type[BaseException]) -> Any:
    """An instance, made with whatever its constructor asks for."""
    response = httpx2.Response(
        getattr(kind, "status_code", 418) or 418, request=REQUEST, headers={"x-request-id": "r"}
    )
    given: dict[str, Any] = {
        "message": f"said {KEY}",
        "request": REQUEST,
        "response": response,
        "body": {"error": {"message": f"said {KEY}"}},
        "completion": openai.types.chat.ChatCompletion.model_construct(usage=None),
        "unsent_messages": [],
    }
    try:
        takes = inspect.signature(kind.__init__).parameters
    except ValueError:
        takes = {}
    arguments = {name: value for name, value in given.items() if name in takes}
    if arguments or len(takes) == 1:
        return kind(**arguments)
    return kind(f"said {KEY}")


OPENAI = {name: kind for name, kind in exceptions(openai).items() if kind.__module__.startswith("openai")}
ANTHROPIC = {
    name: kind for name, kind in exceptions(anthropic).items() if kind.__module__.startswith("anthropic")
}


@pytest.mark.parametrize("kind", OPENAI.values(), ids=OPENAI)
def test_every_exception_of_the_openai_sdk_is_one_of_our_errors(kind):
    error = map_openai_error("here", make(kind))
    assert isinstance(error, ProviderError)
    assert "here" in str(error)
    assert KEY not in str(error)


@pytest.mark.parametrize("kind", ANTHROPIC.values(), ids=ANTHROPIC)
def test_every_exception_of_the_anthropic_sdk_is_one_of_our_errors(kind):
    error = map_anthropic_error("here", make(kind))
    assert isinstance(error, ProviderError)
    assert "here" in str(error)
    assert KEY not in str(error)


def test_exceptions_of_others_are_not_taken_for_the_sdk_s():
    assert map_openai_error("here", ValueError("mine")) is None
    assert map_anthropic_error("here", ValueError("mine")) is None


EXPECTED: dict[str, type[ProviderError]] = {
    "AuthenticationError": ProviderUnauthorized,
    "PermissionDeniedError": ProviderUnauthorized,
    "BadRequestError": ProviderRejected,
    "NotFoundError": ProviderRejected,
    "UnprocessableEntityError": ProviderRejected,
    "ConflictError": ProviderOverloaded,
    "RateLimitError": ProviderRateLimited,
    "APIConnectionError": ProviderUnreachable,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_both_sdks_mean_the_same(name):
    assert type(map_openai_error("here", make(getattr(openai, name)))) is EXPECTED[name]
    assert type(map_anthropic_error("here", make(getattr(anthropic, name)))) is EXPECTED[name]


NOT_OF_A_CONNECTION = {
    "httpx2.CookieConflict"
}  # about cookies that are asked for by name, which nothing here does
HTTPX2 = {name: kind for name, kind in exceptions(httpx2).items() if name not in NOT_OF_A_CONNECTION}


@pytest.mark.parametrize("kind", HTTPX2.values(), ids=HTTPX2)
def test_every_exception_of_the_transport_is_caught_and_mapped(kind):
    assert issubclass(kind, TransportErrors)


@pytest.mark.parametrize("kind", HTTPX2.values(), ids=HTTPX2)
def test_every_exception_of_httpx2_is_one_of_our_errors(kind):
    assert isinstance(map_transport_error("here", make(kind)), ProviderError)


@pytest.mark.parametrize(
    ("error", "before", "within"),
    [
        (httpx2.ConnectTimeout("x"), ProviderTimedOut, ProviderTimedOut),
        (httpx2.ReadTimeout("x"), ProviderTimedOut, ProviderTimedOut),
        (httpx2.PoolTimeout("x"), ProviderTimedOut, ProviderTimedOut),
        (TimeoutError("x"), ProviderTimedOut, ProviderTimedOut),
        (httpx2.ConnectError("x"), ProviderUnreachable, ProviderStreamBroken),
        (httpx2.ReadError("x"), ProviderUnreachable, ProviderStreamBroken),
        (httpx2.RemoteProtocolError("x"), ProviderUnreachable, ProviderStreamBroken),
        (httpx2.DecodingError("x"), ProviderUnreachable, ProviderStreamBroken),
        (ConnectionResetError("x"), ProviderUnreachable, ProviderStreamBroken),
        (ssl.SSLError("x"), ProviderUnreachable, ProviderStreamBroken),
        (httpx2.UnsupportedProtocol("x"), ProviderRejected, ProviderRejected),
        (httpx2.InvalidURL("x"), ProviderRejected, ProviderRejected),
    ],
    ids=repr,
)
def test_what_a_connection_does_is_named(error, before, within):
    assert type(map_transport_error("here", error)) is before
    assert type(map_transport_error("here", error, begun=True)) is within


@pytest.mark.parametrize("kind", [anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError])
def test_what_the_sdks_wrap_is_mapped_by_its_wrapper(kind):
    error = anthropic.APIConnectionError(request=REQUEST)
    error.__cause__ = kind()
    assert type(map_anthropic_error("here", error)) is ProviderUnreachable


@pytest.mark.parametrize("status", range(300, 600))
def test_every_status_is_one_of_our_errors(status):
    error = error_of_status("here", status, None, {})
    assert error.status == status
    assert error.retryable == (status in (408, 409, 425, 429, 499) or (status >= 500 and status != 501))


TOO_LONG = [
    (
        "context_length_exceeded",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 141234 tokens.",
        141_234,
        128_000,
    ),
    (
        "context_length_exceeded",
        "The maximum context length is 8192 tokens: you want 9,500 (7,500 in the messages, 2,000 in the completion).",
        7_500,
        6_192,
    ),
    (
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    ("invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum", 213_462, 200_000),
    (
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease input length",
        199_000,
        191_808,
    ),
    (
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        1_200_000,
        1_048_576,
    ),
    (
        "",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        40_000,
        32_768,
    ),
    (
        "",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
        140_000,
        131_072,
    ),
    (
        "exceed_context_size_error",
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        5_000,
        4_096,
    ),
    ("ValidationException", "Input is too long for requested model.", None, None),
    (
        "invalid_request_error",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 287431)",
        287_431,
        262_144,
    ),
    (
        "BadRequestError",
        (
            "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and "
            "your prompt contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce "
            "the length of the input prompt or the number of requested output tokens. "
            "(parameter=input_tokens, value=134145)"
        ),
        134_145,
        134_144,
    ),
    (
        "BadRequestError",
        (
            "You passed 5000 input tokens and requested 1000 output tokens. However, the model's context length is "
            "only 4096 tokens, resulting in a maximum input length of 3096 tokens."
        ),
        5_000,
        3_096,
    ),
    (
        "",
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
            "5000 tokens: 4500 tokens from the input messages and 500 tokens for the completion."
        ),
        4_500,
        3_596,
    ),
    (
        "",
        (
            "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 "
            'of text input). Please reduce the length of either one, or use the "middle-out" transform to compress '
            "your prompt automatically."
        ),
        42_832,
        32_768,
    ),
    ("tokens_limit_reached", "Request body too large for gpt-4o model. Max size: 8000 tokens.", None, 8_000),
    ("", "prompt token count of 130000 exceeds the limit of 128000", 130_000, 128_000),
    (
        "context_length_exceeded",
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        9_000,
        8_192,
    ),
    (
        "validation",
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens "
            "and 512 `max_new_tokens`"
        ),
        5_000,
        3_585,
    ),
    (
        "invalid_parameter_error",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        None,
        129_024,
    ),
    ("1261", "Prompt exceeds max length", None, None),
    ("", "prompt too long; exceeded max context length by 123 tokens", None, None),
    (
        "",
        (
            "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with "
            "context length of only 4096 tokens, which is not enough."
        ),
        5_000,
        4_096,
    ),
    (
        "",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4500.",
        4_500,
        4_081,
    ),
    ("", "maximum context length is ,,,", None, None),
    ("", "context length " + "9" * 5_000, None, 999_999_999_999),
]


@pytest.mark.parametrize(("kind", "message", "tokens", "limit"), TOO_LONG)
def test_every_services_words_for_a_long_context_are_understood(kind, message, tokens, limit):
    body = {"error": {"type": kind, "message": message}}
    found = error_of_status("here", 400, body, {"x-should-retry": "true"})
    assert isinstance(found, ContextTooLong)
    assert (found.tokens, found.limit, found.retryable) == (tokens, limit, False)
    assert isinstance(error_of_body("here", body), ContextTooLong)


@pytest.mark.parametrize(
    ("status", "kind", "message", "tokens", "limit"),
    [
        (413, "request_too_large", "Request exceeds the maximum size", None, None),
        (413, "", "<html><h1>413 Request Entity Too Large</h1></html>", None, None),
        (
            413,
            "tokens rate_limit_exceeded",
            (
                "Request too large for model `llama-3.1-8b-instant` in organization `org_1` on tokens per minute "
                "(TPM): Limit 6000, Requested 7012, please reduce your message size and try again."
            ),
            7_012,
            6_000,
        ),
        (
            429,
            "tokens rate_limit_exceeded",
            (
                "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested "
                "44100. The input or output tokens must be reduced in order to run successfully."
            ),
            44_100,
            30_000,
        ),
    ],
)
def test_a_request_that_a_service_never_takes_is_too_long(status, kind, message, tokens, limit):
    found = error_of_status("here", status, {"error": {"type": kind, "message": message}}, {})
    assert isinstance(found, ContextTooLong)
    assert (found.tokens, found.limit, found.retryable) == (tokens, limit, False)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large: 50000. This model supports at most 16384 completion tokens."),
        (
            400,
            "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096.",
        ),
        (429, "Request too large: context length 12,000 exceeds your tokens per minute."),
        (
            429,
            "Request too large for m on tokens per min (TPM): Limit 30000, Requested 4100. Try again in 2 s.",
        ),
        (500, "The context window could not be loaded."),
        (400, "The image is too large."),
    ],
)
def test_other_failures_about_sizes_are_none_of_a_long_context(status, message):
    assert not isinstance(
        error_of_status("here", status, {"error": {"message": message}}, {}), ContextTooLong
    )


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
    ],
)
def test_how_long_to_wait_is_read_where_it_makes_sense(headers, seconds):
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    "key",
    [
        "sk-abcdef123456",
        "sk-proj-Ab_c-12345678",
        "sk-ant-api03-xyzxyzxyz",
        "gsk_0123456789abcdef",
        "AIzaSyD1234567890abcdefghijklmnopqrstuv",
        "sk-fake-key",
        "sk-ab***********wxyz",
    ],
)
def test_keys_are_taken_out_of_messages(key):
    assert without_keys(f"The key {key} is wrong.").rstrip(".") in ("The key [key] is wrong", "The key [key]")
    assert key not in str(error_of_body("here", {"error": {"message": f"key={key}"}}))


def test_messages_without_keys_stay_as_they_are():
    text = "invalid x-api-key: see https://platform.openai.com/account/api-keys, model gpt-4o-mini, max_tokens: 64000"
    assert without_keys(text) == text
