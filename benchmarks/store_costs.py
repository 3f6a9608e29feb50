"""What an operation costs the process that holds a TCPStore, and the rank that asks for it: CPU time, on this machine.

``python benchmarks/store_costs.py`` prints it for 1 to 64 connections over loopback. CPU time and not time that passes,
so that other work on the machine counts little. Also what a rank's thread and the mailbox of a host take.
"""

from __future__ import annotations

import os
import queue
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from tracehook.agreement.mailbox import HostMailbox

CONNECTIONS = (1, 4, 16, 64)
OPERATIONS = 3000  # of all connections together
REPETITIONS = 5
MANY = 256  # keys
VALUE = "x" * 300  # as long as a post of one rank with two entries, or of a host whose ranks want the same
LONG = "x" * 16384


class Costs(NamedTuple):
    """Seconds of CPU. Of the store's process, but for the last three."""

    set: float
    check: float
    wait: float  # for a key that is there
    claim: float
    read: float  # without the wait for the keys that comes before
    delete: float
    key: float  # for each further key of a check, and twice for one of a read
    byte: float
    wake: float  # for each that waited for a key, when it comes
    client: float  # of the rank, for an operation
    handover: float  # from the program's thread to the line's and back
    mailbox: float  # one text written and read by its reader


def used(process: int) -> float:
    """Return the seconds of CPU that all threads of a process have used."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Server:
    """A process that holds a TCPStore and does nothing else."""

    def __init__(self) -> None:
        context = get_context("fork")
        ports = context.Queue()

        def serve() -> None:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            ports.put(store.port)
            time.sleep(3600)

        self.process: Any = context.Process(target=serve, daemon=True)
        self.process.start()
        self.port: int = ports.get()

    def connect(self) -> dist.TCPStore:
        """Return a connection of its own."""
        return dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=60))

    def end(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()


def together(calls: list[Callable[[], Any]]) -> None:
    """Make each call on a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(connections: int) -> Costs:
    """Return what is found with so many connections at the same time."""
    server = Server()
    stores = [server.connect() for _ in range(connections)]
    keys = [f"tracehook/0123456789abcdef/windows/{number}" for number in range(MANY)]
    for key in keys:
        stores[0].set(key, VALUE)
    stores[0].set("long", LONG)
    each = max(1, OPERATIONS // connections)

    def cost(operation: Callable[[dist.TCPStore, int], Any], count: int = each) -> float:
        """Return the CPU of the store's process for one operation."""

        def loop(store: dist.TCPStore, number: int) -> None:
            for turn in range(count):
                operation(store, number * count + turn)

        found = []
        for _ in range(REPETITIONS):
            before = used(server.process.pid)
            together([lambda s=store, n=number: loop(s, n) for number, store in enumerate(stores)])
            stores[0].check(["none"])
            found.append((used(server.process.pid) - before) / (count * connections))
        return statistics.median(found)

    before = time.process_time()
    claim = cost(lambda store, _: store.compare_set(keys[0], "?", "?"))
    own = (time.process_time() - before) / (REPETITIONS * each * connections)
    check = cost(lambda store, _: store.check(keys[:1]))
    wait = cost(lambda store, _: store.wait(keys[:1]))
    read = cost(lambda store, _: store.multi_get(keys[:1])) - wait
    few = max(1, each // 50)
    many = (cost(lambda store, _: store.check(keys), few) - check) / (MANY - 1)
    long = cost(lambda store, _: store.compare_set("long", "?", "?"), few)

    def tell(store: dist.TCPStore, number: int) -> None:
        store.set(f"a/{number}", VALUE)
        store.check(keys[:1])  # nobody answers a set; by itself it would come with many others in one piece

    told = cost(tell) - check
    delete = cost(lambda store, number: store.delete_key(f"a/{number}"))
    woken = []
    teller = server.connect()
    for turn in range(REPETITIONS * 4):
        waiting = [threading.Thread(target=store.wait, args=([f"late/{turn}"],)) for store in stores]
        before = used(server.process.pid)
        for thread in waiting:
            thread.start()
        time.sleep(0.05)
        teller.set(f"late/{turn}", VALUE)
        for thread in waiting:
            thread.join()
        woken.append((used(server.process.pid) - before - told) / connections - wait)
    server.end()
    return Costs(
        set=told,
        check=check,
        wait=wait,
        claim=claim,
        read=read,
        delete=delete,
        key=many,
        byte=max(0.0, long - claim) / len(LONG),
        wake=max(0.0, statistics.median(woken)),
        client=own,
        handover=handover(),
        mailbox=mailbox(),
    )


def handover() -> float:
    """Return what it takes to hand a task to a waiting thread and to get its answer."""
    there: queue.SimpleQueue[Any] = queue.SimpleQueue()
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def answer() -> None:
        while (one := there.get()) is not None:
            back.put(one)

    thread = threading.Thread(target=answer)
    thread.start()
    begin = time.process_time()
    for _ in range(1000):
        there.put(1)
        back.get()
    taken = (time.process_time() - begin) / 1000
    there.put(None)
    thread.join()
    return taken


def mailbox() -> float:
    """Return what it takes to write a text into a mailbox and to read it there."""
    name = uuid.uuid4().hex
    first, second = HostMailbox(name, [0, 1], 0), HostMailbox(name, [0, 1], 1)
    begin = time.process_time()
    for number in range(1, 2001):
        first.publish(number, VALUE)
        assert second.published(number, 1.0)
    return (time.process_time() - begin) / 2000


def show(found: dict[int, Costs]) -> None:
    """Print a table, in microseconds."""
    print(f"| microseconds of CPU, {os.cpu_count()} cores | " + " | ".join(f"{count}" for count in found) + " |")
    print("|---|" + "---:|" * len(found))
    for name in Costs._fields:
        print(f"| {name} | " + " | ".join(f"{getattr(costs, name) * 1e6:.4g}" for costs in found.values()) + " |")


if __name__ == "__main__":
    show({count: measure(count) for count in CONNECTIONS})
