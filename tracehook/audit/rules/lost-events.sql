-- severity: error
-- sentence: Events are missing from a log: what balances in it was not checked.
WITH gap AS (
    SELECT process, seq - before - 1 AS missing, before, seq, ns
    FROM (SELECT process, seq, ns, coalesce(lag(seq) OVER (PARTITION BY process ORDER BY seq), 0) AS before
          FROM event WHERE seq IS NOT NULL)
    WHERE seq > before + 1)
SELECT gap.process, [any_value(rank)] AS ranks, NULL AS comm, min(ns) AS ns, min(seq) AS seq,
       format('{}: {} missing from {}, first between {} and {}', who(any_value(rank), gap.process),
              plural(sum(missing), 'event'), any_value(file), arg_min(before, seq), min(seq)) AS message
FROM gap JOIN process USING (process) GROUP BY gap.process
UNION ALL
SELECT process, [any_value(event.rank)], NULL, min(ns), NULL,
       format('{}: {} found the ring full and were dropped', who(any_value(event.rank), process), plural(sum(count), 'event'))
FROM event WHERE event = 'log.dropped' GROUP BY process;
