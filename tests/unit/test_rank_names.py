"""How messages name ranks: by their number in the job, with that in the group where it differs."""

from types import SimpleNamespace

import pytest

from tracehook.agreement.rank_names import RankNames, of_group
from tracehook.agreement.store_session import StoreSessions
from tracehook.hook import namer
from tracehook.hook.group_names import GroupName
from tracehook.settings import Settings
from tracehook.symmetric_memory.others import OtherWindows

TP, DP = RankNames("tp_1", (4, 5, 6, 7)), RankNames("dp", (0, 2))


@pytest.mark.parametrize(
    ("group", "ranks", "text"),
    [
        (TP, [0], "rank 4 (0 of tp_1)"),
        (TP, [0, 1], "ranks 4, 5 (0, 1 of tp_1)"),
        (TP, [0, 1, 2, 3], "ranks 4-7 (0-3 of tp_1)"),
        (TP, [1, 3], "ranks 5, 7 (1, 3 of tp_1)"),
        (DP, [0], "rank 0"),  # the first rank of a group may be rank 0 of the job, too
        (DP, [1], "rank 2 (1 of dp)"),
        (DP, [0, 1], "ranks 0, 2 (0, 1 of dp)"),
        (RankNames("odd", (5, 4)), [0, 1], "ranks 5, 4 (0, 1 of odd)"),  # a group may have ranks that do not ascend
    ],
)
def test_ranks_are_those_of_the_job(group: RankNames, ranks: list[int], text: str) -> None:
    """And beside them those of the group, where they differ."""
    assert group.named(ranks) == text


@pytest.mark.parametrize("members", [(0, 1, 2), ()])
def test_where_both_count_alike_only_one_number_is_said(members):
    """So it is for the default group, and for a communicator of which nobody knows the ranks of the job."""
    assert of_group("0", None, 3, members).named([0, 1, 2]) == "ranks 0-2"
    assert of_group("0", None, 3, members).described(3) == "group 0, 3 ranks"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (GroupName("7", "tp_1", (5,)), "communicator 0000000000001234 (group tp_1, rank 5)"),
        (None, "communicator 0000000000001234 (1 ranks)"),
    ],
)
def test_a_communicator_that_is_used_without_its_group_is_named_by_it(monkeypatch, known, text):
    """As by the ranks that use the group, because one of them may write what all raise."""
    monkeypatch.setattr(namer, "known", lambda _: known)
    communicator = SimpleNamespace(id=7, key=0x1234, rank=0, size=1, device=0, dead=False)
    found = OtherWindows(communicator, Settings(), None, StoreSessions(), None)  # type: ignore[arg-type]
    assert found.about == text
    assert found.names.named([0]) == ("rank 5 (0 of tp_1)" if known else "rank 0")
