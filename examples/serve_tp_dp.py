"""An inference-style loop with a tensor-parallel and a data-parallel group. Unchanged on GPUs and in a rehearsal.

SYMM_REGISTER_HOOK=1 torchrun --standalone --nproc-per-node 2 examples/serve_tp_dp.py --tp 2
tracehook rehearse --devices 4 --log logs -- torchrun --standalone --nproc-per-node 4 examples/serve_tp_dp.py --tp 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, default=2, help="ranks of a tensor-parallel group")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=1024)
    arguments = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // arguments.tp, arguments.tp), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    tp_size, dp_size = dist.get_world_size(tp), dist.get_world_size(dp)

    served = 0
    for request in range(arguments.requests):
        tokens = 16 + 97 * request % 480  # every request has its own length, so the allocator has work to do
        partial = torch.full((tokens, arguments.hidden), float(dist.get_rank(tp) + 1)).to(device)
        dist.all_reduce(partial, group=tp)
        wanted = tp_size * (tp_size + 1) / 2
        if partial.cpu()[0, 0].item() != wanted:
            raise SystemExit(f"request {request}: {partial.cpu()[0, 0].item()} instead of {wanted}")
        logits = torch.empty(dp_size * tokens, arguments.hidden, device=device)
        dist.all_gather_into_tensor(logits, partial, group=dp)
        served += tokens
        if request % 8 == 7:
            del partial, logits
            torch.cuda.empty_cache()
    if dist.get_rank() == 0:
        print(f"served {arguments.requests} requests, {served} tokens, tp {tp_size} x dp {dp_size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
