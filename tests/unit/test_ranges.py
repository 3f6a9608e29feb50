"""What is mapped of expandable segments: ranges that grow, shrink, meet and part, and are never registered."""

from hypothesis import given
from hypothesis import strategies as st

from tracehook._testing import Harness
from tracehook.log import records

PAGE = 2 << 20
FIRST = 64  # address 0 means no address
PAGES = 24
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["map", "unmap"]), st.integers(0, 1), st.integers(FIRST, FIRST + PAGES - 1), st.integers(1, 8)
    ),
    max_size=20,
)
Pages = set[tuple[int, int]]
Steps = list[tuple[str, int, int, int]]


def pages(ranges: list[tuple[int, int, int]]) -> Pages:
    """Return what ranges (device, address, bytes) consist of; they may not meet, for then they would be one."""
    found: Pages = set()
    for device, address, size in ranges:
        mine = {(device, page) for page in range(address // PAGE, (address + size) // PAGE)}
        around = {(device, address // PAGE - 1), (device, (address + size) // PAGE)}
        assert mine
        assert not (mine | around) & found
        found |= mine
    return found


def play(harness: Harness, steps: Steps) -> Pages:
    """Make the steps; return the pages that are mapped then."""
    expected: Pages = set()
    for verb, device, first, count in steps:
        getattr(harness, verb)(device, first * PAGE, count * PAGE)
        touched = {(device, page) for page in range(first, first + count)}
        expected = expected | touched if verb == "map" else expected - touched
    return expected


@given(STEPS)
def test_ranges_are_what_was_mapped_and_not_unmapped(steps):
    """Whatever is mapped and unmapped, in parts, twice or in the middle: what is left is known, in whole ranges."""
    harness = Harness()
    expected = play(harness, steps)
    assert pages(harness.ranges()) == expected


@given(
    STEPS,
    STEPS,
    st.lists(st.tuples(st.integers(0, 1), st.integers(FIRST, FIRST + PAGES - 1), st.integers(1, 8)), max_size=5),
)
def test_a_snapshot_brings_nothing_back(before, since, snapshot):
    """What a snapshot shows is adopted, but for what was unmapped since the tracker came; that is gone."""
    harness = Harness()
    expected = play(harness, before)
    harness.begin_adoption()
    gone: Pages = set()
    for step in since:
        verb, device, first, count = step
        play(harness, [step])
        touched = {(device, page) for page in range(first, first + count)}
        expected = expected | touched if verb == "map" else expected - touched
        gone |= touched if verb == "unmap" else set()
    for device, first, count in snapshot:
        harness.adopt_range(device, first * PAGE, count * PAGE)
        expected |= {(device, page) for page in range(first, first + count)} - gone
    harness.end_adoption()
    assert pages(harness.ranges()) == expected


@given(STEPS)
def test_the_log_tells_the_ranges(steps):
    """Who reads the log has the ranges of each device as the process had them."""
    harness = Harness()
    play(harness, steps)
    read: Pages = set()
    total = 0
    for record in records.unpack(harness.peek(1000)):
        name, fields = records.fields_of(record)
        told = pages([(fields["device"], int(fields["addr"], 16), fields["size"])])
        read = read | told if name == "range.map" else read - told
        total = fields["total"]
    assert read == pages(harness.ranges())
    assert total == sum(size for _, _, size in harness.ranges())


def test_what_a_snapshot_adds_is_said_to_be_adopted(harness, events):
    """Of a range that is known in part, only the rest is logged, as adopted."""
    harness.begin_adoption()
    harness.map(0, 16 * PAGE, 2 * PAGE)
    harness.map(0, 19 * PAGE, PAGE)
    harness.adopt_range(0, 15 * PAGE, 6 * PAGE)
    harness.end_adoption()
    told = [
        (event["addr"], event["size"], event["total"], event.get("adopted", False)) for event in events("range.map")
    ]
    assert told == [
        (hex(16 * PAGE), 2 * PAGE, 2 * PAGE, False),
        (hex(19 * PAGE), PAGE, 3 * PAGE, False),
        (hex(15 * PAGE), PAGE, 4 * PAGE, True),
        (hex(18 * PAGE), PAGE, 5 * PAGE, True),
        (hex(20 * PAGE), PAGE, 6 * PAGE, True),
    ]


def test_a_communicator_gets_no_range(harness, calls_of):
    """Neither a communicator that is there nor one that comes is given what is mapped of an expandable segment."""
    harness.create(1)
    harness.map(0, 0x10000000, PAGE)
    harness.create(2)
    assert (calls_of(1), calls_of(2)) == ([], [])
