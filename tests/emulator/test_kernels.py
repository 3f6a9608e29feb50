"""Code that a program loads: a launch computes nothing, and is refused where a device refuses it."""

from __future__ import annotations

from support.rehearsal import rehearse

INVALID_VALUE, NOT_INITIALIZED, NO_CONTEXT, NO_FILE, INVALID_HANDLE = 1, 3, 201, 301, 400


def test_launches_are_refused_as_by_a_device() -> None:
    """The stream must live and be of the module's device, the module must be loaded, the blocks must fit."""
    found = rehearse("kernels.py", devices=2)
    found.assert_good()
    facts = found.facts()
    assert facts["without_context"] == NO_CONTEXT
    assert facts["same"]
    assert [facts[name] for name in ("here", "by_name", "default")] == [0, 0, 0]
    assert facts["elsewhere"] == INVALID_HANDLE
    assert facts["no_stream"] == INVALID_HANDLE
    assert facts["too_many_threads"] == INVALID_VALUE
    assert facts["of_any"] == [0, 0]  # a library is of all devices
    assert facts["by_runtime"] == 0
    assert facts["unloaded"] == [INVALID_HANDLE, INVALID_HANDLE]
    assert facts["forked"] == NOT_INITIALIZED


def test_what_a_device_says_of_kernels_and_contexts() -> None:
    """Blocks and clusters fit as on an H200, shared memory ends at 227 KiB; a thread gets back the context it had."""
    facts = rehearse("kernels.py", devices=2).facts()
    assert [facts[name] for name in ("registers", "blocks", "clusters")] == [32, 2, 33]
    assert facts["shared"] == [0, INVALID_VALUE]
    assert [facts[name] for name in ("described", "misaligned")] == [0, INVALID_VALUE]
    assert facts["captured"] == 1
    assert facts["no_file"] == NO_FILE
    assert facts["pushed"] == [0, 1, INVALID_HANDLE]  # the default stream is now that of another device
    assert facts["popped"] == [True, 0, 0]
    assert facts["nothing_pushed"] == NO_CONTEXT
    assert facts["limit"] == 4096


def test_each_process_says_once_what_it_launched() -> None:
    """What was refused does not count, a graph counts when it is launched; a forked child says nothing of its parent.

    Kernels that a library registers, an extension's, count too; those of one template are one.
    """
    found = rehearse("kernels.py", devices=2)
    assert found.finished.lines("computed nothing") == [
        "rehearsal: 3 kernels of Triton, another compiler or an extension (the first: of_a_module) were launched "
        "9 times and computed nothing: their results are not what a device gives"
    ]
