"""Which calls run on registered memory, as the policy ``measured`` answers it from its table."""

from pathlib import Path

import pytest

from tracehook.nccl.effect import PAYING, Threshold
from tracehook.policies import measured
from tracehook.tuning.table import Machine, Point, RegisteredPoint, Row, Table

HERE = Machine("NVIDIA H200", "2.28.9", "2.11.0+cu130", multicast=False)
KIND = Row("send", "bfloat16", graph=False, ranks=2, hosts=1)
FOUND = Threshold(1 << 20, PAYING["send"].captured)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> measured.Measured:
    """Return the policy with a table, in a job of the table's size, on the table's machine."""
    table = Table(
        HERE, rows={KIND: [Point(1024, 10, 5, 2)]}, registered={KIND: [RegisteredPoint(1 << 20, 10, 8, 1.25)]}
    )
    path = tmp_path / "tuned.json"
    path.write_text(table.as_json())
    monkeypatch.setenv("SYMM_REGISTER_TUNED", str(path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(measured, "this_machine", lambda _: HERE)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    return measured.Measured()


@pytest.mark.parametrize(
    ("environment", "answers"),
    [
        ({"WORLD_SIZE": "8"}, False),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}, True),  # of its groups those inside a host may be as the table's
        ({"WORLD_SIZE": ""}, True),
    ],
)
def test_a_job_of_another_size_has_another_table(policy, monkeypatch, capfd, environment, answers):
    """On one host; the launcher says it to all ranks alike. One line says so."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [policy.pays("send") for _ in range(2)] == [FOUND if answers else None] * 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == (0 if answers else 1)
    assert all("made for 2 ranks on 1 host, this is a job of 8 ranks on 1 host: make one here" in line for line in said)


def test_another_machine_has_another_table(policy, monkeypatch, capfd):
    """One line says so."""
    monkeypatch.setattr(measured, "this_machine", lambda _: Machine("NVIDIA H100", *list(vars(HERE).values())[1:]))
    assert policy.pays("send") is None
    assert "made elsewhere (gpu NVIDIA H200, here NVIDIA H100)" in capfd.readouterr().err
