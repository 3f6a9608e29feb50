"""Which group of torch stands behind a communicator: found without asking torch for it, and not if there is a doubt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tracehook.hook import group_names, namer
from tracehook.hook.namer import Namer

PAIR = [4, 5]


class _Group:
    """A process group of torch, with the communicator that its backend gives."""

    def __init__(self, name: str, desc: str, rank: int, members: list[int], pointer: int = 0) -> None:
        self.group_name, self.group_desc, self._rank = name, desc, rank
        self.members = members
        self.is_made = True  # torch enters a group's ranks after it has made its communicator
        self.pointer = pointer
        self.asked = 0
        self.bound_device_id: Any = SimpleNamespace(index=0)

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return len(self.members)

    def _get_backend(self, _: object) -> _Group:
        return self

    def _comm_ptr(self) -> int:
        self.asked += 1
        return self.pointer


class _Torch:
    """What the namer looks at in torch and in the native core."""

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.rows: list[dict[str, int | bool]] = []
        self.now = 100.0
        self.namer = Namer(self, has_rank=True, clock=lambda: self.now)

    def add(self, *args: Any) -> _Group:
        self.groups.append(_Group(*args))
        return self.groups[-1]

    def birth(self, number: int, rank: int, size: int, ready: bool = True) -> int:
        """Make a communicator; return its pointer."""
        pointer = 0x1000 * number
        row = {"id": number, "pointer": pointer, "rank": rank, "size": size, "device": 0, "ready": ready}
        self.rows.append(row)
        fields = {"comm": f"{number:016x}", "comm_id": number, "comm_rank": rank, "ranks": size, "device": 0}
        self.namer.hear("communicator.pending", fields)
        if ready:
            self.namer.hear("communicator.ready", fields)
        return pointer

    def end(self, number: int, how: str = "abort") -> None:
        self.rows = [row for row in self.rows if row["id"] != number]
        self.namer.hear(f"communicator.{how}", {"comm_id": number})

    def look(self, later: float = 0.0, asked: bool = False) -> list[tuple[str, dict[str, Any]]]:
        self.now += later
        return list(self.namer.look(asked))

    # --- the native core ---

    def communicators(self) -> list[dict[str, int | bool]]:
        return self.rows

    def find_communicator(self, pointer: int) -> Any:
        found = [row["id"] for row in self.rows if row["pointer"] == pointer]
        return SimpleNamespace(id=found[0], dead=False) if found else None


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> _Torch:
    """Return a torch of which the test makes the groups."""
    made = _Torch()

    class World:
        """torch's tables of groups."""

        @property
        def pg_map(self) -> dict[_Group, tuple[str, None]]:
            return dict.fromkeys(made.groups, ("cpu:gloo,cuda:nccl", None))

        @property
        def pg_group_ranks(self) -> dict[_Group, dict[int, int]]:
            return {
                group: {rank: place for place, rank in enumerate(group.members)}
                for group in made.groups
                if group.is_made
            }

    no_group = SimpleNamespace(WORLD=None)
    c10d = SimpleNamespace(_world=World(), GroupMember=no_group)
    monkeypatch.setattr(group_names, "_c10d", lambda: c10d)
    return made


def test_whoever_asks_does_not_wait_for_the_next_try(torch):
    """A look between the birth of a communicator and the entry of its group finds none; asking uses up no try."""
    pointer = torch.birth(1, rank=1, size=2)
    assert [torch.look() for _ in range(2)] == [[], []]
    assert [torch.look(asked=True) for _ in range(2 * namer.MOST_TRIES)] == [[]] * 2 * namer.MOST_TRIES
    torch.add("7", "mesh_tp", 1, PAIR, pointer)
    assert torch.look() == []
    assert len(torch.look(asked=True)) == 1


def test_a_communicator_that_leaves_ranks_of_its_group_out_is_told(torch, capsys):
    """Ranks that make their groups in another order each get a part of the communicator. Each group has one."""
    torch.add("0", "default_pg", 1, [0, 1, 2], torch.birth(1, rank=1, size=3))
    torch.add("1", "", 1, [0, 1, 2], torch.birth(2, rank=0, size=1))
    torch.add("2", "", 1, [0, 1], torch.birth(3, rank=0, size=1))
    assert [(fields["comm_id"], fields["group"]) for _, fields in torch.look()] == [(1, "0"), (2, "1"), (3, "2")]
    told = capsys.readouterr().err
    assert "group 1 (ranks 0-2) has a communicator of 1 rank: the ranks did not call new_group in one order" in told
    assert told.count("call new_group on all ranks of the job") == 2


@pytest.mark.parametrize("size", [1, 2])
def test_a_communicator_that_torch_did_not_make_leaves_no_rank_out(torch, size):
    """It may live while torch makes a group that has no communicator yet, or none at once: no line, no wrong name."""
    torch.add("0", "default_pg", 1, [0, 1, 2], torch.birth(1, rank=1, size=3))
    torch.birth(2, rank=0, size=size)
    torch.add("1", "", 0, [1, 2, 3, 4]).is_made = False
    assert [fields["comm_id"] for _, fields in torch.look()] == [1]
    torch.groups[-1].is_made, torch.groups[-1].bound_device_id = True, None
    assert torch.look(1.0) == []


@pytest.mark.parametrize("text", ["undefined", "default_pg", "default_pg:split:0", "undefined:split:3", ""])
def test_text_of_torch_is_no_description(torch, text):
    """A program that gave no description has none."""
    torch.add("7", text, 1, PAIR, torch.birth(1, rank=1, size=2))
    ((_, fields),) = torch.look()
    assert fields["desc"] is None


def test_torch_is_never_asked_for_a_communicator(torch):
    """To ask takes a mutex of torch with the GIL held. Looking ends: a communicator of ctypes never gets a group."""
    group = torch.add("7", "tp", 1, PAIR, torch.birth(1, rank=1, size=2))
    for _ in range(100):
        torch.look(1.0)
    assert group.asked == 0
    assert namer.known(1) is not None
    torch.birth(2, rank=0, size=3)
    for _ in range(1000):
        torch.look(1.0)
    assert torch.namer._unnamed == {}


@pytest.mark.parametrize(("is_bound", "named"), [(True, ["tp", "cp"]), (False, [])], ids=["at once", "at first use"])
def test_groups_alike_are_named_if_their_communicators_are_made_in_one_order(torch, is_bound, named):
    """Those that are bound to a device make theirs at once; others wait for their first collective."""
    for number, name in enumerate(("tp", "cp"), start=1):
        group = torch.add(str(number), name, 1, PAIR, torch.birth(number, rank=1, size=2))
        group.bound_device_id = group.bound_device_id if is_bound else None
    assert [fields["desc"] for _, fields in torch.look()] == named
    assert torch.look(100.0) == []


def test_a_communicator_of_somebody_else_beside_that_of_a_group_leaves_both_without_a_name(torch):
    """A server makes its own communicators, with as many ranks."""
    torch.add("7", "tp", 1, PAIR, torch.birth(1, rank=1, size=2))
    torch.birth(2, rank=1, size=2)
    assert torch.look() == []


@pytest.mark.parametrize("how", ["abort", "retire"])
def test_a_name_ends_with_its_communicator(torch, how):
    """What torch makes for the group later may be anybody's."""
    torch.add("7", "tp", 1, PAIR, torch.birth(1, rank=1, size=2))
    assert len(torch.look()) == 1
    torch.end(1, how)
    assert namer.known(1) is None
    torch.birth(2, rank=1, size=2)
    assert torch.look(1.0) == []


def test_a_failure_ends_the_looking_with_one_line(torch, capsys):
    """The job goes on, and its log has no more names."""
    group = torch.add("7", "tp", 1, PAIR)
    group.size = None
    torch.birth(1, rank=1, size=2)
    assert torch.look() == torch.look(100.0) == []
    assert capsys.readouterr().err.count("\n") == 1


def test_a_program_that_never_imports_torch_distributed(torch, monkeypatch):
    """Looking does not import it."""
    monkeypatch.setattr(group_names, "_c10d", lambda: sys.modules.get("no.such.module"))
    torch.birth(1, rank=1, size=2)
    assert torch.look() == []


# --- the rank of a process whose launcher said none ---


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int] | None], None]:
    """Say what the default group tells of this process."""
    return lambda place: monkeypatch.setattr(group_names, "own_place", lambda: place)


def test_a_worker_of_mp_spawn_gets_its_rank_with_the_first_group(places):
    """It is logged once. A process with a rank keeps it: what the launcher says holds."""
    now = [0.0]
    namer_ = Namer(None, has_rank=False, clock=lambda: now[0])
    places(None)
    assert list(namer_.look()) == []
    places((3, 8))
    now[0] += 10.0
    assert list(namer_.look()) == [("rank.known", {"rank": 3, "world_size": 8})]
    now[0] += 10.0
    assert list(namer_.look()) == []
    places((3, 8))
    assert list(Namer(None, has_rank=True).look()) == []


def test_a_group_that_lives_less_than_a_second_tells_the_rank(places):
    """A communicator shows that there is a group, so the next look comes at once."""
    namer_ = Namer(None, has_rank=False, clock=lambda: 0.0)
    places(None)
    assert list(namer_.look()) == []
    places((3, 8))
    namer_.hear("communicator.pending", {"comm": "1", "comm_id": 1})
    namer_.hear("communicator.retire", {"comm_id": 1})
    assert list(namer_.look()) == [("rank.known", {"rank": 3, "world_size": 8})]


@pytest.mark.parametrize("tells", [True, False])
def test_a_group_that_torch_is_still_making_is_named_when_its_ranks_are_known(torch, tells):
    """A log that named it earlier would never tell its ranks. If torch never tells them, the name alone has to do."""
    group = torch.add("1", "tp_1", 0, PAIR)
    group.is_made = False
    torch.birth(1, 0, 2)
    assert torch.look() == []
    group.is_made = tells
    found = torch.look() if tells else [line for _ in range(namer.MOST_TRIES) for line in torch.look(later=60.0)]
    ((_, fields),) = found
    assert (fields["desc"], fields["members"]) == ("tp_1", PAIR if tells else [])
