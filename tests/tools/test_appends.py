"""The check of a chaos run that sees sessions from outside notices what no list could show."""

import pytest
from chaos.appends import Append, Read, faults

A, B = Append("a", 0, 5), Append("b", 1, 6)
END = Read(("a", "b"), 10, 11)


@pytest.mark.parametrize(
    ("appends", "reads"),
    [
        ([A, B], [END]),
        ([A, Append("b", 1)], [END]),
        ([A, Append("c", 1)], [Read(("a",), 10, 11)]),
        ([A, B], [Read((), 0, 9), END]),
        ([A, B], [Read(("a",), 2, 3), Read((), 2, 3), END]),
        ([B, Append("a", 0)], [END]),
    ],
    ids=["at the end", "unseen end", "never begun", "slow read", "reads at once", "unseen end before"],
)
def test_what_one_list_could_show_is_right(appends, reads):
    assert [*faults(appends, reads)] == []


@pytest.mark.parametrize(
    ("appends", "reads", "says"),
    [
        ([A, B], [Read(("a",), 10, 11)], "turn b had finished, and is lost"),
        ([A, B], [Read(("a", "b", "a"), 10, 11)], "turns stand twice"),
        ([A, B], [Read(("b",), 2, 3), END], "is no beginning of"),
        ([A], [END], r"nobody has submitted \['b'\]"),
        ([A, B], [Read(("a",), 7, 8), END], "no order explains"),
        ([A, B], [Read(("a", "b"), 2, 3), Read(("a",), 4, 5), END], "no order explains"),
        ([Append("a", 7, 8), Append("b", 1, 6)], [END], "no order explains"),
        ([A, Append("b", 4, 6)], [Read(("a", "b"), 2, 3), END], "no order explains"),
    ],
    ids=["lost", "twice", "other order", "invented", "stale", "back in time", "overtaken", "from the future"],
)
def test_what_no_list_could_show_is_noticed(appends, reads, says):
    with pytest.raises(AssertionError, match=says):
        assert not [*faults(appends, reads)]
