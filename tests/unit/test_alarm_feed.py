"""Each process hears each alarm once, in order, whatever dies in between."""

import json
import random

import pytest
import torch.distributed as dist

from tracehook.agreement import alarms
from tracehook.agreement.alarms import COUNT_KEY, MOST_UNWRITTEN, AlarmFeed, put


@pytest.fixture
def store() -> dist.Store:
    """Return a store that a feed can read."""
    return dist.HashStore()


def _put(store: dist.Store, word: str) -> None:
    put(store, json.dumps([word]))


def _heard(feed: AlarmFeed, store: dist.Store) -> list[str]:
    return [json.loads(text)[0] for text in feed.news(store)]


def test_an_alarm_that_is_not_written_yet_is_waited_for(store):
    """Its writer has counted it and comes to write it: those after it wait."""
    feed = AlarmFeed()
    store.add(COUNT_KEY, 1)
    _put(store, "b")
    assert _heard(feed, store) == []
    store.set(f"{COUNT_KEY}/1", json.dumps(["a"]))
    assert _heard(feed, store) == ["a", "b"]


def test_the_list_does_not_grow(store, monkeypatch):
    """Old alarms go, and a process that begins late starts with those that are left."""
    monkeypatch.setattr(alarms, "KEPT", 10)
    early = AlarmFeed()
    for number in range(1000):
        _put(store, str(number))
        assert _heard(early, store) == [str(number)]
    assert store.num_keys() <= 12
    assert _heard(AlarmFeed(), store) == [str(number) for number in range(990, 1000)]
    assert _heard(early, store) == []


class _Failing:
    """A store that fails at some operation, once."""

    def __init__(self, store: dist.Store, step: int) -> None:
        self._store, self._step = store, step

    def __getattr__(self, name: str):
        self._step -= 1
        if self._step == 0:
            raise RuntimeError("the connection is gone")
        return getattr(self._store, name)


@pytest.mark.parametrize("step", range(1, 7))
def test_an_error_of_the_store_loses_nothing(store, step):
    """What was not heard before it is heard after it."""
    for word in "abcde":
        _put(store, word)
    feed, failing, heard = AlarmFeed(), _Failing(store, step), []
    with pytest.raises(RuntimeError):  # noqa: PT012
        for text in feed.news(failing):
            heard.append(json.loads(text)[0])
    assert heard + _heard(feed, store) == list("abcde")


@pytest.mark.parametrize("seed", range(20))
def test_many_processes_hear_all(store, seed):
    """Random writers, of which some die, and random readers, of which some begin late."""
    chance = random.Random(seed)
    feeds: list[tuple[AlarmFeed, list[str]]] = []
    written = []
    for step in range(200):
        match chance.randrange(4):
            case 0:
                _put(store, str(step))
                written.append(str(step))
            case 1 if chance.random() < 0.1:
                store.add(COUNT_KEY, 1)
            case 2 if len(feeds) < 8:
                feeds.append((AlarmFeed(), []))
            case _:
                for feed, heard in feeds:
                    if chance.random() < 0.5:
                        heard += _heard(feed, store)
    for feed, heard in feeds:
        for _ in range(200 * MOST_UNWRITTEN):
            heard += _heard(feed, store)
            if heard == written:
                break
        assert heard == written
