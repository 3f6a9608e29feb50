"""How readers of logs name communicators and their ranks: by the group, and by the ranks of the job."""

import json
from typing import Any

import pytest

from tracehook.audit.group import NamedGroup, group_in, groups_of
from tracehook.audit.live_process import Process
from tracehook.audit.summary import summarise
from tracehook.commands.watch_table import alert
from tracehook.log.reader import ProcessLog, read_process

KEY = "43875d59c706ba92"
NAMED = {"event": "communicator.group", "t_ns": 1, "comm": KEY, "comm_id": 1, "group": "3", "desc": "tp_1"}
MISSED = {"event": "agreement.timeout", "seq": 1, "t_ns": 2, "comm": KEY, "comm_id": 1, "missing_rank": 1}


def _alert(*events: dict[str, Any]) -> str:
    process = Process({"rank": 4, "pid": 7}, 0.0, 0.0)
    process.take([json.dumps(event).encode() for event in events], 0.0)
    return alert(process)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([4, 5], f"rank 4: Rank 5 (1 of tp_1) of communicator {KEY} (group tp_1; ranks 4, 5) missed an agreement"),
        ([0, 1], f"rank 4: Rank 1 of communicator {KEY} (group tp_1; ranks 0, 1) missed an agreement"),
        ([], f"rank 4: Rank 1 of communicator {KEY} (group tp_1) missed an agreement"),
        (
            list(range(1, 11)),
            f"rank 4: Rank 2 (1 of tp_1) of communicator {KEY} (group tp_1; ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more) "
            "missed an agreement",
        ),
    ],
)
def test_watch_names_the_group_and_the_ranks_of_the_job(members, text):
    """Of the latest event that somebody should look at; without a group the communicator keeps its key."""
    assert _alert(NAMED | {"members": members}, MISSED) == text
    assert _alert(MISSED) == f"rank 4: Rank 1 of communicator {KEY} missed an agreement"


def test_a_group_without_a_description_has_the_name_that_torch_gave_it():
    """Such as 3."""
    assert str(group_in(NAMED | {"desc": None, "members": [4, 5]})) == "3 (ranks 4, 5)"


@pytest.mark.parametrize("members", ["4, 5", [4, "5"], [4, -1], None, [[4]]])
def test_members_of_a_damaged_line_are_not_known(members):
    """The name is."""
    assert group_in(NAMED | {"members": members}) == NamedGroup("tp_1", ())


def test_a_group_is_listed_once(tmp_path):
    """All of its ranks name it."""
    logs = [ProcessLog(tmp_path, {"rank": rank}, [NAMED | {"members": [4, 5]}]) for rank in (4, 5)]
    assert [str(group) for group in groups_of(logs)] == ["tp_1 (ranks 4, 5)"]


@pytest.mark.parametrize(("told", "rank"), [(None, 3), (1, 1)])
def test_the_rank_of_the_first_group_counts_where_the_launcher_said_none(tmp_path, told, rank):
    """The reader and the summary use it."""
    log = tmp_path / "job.rank-.host.7.jsonl"
    begin = f'{{"event":"trace.begin","schema":"1.12","t_ns":1,"rank":{"null" if told is None else told},"pid":7}}'
    log.write_text(f'{begin}\n{{"event":"rank.known","t_ns":2,"rank":3,"world_size":8}}\n')
    read = read_process(log)
    assert read.rank == rank
    assert summarise(read).rank == rank


def test_watch_shows_the_rank_of_the_first_group():
    """As soon as it is logged."""
    process = Process({"rank": None, "pid": 7}, 0.0, 0.0)
    process.take([b'{"event":"rank.known","t_ns":2,"rank":3,"world_size":8}'], 0.0)
    assert process.summary.rank == 3
