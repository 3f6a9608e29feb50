"""Large memory that nobody computed, of which a program reads parts: each function below is one case."""

import ctypes
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import tracehook
from tracehook.ipc import PeerGroup

from common import MB, RANK, must, start, tell

NEW = 1 << 21  # elements: more than new memory is filled of at once
PART = slice(5000, 6000)
OTHER = 1 - RANK


def memory_with_old_values(count: int = NEW, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return new memory, which lies where a tensor full of ones lay before."""
    old = torch.ones(count).to(dtype).to("cuda")
    address = old.data_ptr()
    del old
    new = torch.empty(count, dtype=dtype, device="cuda")
    assert new.data_ptr() == address
    return new


def nan(tensor: torch.Tensor) -> bool:
    """Tell whether every element is NaN, as the host sees it."""
    return bool(tensor.cpu().float().isnan().all())


def holds(tensor: torch.Tensor, value: float | torch.Tensor) -> bool:
    """Tell whether every element has that value, as the host sees it."""
    return bool((tensor.cpu() == value).all())


def taken() -> float:
    """Return how many MB of memory this process has now."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


def new_memory() -> None:
    """Parts of new memory, read in every way that a program has."""
    x = memory_with_old_values()
    y, z = memory_with_old_values(), memory_with_old_values()
    pinned = torch.empty(1000, pin_memory=True)
    pinned.copy_(z[PART])
    tell(
        part=nan(x[PART]),
        computed=x[7000:8000].isnan().all().item(),
        sum=nan(x[9000:9999].sum()),
        item=nan(torch.tensor(x[123456].item())),
        clone=nan(x.clone()[20000:21000]),
        whole=nan(y.cpu()),
        moved=nan(y.clone()[PART].clone()),
        strided=nan(z.view(512, 4096)[:, 7]),
        backwards=nan(z.flip(0)[PART]),
        pinned=nan(pinned),
        sized=len(z[1000000:1000100].nonzero()) == 100,  # NaN is not zero
        complex=nan(torch.view_as_real(torch.empty(NEW, dtype=torch.complex64, device="cuda")[PART])),
    )


def types() -> None:
    """A part of new memory of every type: NaN where the type has one, and 0 elsewhere."""
    found = {}
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
                  torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu):  # fmt: skip
        found[str(dtype)] = nan(memory_with_old_values(dtype=dtype)[PART])
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        found[str(dtype)] = holds(memory_with_old_values(dtype=dtype)[PART], 0)
    tell(found=found)


def above_the_limit() -> None:
    """Results that are not computed because they are large."""
    ones, whole = memory_with_old_values(1 << 22), memory_with_old_values(1 << 22, torch.int32)
    ones.fill_(1)
    whole.fill_(3)
    right = torch.ones(1 << 22).to("cuda")
    copied = right.clone()
    total = right + right
    tell(
        part=nan(ones[PART]),
        host=nan(ones.cpu()[PART]),
        clone=nan(ones.clone()[PART]),
        sum=nan(total[PART]),
        integers=holds(whole[PART], 0),
        copied=holds(copied, 1),
    )


def written() -> None:
    """What is written into new memory is right, and what lies beside it is NaN."""
    x = memory_with_old_values()
    x[PART] = 7
    x[100000:100300:3] = 1
    torch.add(torch.ones(1000, device="cuda"), 1, out=x[200000:201000])
    x[300000:301000].copy_(torch.full((1000,), 4.0))
    x[400000:401000] += 1
    right = [holds(x[PART], 7), holds(x[100000:100300:3], 1), holds(x[200000:201000], 2), holds(x[300000:301000], 4)]
    beside = [nan(x[4000:5000]), nan(x[6000:7000]), nan(x[100001:100300:3]), nan(x[99000:100000])]
    beside += [nan(x[201000:202000]), nan(x[299000:300000]), nan(x[400000:401000])]
    y = memory_with_old_values().view(512, 4096)
    y[:, 5] = 2
    right += [holds(y[:, 5], 2)]
    beside += [nan(y[:, 4]), nan(y[:, 6])]
    z = memory_with_old_values()
    sets, words = ctypes.CDLL(None).cudaMemset, ctypes.CDLL("libcuda.so.1").cuMemsetD32Async
    must(sets(ctypes.c_void_p(z[PART].data_ptr()), 0, ctypes.c_size_t(4000)))
    must(words(ctypes.c_uint64(z[20000:].data_ptr()), 0x3F800000, ctypes.c_size_t(1000), None))
    right += [holds(z[PART], 0), holds(z[20000:21000], 1)]
    beside += [nan(z[6000:20000]), nan(z[21000:22000])]
    tell(right=right, beside=beside)


def overwritten() -> None:
    """Memory that a program writes whole, in every usual way, is as it wrote it."""
    host = torch.arange(float(NEW))
    x = memory_with_old_values()
    turned = torch.empty(1448, 1449, device="cuda").t()
    turned.copy_(torch.ones(1449, 1448, device="cuda"))
    drawn = memory_with_old_values().normal_()
    tell(
        right=[
            holds(memory_with_old_values().fill_(3), 3),
            holds(memory_with_old_values().zero_(), 0),
            holds(x.copy_(torch.ones(NEW, device="cuda")), 1),
            torch.equal(host.to("cuda").cpu(), host),
            torch.equal(torch.arange(NEW, device="cuda").cpu(), torch.arange(NEW)),
            holds(torch.ones(NEW, device="cuda") + 1, 2),
            holds(torch.cat([torch.ones(NEW, device="cuda")] * 2), 1),
            holds(x.masked_select(x > 0), 1),  # its size depends on values, as that of the next
            torch.equal(x.nonzero().flatten().cpu(), torch.arange(NEW)),
            holds(turned, 1),
            abs(drawn.mean().item()) < 0.1,
        ]
    )


def reused() -> None:
    """Memory that was new and large serves tensors that are written right away."""
    x = memory_with_old_values()
    address = x.data_ptr()
    del x
    parts = [torch.arange(300000.0, device="cuda") + number for number in range(6)]
    right = [holds(part, torch.arange(300000.0) + number) for number, part in enumerate(parts)]
    tell(inside=any(address <= part.data_ptr() < address + 4 * NEW for part in parts), right=all(right))


def graph() -> None:
    """A graph writes and reads parts of large new memory at each launch."""
    x = torch.empty(NEW, device="cuda")
    number = torch.ones(1, device="cuda")
    found = torch.zeros(3, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x[PART] = number
        found[0], found[1], found[2] = x[5500], x[4999], x[123456]
    seen = []
    for value in (1.0, 2.0):
        number.fill_(value)
        captured.replay()
        seen.append(found.tolist())
    tell(first=[each[0] for each in seen] == [1.0, 2.0], others=nan(torch.tensor([each[1:] for each in seen])))


def collectives() -> None:
    """What ranks exchange of large new memory is NaN, what they exchange of a written part is right."""
    start()
    x, y, z = memory_with_old_values(), memory_with_old_values(), memory_with_old_values()
    dist.all_reduce(x[10000:11000])
    x[PART] = RANK + 1.0
    dist.all_reduce(x[PART])
    gathered = memory_with_old_values(2 * NEW)
    dist.all_gather_into_tensor(gathered, torch.full((NEW,), 5.0).to("cuda"))
    part = torch.zeros(2000, device="cuda")
    dist.all_gather_into_tensor(part, y[PART])
    if RANK == 0:
        dist.send(torch.full((1000,), 9.0, device="cuda"), 1)
        dist.send(y[20000:21000], 1)
    else:
        dist.recv(z[PART], 0)
        dist.recv(z[0:1000], 0)
    tell(
        reduced=[nan(x[10000:11000]), nan(x[11000:12000]), holds(x[PART], 3), nan(x[6000:7000])],
        gathered=[holds(gathered, 5), nan(part)],
        received=[holds(z[PART], 9), nan(z[0:1000]), nan(z[6000:7000])] if RANK else [True] * 3,
    )
    dist.destroy_process_group()


def large_collectives() -> None:
    """Collectives that move more than is computed keep NaN apart from what was written."""
    start()
    x = memory_with_old_values(1 << 22)
    x[1000000:1001000] = RANK + 1.0
    gathered = memory_with_old_values(1 << 23)
    dist.all_gather_into_tensor(gathered, x)
    sent = x.clone()
    dist.all_reduce(x)
    if RANK == 0:
        dist.send(sent, 1)
    else:
        dist.recv(sent, 0)
    second = gathered[1 << 22 :]
    tell(
        gathered=[nan(gathered[PART]), nan(second[PART]), holds(gathered[1000000:1001000], 1)],
        second=[holds(second[1000000:1001000], 2), nan(second[1001000:1002000])],
        reduced=[nan(x[PART]), holds(x[1000000:1001000], 3), nan(x[1001000:1002000])],
        received=[nan(sent[PART]), holds(sent[1000000:1001000], 1), nan(sent[1001000:1002000])],
    )
    dist.destroy_process_group()


def windows() -> None:
    """The same through the symmetric kernels, which read the memory of the other ranks."""
    tracehook.enable()
    device = start()
    with tracehook.symmetric(dist.group.WORLD):
        x, gathered = (torch.empty(count, device=device) for count in (NEW, 2 * NEW))
    x[PART] = RANK + 1.0
    dist.all_gather_into_tensor(gathered, x)
    dist.all_reduce(x)
    second = gathered[NEW:]
    tell(
        symmetric=tracehook.is_symmetric(x, dist.group.WORLD),
        gathered=[holds(gathered[PART], 1), holds(second[PART], 2), nan(gathered[6000:7000]), nan(second[6000:7000])],
        reduced=[holds(x[PART], 3), nan(x[6000:7000]), nan(x[1000000:1001000])],
    )
    dist.barrier()
    dist.destroy_process_group()


def peers() -> None:
    """What a peer puts into large new memory stays, whenever that was made."""
    tracehook.enable()
    device = start()
    with PeerGroup() as group:
        mine = memory_with_old_values()
        torch.cuda.synchronize()
        views = group.exchange({OTHER: [mine]}, writable=True)[OTHER]
        assert isinstance(views, list)
        theirs = views[0]
        unread = nan(theirs.tensor[PART])
        dist.barrier()
        theirs.tensor[PART].copy_(torch.full((1000,), RANK + 1.0))
        torch.cuda.synchronize()
        dist.barrier()
        found = [unread, holds(mine[PART], OTHER + 1), nan(mine[6000:7000])]
        # Another tensor that is not computed, in memory that the peer knows already.
        kept, before = mine[:], mine.data_ptr()
        kept += float("nan")
        torch.cuda.synchronize()
        dist.barrier()  # no rank writes before the other one has read, and has made its own memory NaN
        theirs.tensor.copy_(torch.full((NEW,), RANK + 5.0))
        torch.cuda.synchronize()
        dist.barrier()
        tell(found=[*found, holds(mine, OTHER + 5), mine.data_ptr() == before, device.index == RANK])
        dist.barrier()
    dist.destroy_process_group()


def footprint() -> None:
    """A tensor of 1 GiB takes memory only where somebody reads or writes it."""
    torch.empty(10, device="cuda").fill_(1).tolist()
    begin = taken()
    x = torch.empty(256 * MB, device="cuda")
    read = nan(x[12345678:12346678])
    x[PART] = 1
    copied = x.clone()
    y = torch.empty(256 * MB, device="cuda")
    y.fill_(1)  # not computed
    read = read and nan(y[12345678:12346678]) and nan(copied[23456789:23457789]) and holds(copied[PART], 1)
    rows = x.view(-1, MB)[:, 3]
    tell(read=read and nan(rows), grown=taken() - begin)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]]()
