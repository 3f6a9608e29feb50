"""By what the audit knows a known bug; which ones the faults of the golden logs look like: test_golden.py."""

from pathlib import Path

from audit.goldens import DIRECTORY, unpack
from tracehook import known
from tracehook.audit import known_bugs
from tracehook.audit.store import Store


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
