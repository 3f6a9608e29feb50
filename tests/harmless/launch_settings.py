"""What all seeds of one job share, because a process reads it once: ranks, versions, settings of tracehook."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

MEMORY = os.environ.get("HARMLESS_MEMORY")  # that of all jobs; None: each draws its own
ROUND = 50  # seeds of one job
NEW, OLD = "23007", "22809"
OF_TORCH = {  # one warm start serves all jobs
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
}


@dataclass(frozen=True)
class LaunchSettings:
    """Of one job."""

    ranks: int
    env: dict[str, str]


def draw(seed: int) -> LaunchSettings:
    """Draw what the job of a seed is started with."""
    number = seed // ROUND
    chance = random.Random(f"job {number}")
    env = OF_TORCH | {
        # Not all: docs/registration.md says what registering everything may do.
        "SYMM_REGISTER_LOCAL": chance.choice(("auto", "auto", "auto", "auto", "off")),
        "SYMM_REGISTER_MEMORY": MEMORY or chance.choice(("torch", "torch", "vmm")),
        "TRACEHOOK_EMU_NCCL_VERSION": chance.choice((NEW, OLD)),
    }
    if chance.random() < 0.2:
        env["SYMM_REGISTER_SEGMENTS"] = "from-20MiB"
    ranks = (2, 3, 2, 2, 1, 2, 3, 2)[number % 8]
    if ranks > 1 and chance.random() < 0.4:  # NCCL's view of the hosts, and tracehook's: they may differ
        env |= {"HARMLESS_HOSTS": chance.choice("12"), "LOCAL_WORLD_SIZE": chance.choice(("1", "1", str(ranks)))}
    return LaunchSettings(ranks, env)
