"""How a random correct program ends, and what it did before: the same on all ranks."""

from __future__ import annotations

import random
from typing import NamedTuple

STEPS = (
    *("sums", "keeps", "cycle", "other_group", "passing_group", "gathers", "flies", "graph", "generator", "finalizer"),
    *("exit_function", "destroys_late", "daemon", "daemon_in_scopes", "thread", "again", "child"),
    "switches",
)
WAYS = (
    *("return", "return", "return", "exit", "status", "text", "raise", "os._exit", "SIGTERM", "SIGINT", "SIGKILL"),
    *("abort", "thread", "exec"),
)


class Ending(NamedTuple):
    """One program."""

    steps: list[str]
    way: str
    is_bound: bool
    destroys: bool
    in_scope: bool


def draw(seed: int) -> Ending:
    """Return the program of a seed."""
    dice = random.Random(seed)
    steps, way = dice.sample(STEPS, dice.randint(1, 5)), dice.choice(WAYS)
    destroys = dice.random() < 0.6
    if way == "SIGINT" and "thread" in steps:
        steps.remove("thread")  # Python forgets why the program ended if anything is imported meanwhile, as torch does
    if "graph" in steps:  # a capture bears no allocation beside it
        steps = [step for step in steps if not step.startswith("daemon")]
    if destroys or {"again", "destroys_late"} & {*steps}:  # nobody may use a group that another thread destroys
        steps = [step for step in steps if step != "daemon_in_scopes"]
    return Ending(steps, way, dice.random() < 0.5, destroys, dice.random() < 0.3)
