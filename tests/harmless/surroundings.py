"""What a correct program may find around it: a store, hosts, settings, ranks that are late."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

STORES = ("tcp", "tcp without libuv", "file")


@dataclass(frozen=True)
class Surroundings:
    """Of one seed; equal on all ranks."""

    store: str
    prefixes: int  # around the store
    hosts: tuple[int, ...]  # the number of each rank's host
    guards: tuple[str, ...]  # each rank's SYMM_REGISTER_GUARD
    patience: float  # seconds: SYMM_REGISTER_TIMEOUT, after which a rank only says that it waits
    policy: str


def draw(seed: int, ranks: int) -> Surroundings:
    """Draw the surroundings of a seed."""
    chance = random.Random(f"surroundings {seed}")
    hosts = tuple(chance.randrange(chance.choice((1, 1, 2))) for _ in range(ranks))
    guards = tuple(chance.choice(("on", "on", "on", "watch", "off")) for _ in range(ranks))
    return Surroundings(
        store=chance.choice(STORES),
        prefixes=chance.randrange(3),
        hosts=hosts,
        guards=guards if chance.random() < 0.2 else ("on",) * ranks,
        patience=chance.choice((0.3, 60.0)),
        policy=chance.choice(("shared", "shared", "isolated")),
    )


def make_store(found: Surroundings, control: Any, name: str, rank: int, folder: Path) -> Any:
    """Return the store of a seed; the ranks find it through the store `control`."""
    if found.store == "file":
        store: Any = dist.FileStore(str(folder / name.replace("/", "-")), -1)
    else:
        wakes = found.store == "tcp"
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=wakes)
            control.set(f"{name}/port", str(store.port))
        else:
            port = int(control.get(f"{name}/port"))
            store = dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=wakes)
    for number in range(found.prefixes):
        store = dist.PrefixStore(f"prefix {number}", store)
    return store
