"""The key of a communicator: computed by each rank alone, and the same on all of them."""

import itertools

from support.processes import python

from tracehook._core import key_of_name


def test_different_names_have_different_keys():
    """Names that differ in one character, in length or in case are kept apart."""
    names = [f"group:{i}" for i in range(20_000)] + ["", "group", "Group", "group ", "group\0"]
    assert len({key_of_name(name) for name in names}) == len(names)


def test_a_key_has_64_bits_that_all_depend_on_the_name():
    """Keys of near-equal names differ in about half of their bits."""
    keys = [key_of_name(f"group:{i}") for i in range(256)]
    assert max(keys).bit_length() == 64
    flips = [(a ^ b).bit_count() for a, b in itertools.pairwise(keys)]
    assert min(flips) > 8
    assert 28 < sum(flips) / len(flips) < 36


def test_another_process_computes_the_same_key():
    """Ranks need no communication to agree on a key."""
    script = "from tracehook._core import key_of_name; print(key_of_name('ränks'))"
    assert int(python(script, env={"PYTHONHASHSEED": "7"}).out) == key_of_name("ränks")
