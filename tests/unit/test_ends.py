"""The end of a communicator: what it wakes, what it undoes, and who owns its pointer afterwards."""

KIB = 1024
X, CHILD = 1, 2


def _addresses(count, base=0x100000):
    return [base + 0x10000 * i for i in range(count)]


def test_kill_wakes_a_waiting_free(harness, calls_of, lives, busy_gate, background, until):
    """An abort ends the wait of the allocator while the gate is still held, and no call follows."""
    harness.create(X)
    harness.alloc(0, 0x10000, 4 * KIB)
    with busy_gate(X):
        free = background(harness.free, 0, 0x10000, 4 * KIB)
        until(lambda: not lives(0x10000))
        assert not free.returned()
        harness.kill(X)
        free.result()
    assert calls_of(X) == [("register", 0x10000)]


def test_kill_wakes_a_waiting_collective(harness, busy_gate, background):
    """A collective that waited for the gate of an aborted communicator does not enter it."""
    harness.create(X)
    with busy_gate(X):
        collective = background(harness.collective, X)
        assert not collective.returned()
        harness.kill(X)
        assert collective.result() is False


def test_kill_wakes_a_waiting_retire(harness, calls_of, busy_gate, background, events):
    """The watchdog's abort overtakes a destroy that waits; the communicator ends once, without a call."""
    harness.create(X)
    harness.alloc(0, 0x10000, 4 * KIB)
    with busy_gate(X):
        retire = background(harness.retire, X)
        assert not retire.returned()
        harness.kill(X)
        retire.result()
    assert calls_of(X) == [("register", 0x10000)]
    ends = [row["comm"] for row in events("communicator.retire")], [row["comm"] for row in events("communicator.abort")]
    assert (ends[0].count(f"{X:016x}"), ends[1].count(f"{X:016x}")) == (0, 1)


def test_kill_during_a_batch_waits_for_one_call_and_stops_the_rest(harness, calls_of, background, until):
    """An abort in the middle of many registrations waits for the call under way and makes no other."""
    for address in _addresses(50):
        harness.alloc(0, address, 4 * KIB)
    harness.set_delay_us(10_000)
    create = background(harness.create, X)
    until(lambda: len(calls_of(X)) >= 2)
    harness.kill(X)
    made = len(calls_of(X))
    create.result()
    assert len(calls_of(X)) == made < 50
    assert harness.held(X) == []


def test_a_collective_does_not_enter_a_communicator_that_died_meanwhile(harness, calls_of, background, until):
    """Registering what is queued takes time; if the communicator is aborted in it, the collective is told so."""
    harness.create(X)
    harness.set_in_progress(X, True)
    for address in _addresses(50):
        harness.alloc(0, address, 4 * KIB)
    harness.set_in_progress(X, False)
    harness.set_delay_us(10_000)
    collective = background(harness.collective, X)
    until(lambda: len(calls_of(X)) >= 2)
    harness.kill(X)
    assert collective.result() is False


def test_kill_does_not_wait_for_the_work_of_a_sibling(harness, calls_of, background, until):
    """An abort waits until nobody works on its own communicator, however much there is to do behind the shared gate."""
    harness.create(X)
    harness.create(CHILD, device=1, parent=X)
    harness.alloc(1, 0x10000, 4 * KIB)
    harness.set_delay_us(1_000_000)
    free = background(harness.free, 1, 0x10000, 4 * KIB)
    until(lambda: [segment for segment in harness.segments() if segment.device == 1] == [])
    for address in _addresses(40):
        harness.alloc(0, address, 4 * KIB)
    harness.kill(CHILD)
    behind = len(calls_of(X))
    harness.set_delay_us(0)
    free.result()
    assert behind < 20
    assert len(calls_of(X)) == 40


def test_a_destroy_that_was_overtaken_leaves_the_next_owner_of_the_pointer_alone(
    harness, busy_gate, background, events
):
    """A retire woken by an abort finds the pointer reused already and does not end the new communicator."""
    overtaken = 0
    for _ in range(300):
        harness.create(X)
        with busy_gate(X):
            retire = background(harness.retire, X)
            assert not retire.returned(0.0002)
            harness.kill(X)
            harness.create(X)
            retire.result()
            # A thread that only started now retired the new one, rightly, and said so.
            came_late = bool(events("communicator.retire"))
            assert came_late or X in [row["pointer"] for row in harness.communicators()]
            overtaken += not came_late
        harness.kill(X)
        harness.mark_drained(len(events()))
    assert overtaken > 0
