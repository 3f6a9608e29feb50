"""Run snippets of the documentation, each with a group of its own and the names that its page takes for granted."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tracehook
from torch import nn

from common import RANK, WORLD, start, tell


def names(device: torch.device) -> dict[str, Any]:
    """Return what snippets take for granted. `group` has all ranks, in neighbours of which `ipc` copies."""
    world = dist.group.WORLD
    tracehook.enable()
    x = torch.ones(64, 32 * WORLD, dtype=torch.bfloat16, device=device)
    with tracehook.symmetric(world):
        y, z, whole = (torch.empty_like(x) for _ in range(3))
    return {
        "__name__": "snippet",
        "torch": torch,
        "dist": dist,
        "nn": nn,
        "tracehook": tracehook,
        "group": world,
        "tp": world,
        "rank": RANK,
        "size": WORLD,
        "x": x,
        "y": y,
        "z": z,
        "whole": whole,
        "part": whole.chunk(WORLD)[RANK],
        "shard": x[:8],
        "mine": x[0],
        "batch": 4,
        "hidden": 64,
        "stream": torch.cuda.Stream(),
        "graph": torch.cuda.CUDAGraph(),
        "build_model": lambda: nn.Linear(8, 8).to(device),
        "train_step": lambda model: model(torch.ones(4, 8, device=device)).sum().backward(),
    }


def main() -> None:
    """Run all, and tell of each how it ended."""
    base = os.environ["TEST_STORE"]
    for number, snippet in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        os.environ["TEST_STORE"] = f"{base}.{number}"
        device = start()
        dist.all_reduce(torch.ones(4, device=device))
        found = names(device)
        ended = "ran"
        try:
            # As many lines before it as there are on its page.
            code = compile("\n" * snippet["line"] + snippet["text"], snippet["page"], "exec", dont_inherit=True)
            exec(code, found)
            for name, check in list(found.items()):
                if name.startswith("test_"):
                    check()
        except BaseException:
            ended = traceback.format_exc()
        tell(**{snippet["name"]: ended})
        del found
        if ended != "ran":
            os._exit(1)  # the other ranks may wait for this one
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
