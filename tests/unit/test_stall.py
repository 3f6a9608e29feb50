"""The watch over registrations that do not come back."""

import threading
import time

import pytest

from tracehook.log.threads import living
from tracehook.symmetric_memory.stall_watch import StallWatch

SHORT = 0.03
LONGER = 0.4  # than any hiccup of a body that does nothing
NEVER = 60.0


@pytest.fixture
def reports():
    """Return what was reported so far, in order."""
    return []


def test_what_takes_too_long_is_reported_once_and_not_early(reports, until):
    """After the limit the subject is reported, and not again however long it lasts."""
    watch = StallWatch(SHORT, reports.append)
    begin = time.monotonic()
    with watch.watching("a"):
        until(lambda: reports)
        assert time.monotonic() - begin >= SHORT
        time.sleep(3 * SHORT)
    assert reports == ["a"]


def test_what_came_back_is_not_reported(reports, until):
    """Only what still runs at its limit is reported, also after others came, went or raised."""
    watch = StallWatch(LONGER, reports.append)
    for _ in range(50):
        with watch.watching("quick"):
            pass
    with pytest.raises(KeyError), watch.watching("raises"):
        raise KeyError
    with watch.watching("slow"):
        until(lambda: reports)
    assert reports == ["slow"]


def test_the_oldest_is_reported_first(reports, until):
    """Of several that are late each is reported, in the order in which they began."""
    watch = StallWatch(5 * SHORT, reports.append)
    with watch.watching("a"), watch.watching("b"), watch.watching("a"), watch.watching("c"):
        until(lambda: len(reports) == 4)
    assert reports == ["a", "b", "a", "c"]


def test_a_later_one_does_not_put_off_an_earlier(reports):
    """What begins meanwhile does not move the limit of what runs already."""
    watch = StallWatch(LONGER, reports.append)
    with watch.watching("first"):
        while not reports:
            with watch.watching("quick"):
                time.sleep(SHORT / 10)
    assert reports[0] == "first"  # a quick one may have been held up


def test_many_threads_are_watched_at_once(reports, until):
    """Every late body of many threads is reported once, and no other."""
    watch = StallWatch(LONGER, reports.append)
    done = threading.Event()

    def body(number):
        with watch.watching(number):
            done.wait(20) if number % 2 else None

    threads = [threading.Thread(target=body, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(reports) >= 20)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert sorted(reports) == list(range(1, 40, 2))


def test_it_is_ready_for_the_next_after_a_pause(reports, until):
    """The thread waits while there is nothing to watch, and notices what begins afterwards."""
    watch = StallWatch(SHORT, reports.append)
    for subject in ("a", "b"):
        with watch.watching(subject):
            until(lambda: subject in reports)  # noqa: B023
        time.sleep(2 * SHORT)
    assert reports == ["a", "b"]


def test_it_costs_no_thread_before_its_first_use(reports):
    """One thread serves all bodies; it begins with the first."""

    def watchers():
        return [thread for thread in living() if thread.name == "tracehook-stall"]

    before = len(watchers())
    watch = StallWatch(NEVER, reports.append)
    assert len(watchers()) == before
    with watch.watching("a"), watch.watching("b"):
        assert len(watchers()) == before + 1
    assert reports == []
