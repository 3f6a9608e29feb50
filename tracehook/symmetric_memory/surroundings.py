"""What tracehook knows of a communicator that NCCL's path depends on, besides the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tracehook.log.tallies import Surroundings
from tracehook.nccl.paths import ONE_HOST

if TYPE_CHECKING:
    from tracehook.hook.groups import GroupFacts


def surroundings(facts: GroupFacts, *, is_on_one_host: bool) -> Surroundings:
    """Return them for the communicator of a group."""
    major, minor = torch.cuda.get_device_capability(facts.device)
    return Surroundings(ONE_HOST if is_on_one_host else "", _policy(facts.backend), 10 * major + minor)


def _policy(backend: Any) -> int:
    """Return the CTA policy that the group asks for; 0 where it asks for none, or its backend does not tell."""
    policy = getattr(getattr(getattr(backend, "options", None), "config", None), "cta_policy", 0)
    return max(0, policy) if isinstance(policy, int) else 0
