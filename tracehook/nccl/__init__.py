"""What is known of NCCL beforehand: which path it takes for a collective, by its version. No torch."""
