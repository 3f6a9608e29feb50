"""Which job of which framework is rehearsed, how a user would start it, and which findings are the framework's own."""

from __future__ import annotations

from dataclasses import dataclass, field

TORCHRUN = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
ACCELERATE = ("accelerate", "launch", "--num_machines", "1", "--num_processes", "4", "--mixed_precision", "bf16")


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    package: str  # whose version is shown, as pip names it
    name: str  # of the row
    launcher: tuple[str, ...]
    job: str  # in jobs/
    arguments: tuple[str, ...] = ()
    findings: dict[str, str] = field(default_factory=dict)
    """Rules of the audit that this framework itself breaks, and why."""


CASES = (
    Case("megatron-core", "GPT, TP 2 x PP 2", TORCHRUN, "megatron_gpt.py"),
    Case("torch", "FSDP2 2 x TP 2, eager", TORCHRUN, "fsdp2_decoder.py", ("eager",)),
    Case("torch", "FSDP2 2 x TP 2, compiled", TORCHRUN, "fsdp2_decoder.py", ("compiled",)),
    Case(
        "torchtitan",
        "Llama, FSDP2 2 x PP 2",
        TORCHRUN,
        "torchtitan_llama.py",
        (
            *("--model.name", "llama3", "--model.flavor", "debugmodel"),
            *("--training.seq_len", "64", "--training.local_batch_size", "4", "--training.steps", "3"),
            *("--parallelism.data_parallel_shard_degree", "2", "--parallelism.pipeline_parallel_degree", "2"),
        ),
    ),
    Case("deepspeed", "GPT-2, ZeRO-3", TORCHRUN, "deepspeed_zero3.py"),
    Case("accelerate", "own loop, DDP", (*ACCELERATE, "--multi_gpu"), "accelerate_loop.py"),
    Case("accelerate", "own loop, FSDP2", (*ACCELERATE, "--use_fsdp", "--fsdp_version", "2"), "accelerate_loop.py"),
    Case("transformers", "Trainer, GPT-2", TORCHRUN, "hf_trainer.py"),
    Case("lightning", "Trainer, DDP", ("python",), "lightning_fit.py"),
    Case(
        "ray",
        "Ray Train, DDP",
        ("python",),
        "ray_train.py",
        findings={"no-end": "Ray kills its workers"},
    ),
)
