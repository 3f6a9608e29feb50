"""A child, forked before CUDA came up, enables on one thread while another is slowly bringing CUDA up."""

import os
import threading

import torch
import tracehook

from common import tell

tracehook.enable()
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

initialise, under_way = torch._C._cuda_init, threading.Event()


def slowly() -> None:
    under_way.set()
    threading.Event().wait(0.5)
    initialise()


torch._C._cuda_init = slowly
brings_up = threading.Thread(target=torch.cuda.init, daemon=True)
brings_up.start()
under_way.wait()
enables = threading.Thread(target=tracehook.enable, daemon=True)
enables.start()
brings_up.join(20)
enables.join(20)
tell(stuck=brings_up.is_alive() or enables.is_alive(), state=tracehook.status()["state"])
os._exit(0)
