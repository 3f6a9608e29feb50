-- severity: error
-- sentence: The ranks do not run the same thing: versions or settings differ.
-- advice: Start all ranks from one environment: the same container, and the same variables.
-- divergence: always
FROM unlike(['tracehook', 'torch', 'cuda', 'nccl', 'allocator', 'policy', 'local', 'segments', 'segment_memory', 'guard', 'integrations', 'program']);
