"""Attention by the kernels that a program names, cuDNN's before others, or alone."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from common import tell

torch.manual_seed(0)
host = torch.randn(3, 2, 4, 8, 16, dtype=torch.bfloat16)  # query, key and value of 2 x 4 heads, 8 tokens
inputs = host.cuda().requires_grad_()
with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
    out = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=True)
out.sum().backward()
expected = scaled_dot_product_attention(host[0], host[1], host[2], is_causal=True)
tell(
    differs=(out.detach().cpu() - expected).abs().max().item(),
    gradient=inputs.grad.isfinite().all().item(),
)
try:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        scaled_dot_product_attention(*inputs)
except RuntimeError as problem:
    tell(alone=str(problem))
