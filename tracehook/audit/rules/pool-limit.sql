-- severity: warning
-- sentence: SYMM_REGISTER_POOL_LIMIT refused memory to a symmetric allocation.
SELECT process, [rank] AS ranks, NULL AS comm, min(ns) AS ns, min(seq) AS seq,
       format('{} was refused {} of symmetric memory on device {}, {} in all, with {} held', who(rank, process),
              in_bytes(arg_min(wanted, seq)), device, CASE count(*) WHEN 1 THEN 'once' ELSE format('{} times', count(*)) END, in_bytes(arg_min(held, seq))) AS message
FROM event WHERE event = 'pool.limit' GROUP BY process, rank, device;
