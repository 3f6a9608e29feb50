"""From how many bytes on a call runs on registered memory, as a table says it."""

from pathlib import Path

import pytest

from tracehook.nccl.effect import PAYING, Threshold
from tracehook.tuning.table import Machine, Point, RegisteredPoint, Row, Table, TableError, load
from tracehook.tuning.thresholds import threshold, thresholds

MACHINE = Machine("NVIDIA H200", "2.28.9", "2.11.0+cu130", multicast=False)
KIND = Row("all_gather", "bfloat16", graph=False, ranks=2, hosts=1)


def table(*rows: tuple[Row, list[float]], margin: float = 0.005) -> Table:
    """Return a table with these gains at 1, 2, 4, ... MiB."""
    made = Table(MACHINE, margin, {KIND._replace(operation="all_reduce"): [Point(1024, 10, 5, 2)]})
    for kind, gains in rows:
        made.registered[kind] = [
            RegisteredPoint(1 << 20 + at, 10.0, 10.0 / gain, gain) for at, gain in enumerate(gains)
        ]
    return made


@pytest.mark.parametrize(
    ("gains", "mib"),
    [
        ([0.9, 1.1, 1.2, 1.3], 2),
        ([1.1, 1.1, 1.2, 1.3], 1),
        ([1.1, 0.9, 1.2, 1.3], 4),  # what gains below a size that loses does not count
        ([0.9, 1.0, 1.004, 1.3], 8),  # as much as the margin is no gain
        ([1.1, 1.2, 1.3, 0.99], None),
        ([0.9, 0.9, 0.9, 1.0], None),
    ],
)
def test_a_call_gains_from_the_size_on_at_which_all_larger_ones_do(gains: list[float], mib: int | None) -> None:
    """Where the largest measured size gains nothing, no size does."""
    limit = mib << 20 if mib is not None else None
    found = threshold(table((KIND, gains), (KIND._replace(graph=True), [1.5])), "all_gather")
    assert found == Threshold(limit, 1 << 20)


def test_a_way_of_calling_without_times_keeps_the_default() -> None:
    """And an operation without times has no answer."""
    made = table((KIND._replace(graph=True), [1.5]))
    assert threshold(made, "all_gather") == Threshold(PAYING["all_gather"].eager, 1 << 20)
    assert threshold(made, "send") is None
    assert threshold(made, "all_reduce") is None
    assert thresholds(made) == {"all_gather": threshold(made, "all_gather")}


def test_one_size_has_to_be_right_for_all_groups_and_types() -> None:
    """The largest; never, if one of them never gains."""
    more = (KIND._replace(ranks=4), [0.9, 0.9, 1.2])
    assert threshold(table((KIND, [1.2, 1.2, 1.2]), more), "all_gather") == Threshold(
        4 << 20, PAYING["all_gather"].captured
    )
    never = (KIND._replace(dtype="float32"), [0.9])
    assert threshold(table((KIND, [1.2]), never), "all_gather") == Threshold(None, PAYING["all_gather"].captured)


def test_a_table_is_read_with_and_without_registered_rows(tmp_path: Path) -> None:
    """Without, it has the text and the digest that it always had; a damaged row is as any other one."""
    path = tmp_path / "tuned.json"
    for made in (table((KIND, [1.1, 1.2])), table()):
        path.write_text(made.as_json())
        assert load(path) == made
        assert load(path).digest == made.digest
        assert ("registered" in made.as_json()) is bool(made.registered)
    assert table().digest == "ebfaaabd4a9e3a77"
    assert table().digest != table((KIND, [1.1])).digest
    path.write_text(table((KIND, [1.25])).as_json().replace('"registered_us": 8.0', '"registered_us": 0'))
    with pytest.raises(TableError, match="damaged"):
        load(path)
