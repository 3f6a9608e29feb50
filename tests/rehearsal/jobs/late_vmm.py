"""tracehook comes after CUDA is up, and after the first segment."""

import torch

from common import filled, tell

torch.cuda.init()
early = filled(1, 24, "cuda:0")
import tracehook  # noqa: E402

tracehook.enable()
later = filled(1, 48, "cuda:0")
tell(source=tracehook.status()["memory"]["source"])
