"""What a correct program may find around it: a store, hosts, settings, a clock, a machine that is busy."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

STORES = ("tcp", "tcp without libuv", "file")
SHORT, LONG = 0.008, 60.0  # seconds


@dataclass(frozen=True)
class Surroundings:
    """Of one seed; equal on all ranks."""

    store: str
    prefixes: int  # around the store
    hosts: tuple[int, ...]  # the number of each rank's host
    guards: tuple[str, ...]  # each rank's SYMM_REGISTER_GUARD
    patience: float  # seconds: SYMM_REGISTER_TIMEOUT, after which a rank only says that it waits
    policy: str
    is_bound: bool  # the groups know their devices, so torch makes their communicators at once
    clocks: tuple[float, ...]  # seconds by which each rank's clock jumps at the start
    busy: int  # the rank that computes beside; -1: none
    veteran: int  # the rank whose process had another default group before; -1: none
    switch: float  # seconds after which Python lets another thread run
    collects: int  # allocations after which Python looks for garbage; 0: never


def draw(seed: int, ranks: int, is_calm: bool = False) -> Surroundings:
    """Draw the surroundings of a seed. `is_calm`: with a guard, groups that know their devices, nothing beside."""
    chance = random.Random(f"surroundings {seed}")
    hosts = tuple(chance.randrange(chance.choice((1, 1, 2))) for _ in range(ranks))
    guards = tuple(chance.choice(("on", "on", "on", "watch", "off")) for _ in range(ranks))
    drawn = Surroundings(
        store="hash" if ranks == 1 else chance.choice(STORES),
        prefixes=chance.randrange(3),
        hosts=hosts,
        guards=guards if chance.random() < 0.2 else ("on",) * ranks,
        patience=chance.choice((SHORT, LONG)),
        policy=chance.choice(("isolated", "isolated", "shared")),
        is_bound=chance.random() < 0.7,
        clocks=tuple(chance.choice((0.0, 0.0, 3600.0, -86400.0)) for _ in range(ranks)),
        busy=chance.choice((-1, -1, -1, chance.randrange(ranks))),
        switch=chance.choice((0.005, 0.005, 0.0001, 0.02)),
        collects=chance.choice((700, 700, 50, 0)),
        veteran=chance.choice((-1, -1, chance.randrange(ranks))),
    )
    return (
        replace(drawn, guards=("on",) * ranks, patience=LONG, is_bound=True, busy=-1, veteran=-1) if is_calm else drawn
    )


def make_store(found: Surroundings, control: Any, name: str, rank: int, folder: Path) -> Any:
    """Return the store of a seed; the ranks find it through the store `control`."""
    if found.store == "hash":
        store: Any = dist.HashStore()
    elif found.store == "file":
        store = dist.FileStore(str(folder / name.replace("/", "-")), -1)
    else:
        store = tcp_store(control, name, rank, wakes=found.store == "tcp")
    for number in range(found.prefixes):
        store = dist.PrefixStore(f"prefix {number}", store)
    return store


def tcp_store(control: Any, name: str, rank: int, wakes: bool) -> Any:
    """Return a TCPStore, which rank 0 has; the others find it through the store `control`."""
    if rank != 0:
        port = int(control.get(f"{name}/port"))
        return dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=wakes)
    # The store's own socket is for IPv6 too. Without libuv it looks up the name of each client, and no file of the
    # machine has one for IPv4 in IPv6: that costs five seconds where the name server is slow.
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen(64)
        port = place.getsockname()[1]
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            use_libuv=wakes,
            master_listen_fd=place.detach(),
        )
    control.set(f"{name}/port", str(port))
    return store
