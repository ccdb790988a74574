"""The peers of single kernels on one GPU: cuBLAS, torch._grouped_mm, cuDNN's attention, at OLMoE-1B-7B's sizes with
16,384 tokens. Prints TFLOP/s, medians of 12 after 3."""
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def rate(name, flops, f):
    times = []
    for i in range(15):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(a.elapsed_time(b) * 1e-3)
    seconds = statistics.median(times)
    print(f"{name:34} {seconds * 1e6:9.1f} us {flops / seconds / 1e12:6.1f} TFLOP/s", flush=True)


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


T, D, F_, E, R, V = 16384, 2048, 1024, 64, 131072, 50304
x, w = normal(T, D), normal(D, D)
rate("cuBLAS linear", 2 * T * D * D, lambda: x @ w.t())
rate("cuBLAS linear_dx", 2 * T * D * D, lambda: x @ w)
rate("cuBLAS linear_dw (bf16 out)", 2 * T * D * D, lambda: x.t() @ x)
h = normal(V, D)
rate("cuBLAS head, 2048 tokens", 2 * 2048 * V * D, lambda: x[:2048] @ h.t())
xr, wu, wd, hr = normal(R, D), normal(E, D, F_), normal(E, F_, D), normal(R, F_)
off = torch.arange(1, E + 1, device="cuda", dtype=torch.int32) * (R // E)
rate("_grouped_mm up", 2 * R * D * F_, lambda: torch._grouped_mm(xr, wu, offs=off))
rate("_grouped_mm down", 2 * R * D * F_, lambda: torch._grouped_mm(hr, wd, offs=off))
rate("_grouped_mm dw (bf16 out)", 2 * R * D * F_, lambda: torch._grouped_mm(xr.t(), hr, offs=off))
q, k, v = (normal(4, 16, 4096, 128).requires_grad_() for _ in range(3))
flops = 2 * 2 * 4 * 16 * 4096 * 4096 * 128 / 2
for name, backend in ("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION):
    with sdpa_kernel(backend):
        rate(f"{name} attention", flops, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        g = torch.randn_like(o)
        # counted as the trainer's bench does: twice the forward's
        rate(f"{name} attention, backward", 2 * flops,
             lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))
