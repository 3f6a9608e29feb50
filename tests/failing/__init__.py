"""One call of NCCL, CUDA or the store fails, on one rank."""
