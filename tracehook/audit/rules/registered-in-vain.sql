-- severity: warning
-- sentence: Segments were registered with a communicator, and NCCL cannot use the registrations, or did not: they cost time at each call.
-- advice: Set SYMM_REGISTER_MEMORY=vmm on all ranks, so that NCCL can map the segments into other processes, or let nobody register them (unset TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK; torch's group nccl2 has no switch).
-- divergence: unless all
-- tracehook itself registers what no other process can map with SYMM_REGISTER_LOCAL=all alone: whoever sets that knows it, and the
-- last line of the audit counts them.
WITH vain AS (
    SELECT process, rank, comm, ns, seq,
           CASE WHEN event = 'register.unused' THEN 'NCCL did not use one in a call that could'
                WHEN NOT coalesce(effective, true) THEN 'NCCL gave no handle: NCCL_LOCAL_REGISTER=0, or nothing that it could use'
                WHEN EXISTS (FROM segment s WHERE s.process = event.process AND s.segment = event.segment AND s.memory_kind = 'pausable')
                THEN 'a library can take the memory away'
                ELSE 'no other process can map the memory' END AS why
    FROM event WHERE event = 'register.unused'
       OR event = 'register.local' AND ok AND (expected = 'none' AND observed OR NOT coalesce(effective, true)))
SELECT process, [any_value(rank)] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       format('{} made {} with {} that NCCL cannot use ({})', who(any_value(rank), process), plural(count(*), 'registration'),
              group_of(comm), why) AS message
FROM vain GROUP BY process, comm, why;
