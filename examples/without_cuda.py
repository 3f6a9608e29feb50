"""A job that tracehook can do nothing for: four ranks that sum over gloo. It runs as it would without tracehook."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.full((4,), 2.0 ** dist.get_rank())
dist.all_reduce(total)
assert total.tolist() == 4 * [2.0 ** dist.get_world_size() - 1], total
if dist.get_rank() == 0:
    print(f"sum over {dist.get_world_size()} ranks: {total[0].item():g}")
dist.destroy_process_group()
