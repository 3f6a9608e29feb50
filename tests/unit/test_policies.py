"""The chooser of pool policies: who is asked, who answers, and what is said about those that cannot."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.packages import install

from tracehook.policies import Answer, Request, Threshold
from tracehook.policies.chooser import REMEMBERED, Choice, Chooser
from tracehook.symmetric_memory.pool_choice import PoolChoice

REQUEST = Request(groups=("tp",), ranks=(2,), device=0, operation="all_reduce", nbytes=1 << 20)
DEFAULT = Choice(Answer.ISOLATED, "default", -1)
CODE = '''
from tracehook.policies import Answer

asked = []


def small(request):
    """Ordinary memory for what is small.

    A second paragraph.
    """
    asked.append(request)
    return Answer.NONE if request.nbytes < 1000 else None


def always(request):
    """A pool [for each] group."""
    return Answer.ISOLATED


def breaks(request):
    if request.nbytes:
        raise ValueError(f"no idea what to do\\n  about {request.nbytes} bytes" + ", and so on" * 50)
    return Answer.NONE


def word(request):
    return "isolated"


class NoText(Exception):
    def __str__(self):
        raise RuntimeError


def mute(request):
    raise NoText


def none_at_all():
    return Answer.NONE


number = 7
'''
POLICIES = ("small", "always", "breaks", "word", "mute", "none_at_all", "number", "gone")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with policies of all kinds, and return the folder where more can be installed."""
    points = {name: f"some_policies:{name}" for name in POLICIES} | {"elsewhere": "no_such_module:choose"}
    install(tmp_path, "some-policies", "1.2", {"some_policies": CODE}, points)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("some_policies", None)


@pytest.fixture
def said() -> list[str]:
    """Return what choosers have reported."""
    return []


@pytest.fixture
def chooser(packages: Path, said: list[str]) -> Callable[..., Chooser]:  # noqa: ARG001
    """Make a chooser of the named policies."""
    return lambda *names: Chooser(names, said.append)


@pytest.mark.parametrize(
    ("names", "nbytes", "chosen"),
    [
        (("always", "small"), 1, Choice(Answer.ISOLATED, "always", 0)),
        (("small", "always"), 1, Choice(Answer.NONE, "small", 0)),
        (("small", "always"), 1 << 20, Choice(Answer.ISOLATED, "always", 1)),
        (("small",), 1 << 20, DEFAULT),
        ((), 1 << 20, DEFAULT),
    ],
)
def test_the_first_answer_wins(chooser, said, names, nbytes, chosen) -> None:
    """A policy that returns None leaves the answer to the next one; if all abstain, it is isolated."""
    assert chooser(*names).choose(replace(REQUEST, nbytes=nbytes)) == chosen
    assert said == []


def test_a_policy_is_asked_once_for_each_distinct_request(chooser) -> None:
    """Equal requests are answered from memory, different ones are not."""
    small = chooser("small")
    for nbytes in (1, 2, 1, 2, 2000, 2000):
        small.choose(replace(REQUEST, nbytes=nbytes))
    assert [request.nbytes for request in sys.modules["some_policies"].asked] == [1, 2, 2000]


def test_the_memory_of_requests_is_bounded(chooser) -> None:
    """A program whose requests never repeat does not fill memory; what fell out is asked again."""
    small = chooser("small")
    for nbytes in [*range(REMEMBERED + 1), 0]:
        small.choose(replace(REQUEST, nbytes=nbytes))
    assert len(sys.modules["some_policies"].asked) == REMEMBERED + 2


def test_a_policy_that_raises_is_named_once_and_skipped(chooser, said) -> None:
    """One line says which policy raised what and where; the next is asked; other requests are still put to it."""
    breaks = chooser("breaks", "always")
    assert breaks.choose(REQUEST) == Choice(Answer.ISOLATED, "always", 1)
    assert breaks.choose(replace(REQUEST, nbytes=5)) == Choice(Answer.ISOLATED, "always", 1)
    assert breaks.choose(replace(REQUEST, nbytes=0)) == Choice(Answer.NONE, "breaks", 0)
    (line,) = said
    assert line.startswith(
        "policy 'breaks' skipped: raised ValueError: no idea what to do about 1048576 bytes, and so on"
    )
    assert "(some_policies.py:" in line
    assert "\n" not in line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("word", ": returned str, expected an Answer or None"),
        ("mute", ": raised some_policies.NoText: <exception str() failed> (some_policies.py:"),
        ("none_at_all", ": raised TypeError: none_at_all() takes 0 positional arguments but 1 was given (chooser.py:"),
        ("elsewhere", "(some-policies 1.2) cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "gone",
            "(some-policies 1.2) cannot be loaded: AttributeError: module 'some_policies' has no attribute 'gone'",
        ),
        ("number", "(some-policies 1.2) is no function but int"),
    ],
)
def test_a_policy_that_cannot_be_asked_is_named_once_and_skipped(chooser, said, name, why) -> None:
    """With what it did, or what was to be loaded from which package: the latter before the first request."""
    broken = chooser(name, "always")
    assert len(said) == ("(some-policies" in why)
    for nbytes in (1, 2):
        assert broken.choose(replace(REQUEST, nbytes=nbytes)) == Choice(Answer.ISOLATED, "always", 1)
    (line,) = said
    assert line.startswith(f"policy {name!r} skipped: ")
    assert why in line


def test_an_unknown_name_lists_those_that_are_installed(chooser, said) -> None:
    """A typing error in a name is answered with the names that exist, once, and the rest is asked."""
    unknown = chooser("tiny", "always", "tiny")
    assert unknown.choose(REQUEST) == Choice(Answer.ISOLATED, "always", 1)
    (line,) = said
    start, _, names = line.partition("; installed are ")
    assert start == "policy 'tiny' skipped: not installed"
    assert {*POLICIES, "elsewhere"} <= set(names.split(", "))


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        (True, "policy 'always' skipped: cannot be looked up: UnicodeDecodeError: "),
        (False, "offered by several packages (other-policies 3.0, some-policies 1.2)"),
    ],
    ids=["a damaged package", "a name of two packages"],
)
def test_what_is_installed_may_keep_a_policy_from_being_used(packages, chooser, said, damaged, told):
    """Python reads the files of all packages; which of two it finds first need not be the same on all ranks."""
    install(packages / "more", "other-policies", "3.0", {}, {"another" if damaged else "always": "some_policies:small"})
    if damaged:
        next((packages / "more").glob("*/entry_points.txt")).write_bytes(b"\xff")
    sys.path.insert(0, str(packages / "more"))  # undone with the path that the fixture has set
    assert chooser("always").choose(REQUEST) == DEFAULT
    (line,) = said
    assert told in line


def test_only_the_chosen_policies_are_imported(chooser) -> None:
    """A package whose policies are installed but not chosen is left alone."""
    chooser("elsewhere")
    assert "some_policies" not in sys.modules


def test_several_groups_of_a_scope_ask_no_policy_with_a_fingerprint(packages, said, monkeypatch) -> None:  # noqa: ARG001
    """A rank that has both groups alike does not know whether another one, which is in one of them, has so too."""
    told: list[int] = []
    chosen = PoolChoice(["always"], lambda _, choice, **__: told.append(choice))
    monkeypatch.setattr(sys.modules["some_policies"].always, "fingerprint", lambda: "one", raising=False)
    facts = [SimpleNamespace(name=name, desc=None, ranks=2, members=(0, 1)) for name in "ab"]
    groups: list[Any] = [SimpleNamespace(facts=each) for each in facts]
    for group in groups:
        group.compare_policies = lambda fingerprints: ""  # noqa: ARG005
        group.choices = set()
        group.partition = ""
    assert chosen.pool(groups[:1], 0, False, (None, None, None)) == "group a"
    assert chosen.pool(groups, 0, False, (None, None, None)) == "sets"
    assert told == [0, -1]


def test_the_first_policy_that_knows_sizes_says_them(packages, chooser, said, monkeypatch) -> None:  # noqa: ARG001
    """Those without such a function, and those that abstain, are passed over."""
    asked = chooser("breaks", "small", "always")
    assert asked.pays("send") is None
    module = sys.modules["some_policies"]
    monkeypatch.setattr(module.always, "pays", lambda _: (5, 6), raising=False)
    monkeypatch.setattr(module.small, "pays", {"send": Threshold(1, None)}.get, raising=False)
    assert asked.pays("send") == Threshold(1, None)
    assert asked.pays("all_gather") == Threshold(5, 6)
    assert said == []


@pytest.mark.parametrize("told", [7, (1,), (1, 2, 3), (1.5, 2), (-1, 2), (True, 2), (1 << 60, 2)])
def test_a_size_that_is_none_is_reported(packages, chooser, said, monkeypatch, told) -> None:  # noqa: ARG001
    """Once, and the next policy is asked."""
    asked = chooser("always", "small")
    module = sys.modules["some_policies"]
    monkeypatch.setattr(module.always, "pays", lambda _: told, raising=False)
    monkeypatch.setattr(module.small, "pays", lambda _: Threshold(1, None), raising=False)
    assert [asked.pays("send") for _ in range(2)] == [Threshold(1, None)] * 2
    assert len(said) == 1
    assert "policy 'always' skipped: raised" in said[0]
