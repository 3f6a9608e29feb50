"""Each operation of PyTorch's own list, on the host and on an emulated device: values, and gradients of floats."""

import itertools
import sys
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from common import tell

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
ROUNDED = {"rtol": 2e-2, "atol": 5e-3}  # some gradients of bfloat16 are computed in float here, and rounded once
RANDOM = (
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint"),
    *("randint_like", "randn", "randn_like", "randperm", "uniform", "nn.functional.dropout", "nn.functional.dropout2d"),
    *("nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout"),
    *("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.rrelu"),
    *("svd_lowrank", "pca_lowrank", "nn.functional.scaled_dot_product_attention"),  # the last: some samples drop
    "nn.functional.multi_head_attention_forward",
)
UNINITIALIZED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_")
# Both devices differ in what they return or take, not only in values.
DIFFERENT = (
    *("native_batch_norm", "_native_batch_norm_legit", "tensor_split", "sparse.mm", "resize_as_"),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
)
WIDER = ("native_layer_norm", "_batch_norm_with_update")  # a device keeps statistics of bfloat16 as float32


def on(device: str, value: Any) -> Any:
    """Return an argument with a copy of each tensor on `device`."""
    if isinstance(value, torch.device):
        return torch.device(device)
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().to(device).requires_grad_(value.requires_grad)


def run(operation: Any, sample: Any, device: str, needs_gradients: bool) -> list[Any]:
    """Return the results, and the gradients of all inputs that have one."""
    arguments = tree_map(lambda value: on(device, value), (sample.input, sample.args, sample.kwargs))
    kwargs = arguments[2] | ({"device": device} if "device" in arguments[2] else {})
    results: list[Any] = tree_leaves(operation(arguments[0], *arguments[1], **kwargs))
    if not needs_gradients:
        return results
    differentiable = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    inputs = [each for each in tree_leaves(arguments) if isinstance(each, torch.Tensor) and each.requires_grad]
    if not differentiable or not inputs:
        return results
    total = sum(each.abs().sum() for each in differentiable)
    return [*results, *torch.autograd.grad(total, inputs, allow_unused=True)]


def compare(got: list[Any], expected: list[Any], tolerance: dict[str, float]) -> None:
    """Raise AssertionError if they differ."""
    for mine, its in zip(got, expected, strict=True):
        if isinstance(its, torch.Tensor):
            torch.testing.assert_close(mine.cpu(), its, **tolerance, equal_nan=True, check_stride=False)
        else:
            assert mine == its or its != its, (mine, its)


def main(name: str, needs_gradients: bool) -> None:
    """Tell how many samples there were, and the operations that differ."""
    dtype = getattr(torch, name)
    most = 2 if dtype is torch.float32 else 1  # samples: what they do differently does not depend on the type
    left_out = {*RANDOM, *UNINITIALIZED, *DIFFERENT, *(WIDER if dtype is torch.bfloat16 else ())}
    tolerance = ROUNDED if dtype is torch.bfloat16 and needs_gradients else TOLERANCE
    count, differ = 0, {}
    for operation in op_db:
        known = dtype in operation.supported_dtypes("cpu") and dtype in operation.supported_dtypes("cuda")
        if operation.name in left_out or not known or (needs_gradients and not operation.supports_autograd):
            continue
        samples = operation.sample_inputs("cpu", dtype, requires_grad=needs_gradients)
        for sample in itertools.islice(samples, most):
            try:
                expected = run(operation, sample, "cpu", needs_gradients)
            except (RuntimeError, NotImplementedError):
                continue  # a sample that the host refuses
            count += 1
            try:
                compare(run(operation, sample, "cuda", needs_gradients), expected, tolerance)
            except Exception as problem:  # whatever it is, it is told
                differ[operation.formatted_name] = f"{type(problem).__name__}: {problem}"[:200]
    tell(samples=count, differ=differ)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1], "gradients" in sys.argv)
