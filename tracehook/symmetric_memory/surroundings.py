"""What tracehook knows of a communicator that NCCL's path depends on, besides the call."""

from __future__ import annotations

from typing import Any

import torch

from tracehook.agreement import handshake
from tracehook.hook.groups import GroupFacts
from tracehook.log.tallies import Surroundings
from tracehook.nccl.fabric import fabric_of


def surroundings(facts: GroupFacts, domain: str) -> Surroundings:
    """Return them for the communicator of a group; `domain`: what joins its ranks, empty if nobody knows."""
    major, minor = torch.cuda.get_device_capability(facts.device)
    return Surroundings(domain, _policy(facts.backend), 10 * major + minor)


def place(device: torch.device) -> handshake.RankPlace:
    """Return where this rank is, for the other ranks to compare."""
    return handshake.RankPlace(handshake.this_host(), fabric_of(f"GPU-{torch.cuda.get_device_properties(device).uuid}"))


def _policy(backend: Any) -> int:
    """Return the CTA policy that the group asks for; 0 where it asks for none, or its backend does not tell."""
    policy = getattr(getattr(getattr(backend, "options", None), "config", None), "cta_policy", 0)
    return max(0, policy) if isinstance(policy, int) else 0
