-- severity: warning
-- sentence: SYMM_REGISTER_POOL_LIMIT refused memory to a symmetric allocation.
-- advice: Raise SYMM_REGISTER_POOL_LIMIT, or give unused memory back with tracehook.trim(group) on all ranks.
-- divergence: unless all
-- needs: pool.limit
SELECT process, [rank] AS ranks, NULL AS comm, min(ns) AS ns, min(seq) AS seq,
       format('{} was refused {} of symmetric memory, {}, with {} held', who(rank, process), in_bytes(arg_min(wanted, seq)),
              CASE count(*) WHEN 1 THEN 'once' ELSE format('the first of {} times', count(*)) END,
              in_bytes(arg_min(held, seq))) AS message
FROM event WHERE event = 'pool.limit' GROUP BY process, rank;
