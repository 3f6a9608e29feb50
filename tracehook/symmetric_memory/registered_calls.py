"""Whether all ranks of a communicator run calls on registered memory: they compare it once.

cpp/nccl/paying.h asks at the first collective that gains by it, which all ranks make; of two ranks also at a transfer.
Where some ranks of a call used registered memory and others did not, NCCL waits for ever or hands over wrong data. So a
rank whose settings differ, that has no tracehook, or that comes very late, costs the effect and nothing else.
"""

from __future__ import annotations

from tracehook._core import Communicator
from tracehook.errors import RegistrationError
from tracehook.hook import registration
from tracehook.log.stderr import say_once
from tracehook.symmetric_memory import state

LONGEST = 60.0  # seconds that a rank waits for the others, or as long as the group does, if that is less


def agree(communicator: Communicator) -> bool:
    """Return whether the ranks register at calls, all alike. On the thread that issues the call; never raises."""
    memory = state.memory()
    if memory is None:
        return True
    try:
        found = memory.windows_of(communicator)
        if found is None:
            return True  # there is no store where its ranks could compare
        found.compare_registered_calls(registration.paying_calls(), LONGEST)
    except (RegistrationError, RuntimeError) as problem:
        text = problem.text if isinstance(problem, RegistrationError) else f"{type(problem).__name__}: {problem}"
        say_once(
            f"{text}. So this rank registers no memory for calls on this communicator: they are right, and as fast as "
            "without tracehook. Start all ranks with the same SYMM_REGISTER_ variables"
        )
        return False
    return True
