-- One row a number of a pool, over the processes that have it, the fullest first.
WITH change AS (
    SELECT process, pool, born_ns AS ns, size::DOUBLE AS delta FROM pool_segment WHERE born_ns IS NOT NULL
    UNION ALL SELECT process, pool, freed_ns, -size::DOUBLE FROM pool_segment WHERE freed_ns IS NOT NULL),
level AS (
    SELECT process, pool, ns, sum(sum(delta)) OVER (PARTITION BY process, pool ORDER BY ns) AS held
    FROM change GROUP BY process, pool, ns),
peak AS (
    SELECT process, pool, max(held) AS peak, arg_max(held, ns) AS last FROM level GROUP BY ALL),
used AS (
    SELECT process, pool, count(*) FILTER (event = 'pool.grow') AS grown,
           count(*) FILTER (event = 'segment.retire') AS retired, count(*) FILTER (event = 'segment.reuse') AS reused,
           count(*) FILTER (event = 'register.window' AND ok AND coalesce(effective, true)) AS windows
    FROM event WHERE pool IS NOT NULL GROUP BY ALL)
SELECT pool, count(*) AS processes, median(grown) AS grown, median(retired) AS retired, median(reused) AS reused,
       median(windows) AS windows, min(peak) AS low, median(peak) AS mid, max(peak) AS high, median(last) AS last,
       arg_max(rank, peak) AS fullest, count(*) OVER () AS all_rows
FROM peak JOIN used USING (process, pool) JOIN process USING (process)
GROUP BY pool ORDER BY high DESC, pool
