"""Tests with the real PyTorch on emulated devices; a job that breaks one of NCCL's rules ends with status 86."""
