"""The feed of segments: what libraries that keep something by the address of GPU memory hear."""

import shutil
import subprocess

import pytest
from support.audits import CLEAN, Audit
from support.rehearsal import JOBS, ROOT, Rehearsal, rehearse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
MB = 1 << 20
BORN, MAPPED, UNMAPPED, GONE = 1, 2, 3, 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Run the job once, on one device."""
    folder = tmp_path_factory.mktemp("feed")
    libraries = []
    for name in ("sleeper", "listener"):
        libraries.append(str(folder / f"lib{name}.so"))
        compiler = ["g++", "-std=c++17", "-shared", "-fPIC", "-I", str(ROOT / "tracehook" / "cpp")]
        subprocess.run([*compiler, "-o", libraries[-1], JOBS / f"{name}.cpp"], check=True)
    played = rehearse("feed.py", *libraries, log=folder / "log", hook=False).assert_good()
    Audit(folder / "log").expect(CLEAN)
    return played


def test_a_feed_needs_tracehook_and_no_cuda(run: Rehearsal) -> None:
    """Before ``enable()`` one line says what to do; after it, and before CUDA is up, there is nothing to tell."""
    facts = run.facts()
    assert "call tracehook.enable() first" in facts["early"]
    assert facts["at_first"] == []


def test_another_segment_at_the_same_address_has_another_number(run: Rehearsal) -> None:
    """So a cache by address and number takes no false hit."""
    facts = run.facts()
    assert facts["reused"], "else this test shows nothing"
    lives = [change for change in facts["lives"] if change[4] == 32 * MB]
    assert [(what, address) for what, _, _, address, _, _ in lives] == [
        (what, facts["second"]) for what in ("born", "gone", "born")
    ]
    assert lives[0][1] == lives[1][1] != lives[2][1]
    assert {(device, memory) for _, _, device, _, _, memory in lives} == {(0, "cudaMalloc")}


def test_memory_that_sleeps_is_told_with_a_new_number(run: Rehearsal) -> None:
    """It is unmapped, mapped as another one, unmapped again, and gone while it sleeps."""
    changes = [change for change in run.facts()["sleeps"] if change[5] == "pausable"]
    assert [change[0] for change in changes] == ["born", "unmapped", "mapped", "unmapped", "gone"]
    numbers = [change[1] for change in changes]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3] == numbers[4]


def test_a_late_listener_hears_what_there_is(run: Rehearsal) -> None:
    """Each segment is born for it, and the one that sleeps is unmapped, too."""
    late = run.facts()["late"]
    assert [what for what, *_, memory in late if memory == "pausable"] == ["born", "unmapped"]
    assert ("born", 32 * MB) in {(change[0], change[4]) for change in late}


def test_a_listener_in_c_hears_it_before_the_memory_goes(run: Rehearsal) -> None:
    """At each end, and before each sleep, the driver still knows the memory. It hears what Python hears."""
    facts = run.facts()
    heard = [row for row in facts["native"] if row[0] != BORN]
    assert [what for what, _, _ in heard] == [UNMAPPED, MAPPED, UNMAPPED, GONE]
    assert [has for what, _, has in heard if what == UNMAPPED] == [1, 1]
    names = ("", "born", "mapped", "unmapped", "gone")
    of_python = [(change[0], change[1]) for change in facts["sleeps"]]
    assert [(names[what], number) for what, number, _ in facts["native"]][1:] == of_python


def test_who_has_left_hears_nothing(run: Rehearsal) -> None:
    """Neither in Python nor in C; and a forked child, in which tracehook does not run, gets an error."""
    facts = run.facts()
    assert facts["after"] == [0, 0]
    assert facts["in_a_child"] == 3
