"""A program after whose start Python finds some modules of its library no more, as after a change of the user."""

import sys

import torch
import tracehook

from common import tell

sys.modules["tomllib"] = None  # type: ignore[assignment]
torch.ones(1, device="cuda")
tell(state=tracehook.status()["state"], reasons=list(tracehook.status()["reasons"]))
