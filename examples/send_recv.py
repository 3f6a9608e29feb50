"""send and recv between the GPUs of one host: mailboxes in the receiver's memory, and no collective library in between.

    tracehook rehearse --devices 2 -- torchrun --standalone --nproc-per-node 2 examples/send_recv.py

Each rank has a mailbox for every peer, which is shared once. To send is to put into the mailbox that the receiver has
for this rank; to receive is to copy out of it, and to say that it is free again. The hosts do not wait for each other.
"""

import os

import torch
import torch.distributed as dist

import tracehook
from tracehook.ipc import PeerGroup, PeerTensor

LARGEST = 1 << 20  # elements of a message


class Mailboxes:
    """Messages of up to LARGEST elements between all ranks of a group."""

    def __init__(self, group: PeerGroup) -> None:
        self.group = group
        peers = [peer for peer in range(group.size) if peer != group.rank]
        self.mine = {peer: torch.empty(LARGEST, device=group.device) for peer in peers}
        self.there = group.exchange(self.mine, writable=True)
        for peer in peers:
            group.signal(peer)  # my mailbox for you is free

    def send(self, message: torch.Tensor, to: int) -> None:
        """Put a message into the receiver's mailbox, as soon as that is free."""
        there = self.there[to]
        assert isinstance(there, PeerTensor)
        self.group.wait(to)
        there.tensor[: message.numel()].copy_(message.flatten())
        self.group.signal(to, channel=1)

    def recv(self, message: torch.Tensor, sender: int) -> torch.Tensor:
        """Copy the sender's message, which has as many elements as `message`, out of its mailbox."""
        self.group.wait(sender, channel=1)
        message.copy_(self.mine[sender][: message.numel()].view_as(message))
        self.group.signal(sender)
        return message


def main() -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    tracehook.enable()
    with PeerGroup() as group:
        boxes = Mailboxes(group)
        right, left = (rank + 1) % group.size, (rank - 1) % group.size
        got = []
        for turn, shape in enumerate([(1000,), (64, 1024), (LARGEST,), (3, 5, 7)]):
            boxes.send(torch.full(shape, float(100 * turn + rank)).to(device), right)
            got.append(boxes.recv(torch.empty(shape, device=device), left))
        print(f"rank {rank}: {[message.cpu().unique().tolist() for message in got]}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
