"""Which known bugs the audit says the faults of the golden logs look like, and which it does not."""

import json
from pathlib import Path

import pytest

from audit.goldens import DIRECTORY, GOLDENS, Golden, unpack
from tracehook import known
from tracehook.audit import known_bugs
from tracehook.audit.rules import check
from tracehook.audit.store import Store
from tracehook.audit.verdict import Filter, judge

# Of all other golden logs the audit names none.
LOOK_LIKE = {
    "registrations-uneven": ["nccl, uneven"],
    "registered-in-vain": ["nccl #1115"],
    "registration-without-effect": ["nccl 2.28, no window"],
    "placement-differs": ["pytorch #190977"],
    "placement-digest-differs": ["pytorch #190977"],
    "window-order": ["nccl 2.30.7, order"],
    "window-order-sizes": ["nccl 2.30.7, order"],
    "deregistered-unknown": ["nccl #2259"],
    "retired-while-registered": ["nccl #1115"],
    "unmapped-while-registered": ["torch_memory_saver #88"],
}


@pytest.mark.parametrize("golden", [pytest.param(golden, id=golden.name) for golden in GOLDENS])
def test_a_fault_looks_like_what_its_conditions_allow(golden: Golden, tmp_path: Path) -> None:
    """The first finding is of a rule that the bug names, and all that the bug depends on is known to be so."""
    with Store(unpack(golden.path, tmp_path)) as store:
        verdict = judge(store, check(store), Filter())
    assert [found.bug.name for found in verdict.known] == LOOK_LIKE.get(golden.name, [])
    assert [one["bug"] for one in verdict.as_json()["looks_like"]] == LOOK_LIKE.get(golden.name, [])
    json.dumps(verdict.as_json())


def test_an_abort_is_seen_by_its_signal(tmp_path: Path) -> None:
    """A bug that ends a process by SIGABRT explains no SIGSEGV, SIGTERM or SIGKILL."""
    with Store(unpack(DIRECTORY / "rank-failed-fault", tmp_path)) as store:
        assert {row["signal"] for row in store.rows("FROM process WHERE signal IS NOT NULL")} == {11, 15}
        assert not known_bugs._facts(store).seen["aborts"]
        store.keep("process", "SELECT * REPLACE (if(signal = 11, 6, signal) AS signal) FROM process")
        assert known_bugs._facts(store).seen["aborts"]
    (bug,) = [one for one in known.those() if one.name == "pytorch #181610"]
    assert bug.seen == {"aborts": True}


def test_settings_with_commas_are_read_back() -> None:
    """The list of adapters is one value."""
    told = "NCCL_GRAPH_REGISTER=0,NCCL_IB_HCA=mlx5_0,mlx5_1,TORCH_NCCL_BLOCKING_WAIT=1"
    read = {"NCCL_GRAPH_REGISTER": "0", "NCCL_IB_HCA": "mlx5_0,mlx5_1", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    assert known_bugs._settings(told) == read
    assert known_bugs._settings("") == {}
    assert known_bugs._settings(None) is None
