"""Evaluates what a program may get wrong, and tells what came of it. Arguments: expressions, before and after a group.

The expressions before `GROUP` are evaluated without a process group.
"""

import sys

import torch
import torch.distributed as dist
import tracehook

from common import start, tell

KNOWN = {"dist": dist, "torch": torch, "tracehook": tracehook}


def evaluate(expression: str) -> str:
    """Return what an expression gives, or the exception."""
    try:
        return repr(eval(expression, KNOWN))
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


at = sys.argv.index("GROUP")
tell(before={expression: evaluate(expression) for expression in sys.argv[1:at]})
start()
tell(after={expression: evaluate(expression) for expression in sys.argv[at + 1 :]})
dist.destroy_process_group()
