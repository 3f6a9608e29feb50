"""SGLang's whole engine serves the tiny Llama of vllm_engine.py; one line of JSON (RESULT) says how it went."""

import argparse
import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import vllm_engine

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "SGLANG_USE_TORCH_SYMM_MEM": "0",
}


def memory() -> list[int]:
    """Return the bytes in use on each device, as NVML says."""
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    found = [int(each) for each in visible if each] or range(pynvml.nvmlDeviceGetCount())
    return [pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(each)).used for each in found]


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    read = argparse.ArgumentParser()
    read.add_argument("--model", type=Path, default=Path("/tmp/tiny-llama"))
    read.add_argument("--tp", type=int, default=2)
    read.add_argument("--batches", default="1,16,128")
    read.add_argument("--tokens", type=int, default=64)
    read.add_argument("--repeats", type=int, default=5)
    read.add_argument("--cycles", type=int, default=3)
    read.add_argument("--kv-tokens", type=int, default=65536)
    read.add_argument("--eager", action="store_true")
    read.add_argument("--piecewise", action="store_true", help="CUDA graphs in pieces for prefill, too")
    read.add_argument("--sleep", action="store_true", help="enable_memory_saver, and cycles of release and resume")
    read.add_argument("--symm", action="store_true", help="enable_symm_mem")
    read.add_argument("--no-custom", action="store_true", help="disable_custom_all_reduce")
    read.add_argument("--deterministic", action="store_true", help="enable_deterministic_inference")
    read.add_argument("--attention", default="triton")
    read.add_argument("--kill-after", type=float, help="SIGKILL a scheduler that many seconds after the warm-up")
    return read.parse_args()


def generate(engine: object, batch: int, tokens: int) -> tuple[str, float]:
    """Generate for a batch; return what the tokens are, and the seconds."""
    ids = [each["prompt_token_ids"] for each in vllm_engine.prompts(batch)]
    greedy = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    begin = time.perf_counter()
    outputs = engine.generate(input_ids=ids, sampling_params=greedy)  # type: ignore[attr-defined]
    seconds = time.perf_counter() - begin
    found = [list(output["output_ids"]) for output in outputs]
    return vllm_engine.digest(found, tokens), seconds


def slept(engine: object, options: argparse.Namespace) -> list[dict[str, object]]:
    """Release and resume the memory; say the memory of each device before, asleep and after, and the tokens after."""
    found = []
    largest = max(map(int, options.batches.split(",")))
    for _ in range(options.cycles):
        time.sleep(1)  # the scheduler refuses while the last batch is on its way out
        before, begin = memory(), time.perf_counter()
        engine.release_memory_occupation()  # type: ignore[attr-defined]
        down, asleep, again = time.perf_counter(), memory(), time.perf_counter()
        engine.resume_memory_occupation()  # type: ignore[attr-defined]
        up = time.perf_counter()
        found.append(
            {
                "before": before,
                "asleep": asleep,
                "after": memory(),
                "sleep_seconds": round(down - begin, 4),
                "wake_seconds": round(up - again, 4),
                "sha": [generate(engine, batch, options.tokens)[0] for batch in (1, largest)],
            }
        )
    return found


def schedulers() -> list[int]:
    """Return the processes of the engine that hold a device."""
    import psutil

    return [each.pid for each in psutil.Process().children(recursive=True) if "scheduler" in " ".join(each.cmdline())]


def main() -> None:
    """Start the engine, generate, sleep where wanted, and print one line of JSON."""
    options = arguments()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    folder = vllm_engine.model(options.model, seed=0)
    begin = time.perf_counter()
    import sglang

    engine = sglang.Engine(
        model_path=str(folder),
        skip_tokenizer_init=True,
        tp_size=options.tp,
        dtype="bfloat16",
        random_seed=0,
        context_length=512,
        max_running_requests=128,
        max_total_tokens=options.kv_tokens,
        chunked_prefill_size=4096,
        mem_fraction_static=0.3,
        disable_radix_cache=True,
        attention_backend=options.attention,
        sampling_backend="pytorch",
        grammar_backend="none",
        cuda_graph_backend_decode="disabled" if options.eager else "full",
        cuda_graph_backend_prefill="tc_piecewise" if options.piecewise else "disabled",
        cuda_graph_tc_compiler="eager",
        cuda_graph_bs_decode=None if options.eager else vllm_engine.CAPTURED,
        disable_custom_all_reduce=options.no_custom,
        enable_symm_mem=options.symm,
        enable_memory_saver=options.sleep,
        enable_weights_cpu_backup=options.sleep,  # or the weights have to be loaded again after a resume
        enable_deterministic_inference=options.deterministic,
        skip_server_warmup=True,
        log_level="info",
    )
    started = time.perf_counter() - begin
    result: dict[str, object] = {"sglang": sglang.__version__, "start_seconds": round(started, 2)}
    result["options"] = vars(options)
    generate(engine, 1, options.tokens)
    print("STARTED", round(started, 2), schedulers(), memory(), flush=True)
    if options.kill_after is not None:
        victim = schedulers()[-1]
        threading.Timer(options.kill_after, os.kill, (victim, signal.SIGKILL)).start()
        print("KILLED", victim, flush=True)
        options.repeats = 1000
    try:
        result["batches"] = vllm_engine.timed(partial(generate, engine), options)
        if options.sleep:
            result["sleep"] = slept(engine, options)
        result["memory"] = memory()
    except Exception as error:
        if options.kill_after is None:
            raise
        result["error"] = f"{type(error).__name__}: {error}"[:300]
    print("RESULT", json.dumps(result, default=str), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
