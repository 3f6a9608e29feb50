-- severity: error
-- sentence: Events are missing from a log: what balances in it was not checked.
-- advice: Let the log keep up: write it to a faster disk (SYMM_REGISTER_LOG), or register less with SYMM_REGISTER_SEGMENTS=from-20MiB.
-- divergence: never
-- Those that found the ring full leave a gap, unless nothing was logged after them; a larger gap has another reason.
WITH dropped AS (
    SELECT process, greatest(coalesce(sum(count), 0), any_value(ring_dropped)) AS dropped, coalesce(min(ns), any_value(last_ns)) AS ns
    FROM process LEFT JOIN (FROM event WHERE event = 'log.dropped') AS said USING (process) GROUP BY process
    HAVING greatest(coalesce(sum(count), 0), any_value(ring_dropped)) > 0)
SELECT process, [rank] AS ranks, NULL AS comm, coalesce(gap.ns, dropped.ns) AS ns, before AS seq,
       format('{}: ', who(rank, process)) || CASE
       WHEN dropped IS NULL THEN format('{} missing from {}', plural(missing, 'event'), file)
       WHEN missing > dropped THEN format('{} missing from {}, of which {} found the ring full', plural(missing, 'event'),
                                          file, dropped)
       ELSE format('{} found the ring full and {} dropped', plural(dropped, 'event'), CASE dropped WHEN 1 THEN 'was' ELSE 'were' END)
       END || coalesce(format(', the first between {} and {}', before, next), '') AS message
FROM gap FULL JOIN dropped USING (process) JOIN process USING (process) WHERE log_stopped IS NULL;
