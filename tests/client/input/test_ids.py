"""Ids: what may be one, and what can be read from one."""

import pytest

from antiphon.errors import InvalidId
from antiphon.input.ids import cell_hash, new_session_id, new_turn_id, session_id, turn_id, turn_id_of_key


@pytest.mark.parametrize("good", ["a", "user-123", 'ünï:cödé "quoted" \\ {braces}', "x" * 200])
def test_a_session_id_is_any_text_within_200_bytes(good):
    assert session_id(good) == good


@pytest.mark.parametrize(
    "bad", ["", "x" * 201, "ü" * 101, "a\nb", "a\x00b", "a\x7fb", "\ud800", 7, None, b"a"]
)
def test_what_cannot_be_a_session_id_is_refused_in_one_sentence(bad):
    with pytest.raises(InvalidId) as caught:
        session_id(bad)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("bad", ["", "a b", "a:b", "ä", "x" * 65, "a/b", 5])
def test_what_rq_breaks_on_is_no_turn_id(bad):
    with pytest.raises(InvalidId):
        turn_id(bad)


def test_a_new_turn_id_is_valid_unique_and_begins_with_the_hash_of_its_session():
    made = {new_turn_id("root") for _ in range(100)}
    assert len(made) == 100
    assert all(turn_id(one)[:10] == cell_hash("root") for one in made)
    assert session_id(new_session_id())


def test_a_key_leads_to_the_same_turn_in_its_session_and_to_another_elsewhere():
    assert turn_id_of_key("s", "k") == turn_id_of_key("s", "k")
    assert turn_id_of_key("s", "k") != turn_id_of_key("t", "k")
    assert turn_id_of_key("a", "b:c") != turn_id_of_key("a:b", "c")
    assert turn_id(turn_id_of_key("s", "k"))


def test_a_key_leads_to_another_turn_under_another_prefix_but_the_default_stays():
    assert turn_id_of_key("s", "k") == "043a718774kcf624a62f5359e8012f7392b9a1ed87"
    made = [("s", "k", prefix) for prefix in ("", "a", "b", "ab")]
    made += [("a", "1:s:k", ""), ("s", "k|", "a|1"), ("s", "1:s:k", "a")]
    ids = {turn_id_of_key(*one) for one in made}
    assert len(ids) == len(made)
    assert all(turn_id(one) for one in ids)
