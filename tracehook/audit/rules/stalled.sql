-- severity: error
-- sentence: A call into NCCL did not come back for a long time.
SELECT process, [rank] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       CASE event WHEN 'register.stalled' THEN
           format('{} waited {} or more in NCCL for a window on pool segment {} ({}) with communicator {}: another rank did not come',
                  who(rank, process), in_seconds(max(us) * 1e3), any_value(pool_segment), in_bytes(any_value(size)), comm)
       ELSE format('{} could not free segment {} at {}: a call into NCCL on communicator {} did not come back',
                   who(rank, process), any_value(segment), any_value(addr), comm) END AS message
FROM event WHERE event IN ('register.stalled', 'deregister.stalled') GROUP BY process, rank, comm, event, coalesce(segment, pool_segment);
