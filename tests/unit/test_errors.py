"""Every exception of tracehook ends with one sentence that says what to do now."""

import pickle
import re

import pytest

from tracehook import errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors._Advised)]
PUBLIC = [kind for kind in KINDS if not kind.__name__.startswith("_")]


@pytest.mark.parametrize("kind", PUBLIC)
def test_an_exception_ends_with_what_to_do(kind: type[errors._Advised]) -> None:
    """With the advice of its class or its own, and none after a text that has it; so it does in another process."""
    assert re.fullmatch(r"[A-Za-z][^.]*[^. ](\.[^. ]+[^.]*)*", kind.ADVICE)
    assert str(kind("it failed")) == f"it failed. {kind.ADVICE}"
    if kind in (errors.RegistrationError, errors.PeerError, errors.RegistrationMismatch, errors.RegistrationTimeout):
        assert str(kind("it failed", advice="Mend it")) == "it failed. Mend it"
        assert str(kind("it failed: mend it", advice="")) == "it failed: mend it"
    error = kind("it failed")
    error.advice = "Mend it"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.text) == (kind, "it failed. Mend it", "it failed")


def test_an_error_within_another_keeps_its_advice() -> None:
    """And has it once."""
    inner = errors.PeerError("its handles did not arrive", advice="Mend it")
    assert str(inner.within("group g")) == "group g: its handles did not arrive. Mend it"
