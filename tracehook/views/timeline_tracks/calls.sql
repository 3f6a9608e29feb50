-- Calls into NCCL by which memory is registered. `us` is the time before `ns` that one took, or a batch of them.
SELECT process, comm_id, event,
       if(us > 0 AND us < 1e12, greatest(ns - CAST(us * 1000 AS BIGINT), process.first_ns), ns) AS start, ns, $details
FROM event JOIN process USING (process)
WHERE process BETWEEN ? AND ? AND comm_id IS NOT NULL
  AND event IN ('register.local', 'deregister.local', 'register.window', 'deregister.window', 'register.batch')
ORDER BY process, comm_id, start, ns DESC, seq
