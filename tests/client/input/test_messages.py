"""Messages come in as ours, as OpenAI's chat dictionaries and as Anthropic's."""

import pytest

from antiphon.errors import InvalidMessage
from antiphon.input.messages import to_input, to_messages
from antiphon.model import File, Image, Item, Message, Reasoning, Refusal, Text, ToolCall, ToolResult

OPENAI = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}},
    ]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "cat"}'}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": ""}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "content": "A cat."},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "Nothing."}]},
    {"role": "assistant", "content": "A cat.", "refusal": None},
    {"role": "assistant", "content": None, "refusal": "No."},
]  # fmt: skip

ANTHROPIC = [
    {"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}, "title": "A"},
        {"type": "text", "text": "Compare."},
    ]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "cat"}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "is_error": True,
         "content": [{"type": "text", "text": "gone"}]},
        {"type": "text", "text": "Try again."},
    ]},
]  # fmt: skip


def test_openai_chat_dictionaries_become_messages():
    system, user, calls, results, answer, refusal = to_messages(OPENAI)
    assert (system.role, system.text) == ("system", "Be brief.")
    assert user.parts == [
        Text("What is this?"),
        Image(url="https://example.com/cat.png", detail="low"),
        Image(data="AAAA", media_type="image/png"),
        File(file_id="file-1", name="a.pdf"),
    ]
    assert calls.tool_calls[0].arguments == {"at": "cat"}
    assert calls.tool_calls[0].arguments_text == '{"at": "cat"}'
    assert calls.tool_calls[1].arguments == {}
    assert results == Message.tool([ToolResult("c1", "A cat."), ToolResult("c2", "Nothing.")])
    assert answer == Message.assistant("A cat.")
    assert refusal.parts == [Refusal("No.")]


def test_anthropic_dictionaries_become_messages():
    user, answer, results, again = to_messages(ANTHROPIC)
    assert user.parts == [
        Image(data="AAAA", media_type="image/png"),
        File(url="https://example.com/a.pdf", name="A"),
        Text("Compare."),
    ]
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    assert answer.parts == [
        Reasoning("Hm.", thinking),
        Text("I look."),
        Item("anthropic", search),
        ToolCall("t1", "look", {"at": "cat"}),
    ]
    assert results == Message.tool([ToolResult("t1", "gone", is_error=True)])
    assert again == Message.user("Try again.")


def test_messages_of_ours_survive_their_dictionary_form():
    messages = to_messages([*OPENAI, *ANTHROPIC])
    assert to_messages([message.to_dict() for message in messages]) == messages


def test_tool_results_of_two_steps_are_not_joined():
    two = [OPENAI[2], OPENAI[3], {"role": "assistant", "content": "Hm."}, OPENAI[4]]
    assert [message.role for message in to_messages(two)] == ["assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("Hi", [Text("Hi")]),
        (Text("Hi"), [Text("Hi")]),
        (["Look:", Image(url="https://example.com/a.png")], [Text("Look:"), Image(url="https://example.com/a.png")]),
        ([{"type": "text", "text": "Hi"}], [Text("Hi")]),
        (Message.user("Hi"), [Text("Hi")]),
        ({"role": "user", "content": "Hi"}, [Text("Hi")]),
    ],
)  # fmt: skip
def test_input_is_text_parts_or_a_message(given, parts):
    assert to_input(given) == [Message("user", parts)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"role": "robot", "content": "Hi"}], "'robot' is not one of"),
        ([{"content": "Hi"}], "None is not one of"),
        (["Hi"], "not str 'Hi'"),
        ([{"role": "user", "content": 7}], "not int 7"),
        ([{"role": "user", "content": [{"text": "Hi"}]}], "with a type"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "'hologram' is unknown"),
        ([{"role": "user", "content": [{"type": "text"}]}], "'text' is missing"),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "expected text, not int 7"),
        ([{"role": "tool", "content": "x"}], "tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "tool call cannot be read"),
        (
            [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
            "cannot contain tool results",
        ),
        ([{"role": "user", "parts": [{"type": "text", "text": 1}]}], "Expected `str`"),
        ([Message.user("\ud800")], "no JSON form"),
        ([Message.user([Image()])], r"Image\(\) has no content: pass url= or data="),
        ([Message.user([File(name="a.pdf")])], r"File\(\) has no content"),
        (
            [Message.user([Image("photo.png")])],
            r"begins with 'photo.png'. To send a file, use Image.from_path",
        ),
        ([Message.user([File("/etc/passwd")])], "begins with '/etc/passwd'"),
        ([Message.tool([ToolResult("c", [Image("photo.png")])])], "Image.from_path"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "a.png"}]}], "Image.from_path"),
        ("Hi", "must be a list"),
        ({"role": "user", "content": "Hi"}, "must be a list"),
    ],
)
def test_what_is_no_message_is_refused_with_its_reason(given, says):
    with pytest.raises(InvalidMessage, match=says):
        to_messages(given)


def test_the_message_at_fault_is_named():
    with pytest.raises(InvalidMessage, match="Message 1:"):
        to_messages([{"role": "user", "content": "Hi"}, {"role": "robot", "content": "Hi"}])


@pytest.mark.parametrize("given", [None, 7, [], b"Hi"])
def test_input_of_another_kind_is_refused(given):
    with pytest.raises(InvalidMessage):
        to_input(given)
