"""Uses a library whose data begin on the page on which its read-only part ends, before and after tracehook looks."""

import ctypes
import os

import torch

from common import tell

library = ctypes.CDLL(os.environ["LIBRARY"])
library.bump()
torch.zeros(1, device="cuda")
tell(bumped=library.bump(), called=library.call())
