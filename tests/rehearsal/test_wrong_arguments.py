"""What a program hears that gives a public function the wrong thing: one line, with what was seen and expected."""

import pytest
from support.rehearsal import Rehearsal, rehearse

NO_GROUP = "RuntimeError: tracehook: there is no process group: call torch.distributed.init_process_group first"
NO_MEMBER = "TypeError: tracehook: expected a process group, such as dist.new_group(...) or mesh.get_group(...), got "
ONE_GROUP = "TypeError: tracehook: expected one process group, got "
NOT_IN_IT = "ValueError: tracehook: this rank is no member of the group: only its members "
OPERATION = "ValueError: tracehook: the operation is 'all_reduse': give one of all_gather, all_reduce, "
BYTES = "ValueError: tracehook.reserve: expected bytes, got "
SHAPE = "TypeError: tracehook.empty: expected whole numbers and a torch.dtype, got "
COMMUNICATOR = "TypeError: tracehook: str is no communicator: expected an ncclComm_t as int or "
NO_TENSOR = "TypeError: tracehook: expected a tensor, got "
HINT_BYTES = "TypeError: tracehook: nbytes is {}: expected a number of bytes, such as 1 << 20"
NO_FLAG = "TypeError: tracehook: graph is {}: expected True or False"
NO_TYPE = "TypeError: tracehook: dtype is {}: expected "
NO_ADDRESS = "ValueError: tracehook: {} has no NCCL communicator: make the communicator before"
SIZES = "TypeError: tracehook: sizes is {}: expected a whole number for each rank"
COUNT = "ValueError: sizes has {} entries, the group has 1 ranks: give one for each"
NO_ROWS = "ValueError: tracehook: expected a tensor of one dimension or more, got one of none: "
NO_SECONDS = "ValueError: tracehook: timeout is {}: expected seconds, such as 60"
NO_KIND = "TypeError: tracehook: expected a"
NO_PEER = "ValueError: peers of group 0: rank a is no peer of rank 0: expected another, below 1"
ON_DEVICE = "torch.ones(2, device='cuda')"
BEFORE = {
    "tracehook.symmetric()": NO_GROUP,
    "tracehook.symmetric('x')": f"{NO_MEMBER}'x'",
    "tracehook.symmetric([5])": f"{NO_MEMBER}5",
    "tracehook.symmetric([])": NO_GROUP,
    "tracehook.sync()": NO_GROUP,
    "tracehook.empty(2)": NO_GROUP,
    "tracehook.ipc.PeerGroup()": NO_GROUP,
    "tracehook.is_symmetric('x')": f"{NO_TENSOR}'x'",
    f"tracehook.explain({ON_DEVICE}).text": "'there is no process group: call",
}
AFTER = {
    "tracehook.symmetric('tp')": f"{NO_MEMBER}'tp'",
    "tracehook.symmetric([dist.group.WORLD, 1])": f"{NO_MEMBER}1",
    "tracehook.symmetric(operation='all_reduse')": OPERATION,
    "tracehook.symmetric(communicator=4096, operation='all_reduse')": OPERATION,
    "tracehook.symmetric(nbytes='1MiB')": "TypeError: tracehook: nbytes is '1MiB': expected a number of bytes",
    "tracehook.symmetric(dtype=torch.half)": "TypeError: tracehook: dtype is torch.float16: expected torch's name ",
    "tracehook.symmetric(operation=['x'])": "ValueError: tracehook: the operation is ['x']: give one of all_gather, ",
    "tracehook.symmetric(communicator=4096, dtype=['x'])": NO_TYPE.format("['x']"),
    "tracehook.symmetric(dtype=['x'])": NO_TYPE.format("['x']"),
    "tracehook.symmetric(nbytes=[1])": HINT_BYTES.format("[1]"),
    "tracehook.symmetric(nbytes=-5)": HINT_BYTES.format("-5"),
    "tracehook.symmetric(nbytes=True)": HINT_BYTES.format("True"),
    "tracehook.symmetric(graph=[1])": NO_FLAG.format("[1]"),
    "tracehook.symmetric(graph='yes')": NO_FLAG.format("'yes'"),
    "tracehook.symmetric(graph=1, nbytes=0)": "<scope of tracehook.symmetric: group 0>",
    "tracehook.symmetric(graph=None)": "<scope of tracehook.symmetric: group 0>",
    "tracehook.symmetric(communicator=True)": NO_ADDRESS.format("True"),
    "tracehook.symmetric(communicator=2**70)": NO_ADDRESS.format(2**70),
    "tracehook.symmetric()": "<scope of tracehook.symmetric: group 0>",
    "tracehook.symmetric(disabled=True)": "<scope of tracehook.symmetric that does nothing>",
    "tracehook.reserve('1GiB')": f"{BYTES}'1GiB'",
    "tracehook.reserve(1.5)": f"{BYTES}1.5",
    "tracehook.reserve(1, small_nbytes=-1)": f"{BYTES}-1",
    "tracehook.reserve(True)": f"{BYTES}True",
    "tracehook.reserve(2**70)": f"{BYTES}{2**70}",
    "tracehook.reserve(0, small_nbytes=False)": f"{BYTES}False",
    "tracehook.reserve(1, 'tp')": NO_MEMBER,
    "tracehook.sync('tp')": NO_MEMBER,
    "tracehook.trim('tp')": NO_MEMBER,
    "tracehook.pause(3)": NO_MEMBER,
    "tracehook.empty(2, group='tp')": NO_MEMBER,
    "tracehook.empty('a')": f"{SHAPE}('a',), torch.float32",
    "tracehook.empty(2, dtype='half', operation='all_reduce')": f"{SHAPE}(2,), 'half'",
    "tracehook.empty(2, sizes=5)": SIZES.format("5"),
    "tracehook.empty(2, sizes='ab')": SIZES.format("'ab'"),
    "tracehook.empty(2, sizes=[None])": SIZES.format("[None]"),
    "tracehook.empty(2, sizes=[2, 2])": COUNT.format("2"),
    "tracehook.empty(2, sizes=[3]).shape": "torch.Size([2])",
    "tracehook.empty().shape": "torch.Size([])",
    "tracehook.ipc.PeerGroup('tp')": NO_MEMBER,
    "tracehook.ipc.PeerGroup([])": f"{ONE_GROUP}0 of them",
    "tracehook.ipc.PeerGroup([None])": "<PeerGroup: peers of group 0, rank 0 of 1, cuda:0>",
    "tracehook.ipc.PeerGroup([None, None])": f"{ONE_GROUP}2 of them",
    "tracehook.ipc.PeerGroup(dist.GroupMember.NON_GROUP_MEMBER)": f"{NOT_IN_IT}make a PeerGroup",
    "tracehook.ipc.PeerGroup()": "<PeerGroup: peers of group 0, rank 0 of 1, cuda:0>",
    "tracehook.ipc.PeerGroup(timeout='x')": NO_SECONDS.format("'x'"),
    "tracehook.ipc.PeerGroup(timeout=-1)": NO_SECONDS.format("-1"),
    "tracehook.ipc.PeerGroup().exchange(None)": f"{NO_KIND} Mapping, got NoneType",
    "tracehook.ipc.PeerGroup().exchange({'a': None})": NO_PEER,
    "tracehook.ipc.PeerGroup().signal('a')": NO_PEER,
    "tracehook.ipc.PeerGroup().put(None, torch.ones(1))": f"{NO_KIND} PeerTensor, got NoneType",
    "tracehook.ipc.PeerGroup().get(torch.ones(1))": f"{NO_KIND} PeerTensor, got Tensor",
    "tracehook.ipc.PeerGroup().release(None)": f"{NO_KIND} Tensor, got NoneType",
    f"tracehook.explain({ON_DEVICE}, 'tp')": NO_MEMBER,
    f"tracehook.explain({ON_DEVICE}, operation=5)": "ValueError: tracehook: the operation is 5: give one of all_gather",
    f"tracehook.explain({ON_DEVICE}, operation='reduce', reduction=5)": "ValueError: tracehook: the reduction is '5': ",
    f"tracehook.explain({ON_DEVICE}, operation='reduce', dtype='float')": NO_TYPE.format("'float'"),
    f"tracehook.is_symmetric({ON_DEVICE}, [dist.group.WORLD])": f"{NO_MEMBER}[<",
    f"tracehook.is_symmetric({ON_DEVICE}, 'tp')": NO_MEMBER,
    **{
        f"tracehook.{call}({ON_DEVICE}, {group})": line
        for call in ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor")
        for group, line in {"5": f"{NO_MEMBER}5", "'tp'": f"{NO_MEMBER}'tp'", "[]": f"{ONE_GROUP}0 of them"}.items()
    },
    f"tracehook.reduce_scatter_tensor({ON_DEVICE}, dist.GroupMember.NON_GROUP_MEMBER)": NOT_IN_IT,
    "tracehook.explain(3)": f"{NO_TENSOR}3",
    "tracehook.is_symmetric(3)": f"{NO_TENSOR}3",
    "tracehook.is_symmetric([1], communicator=4096)": f"{NO_TENSOR}[1]",
    "tracehook.all_reduce(3)": f"{NO_TENSOR}3",
    "tracehook.all_gather('x')": f"{NO_TENSOR}'x'",
    "tracehook.all_gather_into_tensor(None)": f"{NO_TENSOR}None",
    "tracehook.reduce_scatter_tensor(3)": f"{NO_TENSOR}3",
    **{
        f"tracehook.{gather}(torch.ones((), device='cuda'))": NO_ROWS
        for gather in ("all_gather", "all_gather_into_tensor", "reduce_scatter_tensor")
    },
    f"tracehook.all_gather_into_tensor({ON_DEVICE}, sizes=5)": SIZES.format("5"),
    f"tracehook.all_gather({ON_DEVICE}, sizes=['a'])": SIZES.format("['a']"),
    f"tracehook.reduce_scatter_tensor({ON_DEVICE}, sizes=[1, 1])": COUNT.format("2"),
    "tracehook.rendezvous(3)": f"{NO_TENSOR}3",
    "tracehook.attach_communicator(0)": "ValueError: tracehook: 0 has no NCCL communicator",
    "tracehook.attach_communicator(-5)": "ValueError: tracehook: -5 has no NCCL communicator",
    "tracehook.attach_communicator(True)": NO_ADDRESS.format("True"),
    "tracehook.attach_communicator('x')": COMMUNICATOR,
    "tracehook.detach_communicator('x')": COMMUNICATOR,
    "tracehook.use_store('x')": "TypeError: tracehook.use_store: expected a torch.distributed.Store or None, got 'x'",
    "tracehook.fsdp.apply(None)": "TypeError: tracehook.fsdp.apply: nothing inside of NoneType is sharded",
    "tracehook.fsdp.AllGather().allocate((3,), dtype=torch.half, device='cuda').device": "device(type='cuda', index=0)",
    "tracehook.ddp.apply(None)": "TypeError: tracehook.ddp.apply: expected a DistributedDataParallel, got NoneType",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """Evaluate all expressions in one process."""
    return rehearse("wrong_arguments.py", *BEFORE, "GROUP", *AFTER, log=tmp_path_factory.mktemp("logs")).assert_good()


@pytest.mark.parametrize(
    ("when", "expression"), [*(("before", one) for one in BEFORE), *(("after", one) for one in AFTER)]
)
def test_one_line_says_it(run: Rehearsal, when: str, expression: str) -> None:
    """Before there is a process group, and after."""
    told = run.facts()[when][expression]
    assert told.startswith({"before": BEFORE, "after": AFTER}[when][expression])
    assert len(told.splitlines()) == 1
