"""vLLM's whole engine, unchanged from its wheel, serves a tiny Llama from token ids; one line of JSON says how it went.

The model is written here: its configuration and, unless `--load-format dummy`, random weights of a fixed seed. vLLM's
own dummy weights are so small that the layers hardly change the tokens, so that a wrong all-reduce could go unseen.
Each batch has the same prompts in every run. The tokens are greedy, so equal settings must give equal tokens.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

VOCABULARY = 32000
PROMPT = 24
CAPTURED = [1, 2, 4, 8, 16, 32, 64, 128]
CONFIGURATION: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_bias": False,
    "mlp_bias": False,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",  # torch's symmetric memory, with NVLink multicast
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


class Worker:
    """What each worker of vLLM gets on top (`worker_extension_cls`)."""

    def where(self) -> dict[str, object]:
        """Return this worker's process, its device's memory, and what tracehook counts in it."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found: dict[str, object] = {
            "pid": os.getpid(),
            "rank": self.rank,  # type: ignore[attr-defined]
            "used": total - free,
            "reserved": torch.cuda.memory_reserved(),
            "allocated": torch.cuda.memory_allocated(),
            "tracehook": None,
        }
        if "tracehook" in sys.modules and os.environ.get("SYMM_REGISTER_HOOK") == "1":
            import tracehook

            found["tracehook"] = json.loads(json.dumps(tracehook.status(), default=str))
        return found

    def switch(self, on: bool) -> None:
        """Switch tracehook on or off in this worker."""
        import tracehook

        (tracehook.enable if on else tracehook.disable)()


def symmetric_for_two() -> None:
    """Let vLLM use NCCL's symmetric memory for all sizes, also with two ranks: its table begins at four."""
    from vllm.distributed.device_communicators import all_reduce_utils

    table = all_reduce_utils.NCCL_SYMM_MEM_ALL_REDUCE_CONFIG
    table["min_world_size"] = 2
    table["custom_ar_preferred_ranges"].update({2: (1 << 40, 1 << 41), 4: (1 << 40, 1 << 41)})


def emulated_runtime() -> None:
    """Let vLLM's CudaRTLibrary call the emulated runtime in a rehearsal: it opens the file of the loaded one."""
    from vllm.distributed.device_communicators import cuda_wrapper

    preloaded = os.environ["LD_PRELOAD"].replace(":", " ").split()
    os.environ["VLLM_CUDART_SO_PATH"] = next(each for each in preloaded if "cudart" in each)
    cuda_wrapper.find_loaded_library = lambda _: None
    library = cuda_wrapper.CudaRTLibrary  # the emulation lacks one function, which nobody calls
    library.exported_functions = [each for each in library.exported_functions if each.name != "cudaDeviceReset"]


if __name__ == "vllm_engine":  # workers import this module so, which know it as their extension
    if os.environ.get("TEST_SYMMETRIC_ALWAYS") == "1":
        symmetric_for_two()
    if os.environ.get("TEST_EMULATED"):
        emulated_runtime()


def model(folder: Path, seed: int) -> Path:
    """Write the model once: its configuration, and weights that make the layers count."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGURATION))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    weights = folder / "model.safetensors"
    if not weights.exists():
        import torch
        from safetensors.torch import save_file

        make = torch.Generator().manual_seed(seed)
        hidden, inner = CONFIGURATION["hidden_size"], CONFIGURATION["intermediate_size"]
        keys = CONFIGURATION["num_key_value_heads"] * CONFIGURATION["head_dim"]

        def random(rows: int, columns: int, scale: float) -> torch.Tensor:
            return (torch.randn(rows, columns, generator=make) * scale).to(torch.bfloat16)

        tensors = {
            "model.embed_tokens.weight": random(VOCABULARY, hidden, 1.0),
            "lm_head.weight": random(VOCABULARY, hidden, 4.0 * hidden**-0.5),
            "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        }
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for layer in range(CONFIGURATION["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            for name, (rows, columns) in shapes.items():
                tensors[f"{at}.{name}.weight"] = random(rows, columns, 1.5 * columns**-0.5)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{at}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        part = weights.with_name(f"part.{os.getpid()}")
        save_file(tensors, part, metadata={"format": "pt"})
        part.rename(weights)
    return folder


def prompts(batch: int) -> list[dict[str, list[int]]]:
    """Return that many prompts of token ids, the same in every run."""
    import random

    made = random.Random(batch)
    return [{"prompt_token_ids": [made.randrange(3, VOCABULARY) for _ in range(PROMPT)]} for _ in range(batch)]


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    read = argparse.ArgumentParser()
    read.add_argument("--model", type=Path, default=Path("/tmp/tiny-llama"))
    read.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    read.add_argument("--tp", type=int, default=2)
    read.add_argument("--batches", default="1,16,128")
    read.add_argument("--tokens", type=int, default=64)
    read.add_argument("--repeats", type=int, default=5)
    read.add_argument("--cycles", type=int, default=3)
    read.add_argument("--kv-mib", type=int, default=1024)
    read.add_argument("--eager", action="store_true")
    read.add_argument("--sleep", action="store_true", help="enable_sleep_mode, and cycles of sleep and wake_up")
    read.add_argument("--level", type=int, default=1)
    read.add_argument("--symm", action="store_true", help="VLLM_USE_NCCL_SYMM_MEM, for all sizes")
    read.add_argument("--no-custom", action="store_true", help="disable_custom_all_reduce")
    read.add_argument("--core-process", action="store_true", help="the engine's core in a process of its own (default)")
    read.add_argument("--toggle", type=int, default=0, help="so many pairs of tracehook on and off, in one engine")
    read.add_argument("--kill-after", type=float, help="SIGKILL the last worker that many seconds after the warm-up")
    return read.parse_args()


def generate(llm: object, batch: int, tokens: int) -> tuple[str, float]:
    """Generate for a batch; return what the tokens are, and the seconds."""
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    outputs = llm.generate(prompts(batch), greedy, use_tqdm=False)  # type: ignore[attr-defined]
    seconds = time.perf_counter() - begin
    found = [list(output.outputs[0].token_ids) for output in outputs]
    return digest(found, tokens), seconds


def digest(found: list[list[int]], tokens: int) -> str:
    """Return what the tokens of a batch are, if they can be right."""
    if any(len(each) != tokens for each in found):
        raise RuntimeError(f"lengths {sorted({len(each) for each in found})}, expected {tokens}")
    if len(found) > 1 and len({tuple(each) for each in found}) == 1 and not os.environ.get("TEST_EMULATED"):
        raise RuntimeError(f"all {len(found)} prompts gave the same tokens")
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def workers(llm: object) -> list[dict[str, object]]:
    """Ask every worker where it is."""
    return llm.collective_rpc("where")  # type: ignore[attr-defined,no-any-return]


def timed(run: Callable[[int, int], tuple[str, float]], options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Generate each batch several times; the first time warms up and is not counted."""
    found: dict[str, dict[str, object]] = {}
    for batch in map(int, options.batches.split(",")):
        runs = [run(batch, options.tokens) for _ in range(options.repeats + 1)]
        seconds = [each for _, each in runs[1:]]
        found[str(batch)] = {
            "sha": sorted({sha for sha, _ in runs}),
            "seconds": [round(each, 5) for each in seconds],
            "tokens_per_second": [round(batch * options.tokens / each, 1) for each in seconds],
            "ms_per_token": [round(1000 * each / options.tokens, 4) for each in seconds],
        }
    return found


def toggled(llm: object, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Generate with tracehook on and off in turn, in one engine; return the tokens, and the ratios of the times.

    A ratio is that of two neighbours: the speed of the machine changes less between them than between two engines.
    """
    found: dict[str, dict[str, object]] = {}
    for batch in map(int, options.batches.split(",")):
        shas, pairs = set(), []
        for turn in range(options.toggle):
            seconds = {}
            for on in ((False, True), (True, False))[turn % 2]:
                llm.collective_rpc("switch", args=(on,))  # type: ignore[attr-defined]
                runs = [generate(llm, batch, options.tokens) for _ in range(options.repeats + 1)]
                shas |= {sha for sha, _ in runs}
                seconds[on] = statistics.median(each for _, each in runs[1:])
            pairs.append(seconds)
        ratios = [each[True] / each[False] for each in pairs]
        quarters = [round(each, 3) for each in statistics.quantiles(ratios, n=4)]
        found[str(batch)] = {"sha": sorted(shas), "seconds": pairs, "on / off": quarters}
        print(
            f"TOGGLED batch {batch}: on / off {quarters[1]} [{quarters[0]} .. {quarters[2]}], n {len(pairs)}",
            flush=True,
        )
    return found


def slept(llm: object, options: argparse.Namespace) -> list[dict[str, object]]:
    """Sleep and wake up; say the memory of each device before, asleep and after, and the tokens after."""
    found = []
    largest = max(map(int, options.batches.split(",")))
    for _ in range(options.cycles):
        before = [each["used"] for each in workers(llm)]
        begin = time.perf_counter()
        llm.sleep(level=options.level)  # type: ignore[attr-defined]
        down = time.perf_counter()
        asleep = [each["used"] for each in workers(llm)]
        again = time.perf_counter()
        llm.wake_up()  # type: ignore[attr-defined]
        up = time.perf_counter()
        if options.level == 2:
            llm.collective_rpc("reload_weights")  # type: ignore[attr-defined]
        found.append(
            {
                "before": before,
                "asleep": asleep,
                "after": [each["used"] for each in workers(llm)],
                "sleep_seconds": round(down - begin, 4),
                "wake_seconds": round(up - again, 4),
                "sha": [generate(llm, batch, options.tokens)[0] for batch in (1, largest)],
            }
        )
    return found


def main() -> None:
    """Start the engine, generate, sleep where wanted, and print one line of JSON, which begins with RESULT."""
    options = arguments()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if options.core_process else "0"
    os.environ["VLLM_USE_NCCL_SYMM_MEM"] = str(int(options.symm))
    os.environ["TEST_SYMMETRIC_ALWAYS"] = str(int(options.symm))
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    folder = model(options.model, seed=0)
    begin = time.perf_counter()
    from vllm import LLM, __version__

    llm = LLM(
        model=str(folder),
        load_format=options.load_format,
        skip_tokenizer_init=True,
        tensor_parallel_size=options.tp,
        distributed_executor_backend="mp",
        dtype="bfloat16",
        seed=0,
        max_model_len=512,
        max_num_seqs=128,
        max_num_batched_tokens=4096,
        gpu_memory_utilization=0.3,
        kv_cache_memory_bytes=options.kv_mib << 20,
        enable_prefix_caching=False,
        enforce_eager=options.eager,
        compilation_config={
            "mode": 0,  # no torch.compile
            "cudagraph_mode": "NONE" if options.eager else "FULL_DECODE_ONLY",
            **({} if options.eager else {"cudagraph_capture_sizes": CAPTURED}),
        },
        enable_flashinfer_autotune=False,
        disable_custom_all_reduce=options.no_custom,
        enable_sleep_mode=options.sleep,
        worker_extension_cls="vllm_engine.Worker",
        disable_log_stats=True,
    )
    started = time.perf_counter() - begin
    result: dict[str, object] = {"vllm": __version__, "start_seconds": round(started, 2), "options": vars(options)}
    generate(llm, 1, options.tokens)
    print("STARTED", round(started, 2), json.dumps(workers(llm)), flush=True)
    if options.kill_after is not None:
        victim = workers(llm)[-1]
        timer = threading.Timer(options.kill_after, os.kill, (victim["pid"], signal.SIGKILL))
        timer.start()
        result["killed"] = victim
        print("KILLED", json.dumps(victim), flush=True)
        options.repeats = 1000  # it ends by the kill
    try:
        if options.toggle:
            result["toggled"] = toggled(llm, options)
        result["batches"] = timed(partial(generate, llm), options)
        if options.sleep:
            result["sleep"] = slept(llm, options)
        result["workers"] = workers(llm)
    except Exception as error:
        if options.kill_after is None:
            raise
        result["error"] = f"{type(error).__name__}: {error}"[:300]
    print("RESULT", json.dumps(result, default=str), flush=True)
    if options.kill_after is None:
        shutdown = getattr(llm.llm_engine.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()


if __name__ == "__main__":
    main()
