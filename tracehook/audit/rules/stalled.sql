-- severity: error
-- sentence: A call into NCCL did not come back for a long time.
-- advice: Look at the ranks that did not come, with `tracehook report DIR`.
-- divergence: always
-- needs: register.stalled, deregister.stalled
-- A window waits for all ranks: for those that have not come to as many of them, and those that were refused this one.
WITH attempt AS (
    SELECT process, comm, comm_id, ns, ok, coalesce(gone.windows, 0) + row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth
    FROM event LEFT JOIN gone USING (process, comm_id) WHERE event = 'register.window'),
window_wait AS (
    SELECT process, comm, comm_id, any_value(rank) AS rank, any_value(comm_rank) AS comm_rank, any_value(size) AS size, pool_segment,
           min(ns) AS ns, min(seq) AS seq, max(us) AS us,
           1 + (SELECT count(*) FROM event e WHERE e.process = stall.process AND e.comm_id = stall.comm_id
                AND e.event = 'register.window' AND e.seq < min(stall.seq))
             + coalesce((SELECT g.windows FROM gone g WHERE g.process = stall.process AND g.comm_id = stall.comm_id), 0) AS nth
    FROM event AS stall WHERE event = 'register.stalled' GROUP BY process, comm, comm_id, pool_segment),
awaited AS (
    SELECT wait.process, wait.comm_id, wait.nth, list(coalesce(other.rank, other.comm_rank) ORDER BY other.comm_rank) AS ranks
    FROM window_wait AS wait JOIN communicator AS other USING (comm)
    WHERE NOT EXISTS (FROM attempt a WHERE a.process = other.process AND a.comm_id = other.comm_id AND a.nth = wait.nth
                      AND (a.ok OR a.ns > wait.ns))
      AND NOT EXISTS (FROM window_wait w WHERE w.process = other.process AND w.comm_id = other.comm_id AND w.nth = wait.nth)
    GROUP BY wait.process, wait.comm_id, wait.nth)
SELECT process, coalesce(awaited.ranks, [rank]) AS ranks, comm, ns, seq,
       format('{} waited {} or more in NCCL for a window on pool segment {} ({}) with {}: {} did not come',
              who(rank, process), in_seconds(us * 1e3), pool_segment, in_bytes(size), group_of(comm),
              coalesce(rank_list(awaited.ranks), 'another rank')) AS message
FROM window_wait LEFT JOIN awaited USING (process, comm_id, nth)
UNION ALL
SELECT process, [rank], comm, min(ns), min(seq),
       format('{} could not free segment {} at {}: a call into NCCL on {} did not come back',
              who(rank, process), segment, any_value(addr), group_of(comm))
FROM event WHERE event = 'deregister.stalled' GROUP BY process, rank, comm, segment;
