"""Files of a session: stored once, named by their ids in messages, and loaded for the model alone."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from antiphon import Message, Session
from antiphon.errors import InvalidMessage, LimitReached, NotFound, UsageError
from antiphon.input.limits import LIMITS
from antiphon.model import File, Image, Item, Text, ToolResult
from antiphon.redis.files import MOST_INLINE
from antiphon.testing import script, tool_call

PHOTO = bytes(range(256)) * 3000  # three chunks
ENCODED = b64encode(PHOTO).decode()
ID = hashlib.sha256(PHOTO).hexdigest()


def sent(lines, number=-1):
    """What the model has received of images and files in a request."""
    found = []
    for message in lines.requests[number].messages:
        for part in message.parts:
            inner = (
                part.content if isinstance(part, ToolResult) and isinstance(part.content, list) else [part]
            )
            found += [one for one in inner if not isinstance(one, Text)]
    return [one for one in found if isinstance(one, Image | File)]


def stored(session):
    return [(one.id, one.size, one.name) for one in session.stored_files()]


def test_a_large_image_is_stored_and_the_model_receives_it(runtime):
    runtime.use(lines := script("A cat.", "Still a cat."))
    session = runtime.agent().session("s")
    session.run(["What is this?", Image(data=ENCODED, media_type="image/png", detail="low")])
    assert session.messages[0].parts[1] == Image(media_type="image/png", detail="low", id=ID)
    session.run("And now?")
    for number in (0, 1):
        assert sent(lines, number) == [Image(data=ENCODED, media_type="image/png", detail="low", id=ID)]
    assert stored(session) == [(ID, len(PHOTO), None)]
    assert session.read_file(session.messages[0].parts[1]).data == PHOTO


def test_a_small_image_and_one_at_a_url_stay_where_they_are(runtime):
    runtime.use(script("A dot.", "Two."))
    small = Image(data="A" * MOST_INLINE, media_type="image/png")
    session = runtime.agent().session("s")
    session.run([small, Image(url="https://example.com/a.png")])
    assert session.messages[0].parts == [small, Image(url="https://example.com/a.png")]
    assert stored(session) == []


def test_a_data_url_is_stored_like_data(runtime):
    runtime.use(lines := script("A cat."))
    session = runtime.agent().session("s")
    url = f"data:image/webp;base64,{ENCODED}"
    session.run([{"type": "image_url", "image_url": {"url": url}}])
    assert session.messages[0].parts == [Image(media_type="image/webp", id=ID)]
    assert sent(lines) == [Image(data=ENCODED, media_type="image/webp", id=ID)]


def test_the_same_file_is_stored_once(runtime):
    runtime.use(script(*["Yes."] * 4))
    session = runtime.agent().session("s")
    for _ in range(3):
        session.run([Image(data=ENCODED, media_type="image/png")] * 2)
    session.add_file(PHOTO, name="cat.png")
    assert [one[:2] for one in stored(session)] == [(ID, len(PHOTO))]


def test_a_file_is_added_by_its_content_its_path_or_its_part(runtime, tmp_path):
    runtime.use(lines := script("Read."))
    session = runtime.agent().session("s")
    (tmp_path / "plan.pdf").write_bytes(b"%PDF")
    plan = session.add_file(tmp_path / "plan.pdf")
    photo = session.add_file(PHOTO, name="cat.jpeg")
    note = session.add_file(File.from_path(tmp_path / "plan.pdf"), name="note.txt")
    assert (plan.media_type, photo.media_type, note.media_type) == (
        "application/pdf", "image/jpeg", "application/pdf",
    )  # fmt: skip
    assert sorted(session.files) == ["cat.jpeg", "note.txt", "plan.pdf"]
    session.run(["Read:", plan, session.files["cat.jpeg"], File(id=plan.id)])
    data = b64encode(b"%PDF").decode()
    assert sent(lines) == [
        File(data=data, media_type="application/pdf", name="plan.pdf", id=plan.id),
        Image(data=ENCODED, media_type="image/jpeg"),
        File(data=data, media_type="application/pdf", id=plan.id),
    ]


def test_an_empty_file_can_be_stored(runtime):
    session = runtime.agent().session("s")
    empty = session.add_file(b"", name="empty.txt")
    assert session.read_file(empty.id).data == b""


def test_a_removed_file_becomes_a_sentence(runtime):
    runtime.use(lines := script("A plan.", "I cannot see it."))
    session = runtime.agent().session("s")
    plan = session.add_file(b"%PDF", name="plan.pdf")
    session.run(["Read:", plan])
    assert session.remove_file(plan)
    assert session.files == {}
    assert not session.remove_file(plan.id)
    session.run("Again?")
    assert lines.requests[-1].messages[0].parts[1] == Text("[plan.pdf is no longer available.]")
    with pytest.raises(NotFound, match="does not store this file"):
        session.read_file(plan)


def test_what_a_tool_returns_is_stored(runtime):
    def draw() -> Image:
        """Draw a cat."""
        return Image(data=ENCODED, media_type="image/png")

    runtime.use(lines := script(tool_call("draw"), "Here it is."))
    session = runtime.agent(tools=[draw]).session("s")
    session.run("Draw a cat")
    [result] = session.messages[2].tool_results
    assert result.content == [Image(media_type="image/png", id=ID)]
    assert sent(lines) == [Image(data=ENCODED, media_type="image/png", id=ID)]


def test_messages_that_are_added_or_that_a_session_begins_with_are_stored(runtime):
    photo = Image(data=ENCODED, media_type="image/png")
    session = runtime.agent().session("s", messages=[Message.user([photo])])
    session.add_message(Message.user([Text("Another:"), photo]))
    assert [one.parts[-1] for one in session.messages] == [Image(media_type="image/png", id=ID)] * 2
    assert len(stored(session)) == 1


def test_a_saved_session_takes_its_files_along(runtime):
    runtime.use(script("A cat."))
    session = runtime.agent().session("s")
    session.run([Image(data=ENCODED, media_type="image/png")])
    saved = session.to_dict()
    assert saved["media"] == [{"id": ID, "size": len(PHOTO), "media_type": "image/png", "data": ENCODED}]
    restored = Session.from_dict({**saved, "session_id": "t"}, runtime.agent())
    assert restored.messages[0].parts == [Image(media_type="image/png", id=ID)]
    assert restored.read_file(ID).data == PHOTO


def test_a_fork_has_files_of_its_own(runtime):
    runtime.use(script("A cat.", "A cat."))
    session = runtime.agent().session("s")
    session.run([Image(data=ENCODED, media_type="image/png")])
    fork = session.fork("t")
    session.delete()
    assert fork.read_file(ID).data == PHOTO
    fork.add_file(b"more", name="more.txt")
    assert len(stored(fork)) == 2


def test_files_end_with_their_session(runtime):
    session = runtime.agent().session("s")
    session.add_file(PHOTO, name="cat.png")
    assert session.delete()
    again = runtime.agent().session("s")
    assert stored(again) == []
    with pytest.raises(NotFound):
        again.read_file(ID)


def test_an_id_opens_no_file_of_another_session(runtime):
    runtime.use(lines := script("I see none."))
    runtime.agent().session("s").add_file(PHOTO, name="cat.png")
    other = runtime.agent().session("t")
    other.run(["What is this?", File(id=ID)])
    assert sent(lines) == []


def test_a_closed_session_takes_no_file(runtime):
    session = runtime.agent().session("s")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.add_file(PHOTO, name="cat.png")


def test_a_file_of_a_closed_session_can_be_removed(runtime):
    session = runtime.agent().session("s")
    photo = session.add_file(PHOTO, name="cat.png")
    session.close()
    assert session.remove_file(photo)
    assert stored(session) == []


def test_files_have_limits(runtime, monkeypatch):
    session = runtime.agent().session("s")
    with pytest.raises(LimitReached, match="file_bytes"):
        session.add_file(b"0" * (LIMITS.file_bytes + 1))
    limits = type(LIMITS)(session_files=2, session_file_bytes=10)
    monkeypatch.setattr("antiphon.wire.files.LIMITS", limits)
    monkeypatch.setattr("antiphon.wire.errors.LIMITS", limits)
    session.add_file(b"1234")
    with pytest.raises(LimitReached, match="10 bytes together"):
        session.add_file(b"1234567")
    session.add_file(b"5678")
    session.add_file(b"1234")  # it is there
    with pytest.raises(LimitReached, match="2 files already"):
        session.add_file(b"9")
    session.remove_file(hashlib.sha256(b"5678").hexdigest())
    session.add_file(b"9")


def test_what_is_no_file_is_refused(runtime):
    session = runtime.agent().session("s")
    with pytest.raises(UsageError, match="bytes, a path, a File or an Image, not int"):
        session.add_file(7)
    with pytest.raises(UsageError, match="not valid base64"):
        session.add_file(File(data="AAA", name="a.pdf"))
    with pytest.raises(UsageError, match="not stored"):
        session.read_file(File(url="https://example.com/a.pdf"))
    with pytest.raises(InvalidMessage, match="64 hexadecimal digits"):
        session.run([File(id="../../etc/passwd")])


def test_what_a_model_generates_is_stored_and_sent_back_as_it_came(runtime):
    drawn = Item(
        "scripted", {"type": "image_generation_call", "result": ENCODED, "output_format": "png", "n": 1}
    )
    runtime.use(lines := script([drawn, "A cat."], "Thank you.", "Where is it?"))
    session = runtime.agent().session("s")
    with session.stream("Draw a cat") as events:
        [item] = [one.item for one in events if one.type == "item"]
    kept = {**drawn.item, "result": f"antiphon:file:{ID}"}
    assert item == kept
    assert session.messages[1].parts[0].item == kept
    assert session.read_file(ID).data == PHOTO
    assert session.stored_files()[0].media_type == "image/png"
    session.run("Nice")
    assert lines.requests[1].messages[1].parts[0] == drawn
    session.remove_file(ID)
    session.run("And again?")
    assert lines.requests[2].messages[1].parts[0].item["result"] is None


def test_other_text_of_an_item_stays(runtime):
    long = {
        "type": "search",
        "text": "word " * 10_000,
        "url": "A" * 20_001,
        "more": [{"n": None, "x": "a" * 4}],
    }
    runtime.use(script([Item("scripted", long), "Found."]))
    session = runtime.agent().session("s")
    session.run("Search")
    assert session.messages[1].parts[0].item == long
    assert stored(session) == []


@pytest.mark.parametrize("end", ["nothing", ID, f"={ID}", f"=={ID}", ID[:-1]])
def test_text_of_a_service_that_looks_like_an_id_stays_text(runtime, end):
    """Also if the session stores such a file, and when the messages are loaded."""
    said = Item("scripted", {"type": "search", "text": f"antiphon:file:{end}", "found": [{"n": 1}]})
    runtime.use(lines := script([said, "Found."], "And here."))
    session = runtime.agent().session("s")
    if end == ID:
        session.add_file(PHOTO, name="photo.png")
    session.run("Search")
    session.run("Again")
    assert lines.requests[1].messages[1].parts[0] == said
    assert session.load_files(session.messages)[1].parts[0] == said


def test_an_answer_that_has_no_room_stays_in_its_message(runtime, monkeypatch):
    limits = type(LIMITS)(session_files=0)
    monkeypatch.setattr("antiphon.wire.files.LIMITS", limits)
    monkeypatch.setattr("antiphon.wire.errors.LIMITS", limits)
    drawn = Item("scripted", {"type": "image_generation_call", "result": ENCODED})
    runtime.use(script([drawn, "A cat."]))
    session = runtime.agent().session("s")
    session.run("Draw a cat")
    assert session.messages[1].parts[0] == drawn


def test_messages_are_loaded_with_their_files(runtime):
    runtime.use(script("A cat."))
    session = runtime.agent().session("s")
    session.run(["What is this?", Image(data=ENCODED, media_type="image/png")])
    kept = session.messages
    assert session.load_files(kept)[0].parts[1] == Image(data=ENCODED, media_type="image/png", id=ID)
    assert kept[0].parts[1].data is None
    session.remove_file(ID)
    assert session.load_files(kept)[0].parts[1] == Text("[An image is no longer available.]")


@pytest.mark.parametrize("end", [":0", "~", ":0:0"])
def test_an_id_is_of_a_file_and_not_of_its_parts(runtime, end):
    session = runtime.agent().session("s")
    session.add_file(PHOTO, media_type="image/png")
    assert not session.remove_file(f"{ID}{end}")
    with pytest.raises(NotFound):
        session.read_file(f"{ID}{end}")
    assert session.read_file(ID).data == PHOTO


def test_a_file_that_is_named_again_and_again_does_not_fill_the_memory(runtime, monkeypatch):
    monkeypatch.setattr("antiphon.input.limits.LIMITS", type(LIMITS)(session_file_bytes=3 * len(PHOTO)))
    runtime.use(lines := script("A cat.", "Three cats."))
    session = runtime.agent().session("s")
    photo = session.add_file(PHOTO, media_type="image/png")
    session.run([photo])
    with pytest.raises(LimitReached, match="session_file_bytes"):
        session.run([photo] * 3)
    session.run([photo] * 2)
    assert len(sent(lines)) == 3
