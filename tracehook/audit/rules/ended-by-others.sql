-- severity: warning
-- sentence: Another process ended this one by a signal, as launchers do with the ranks that are left after a failure.
-- advice: Look at the findings before this one: they are the cause; if there are none, a scheduler or a person ended the job.
-- divergence: unless all
-- The launchers of several hosts do the same; of two processes on one host one may be a person who ended the first rank.
WITH ended AS (
    SELECT *, min(sender) OVER (PARTITION BY signal, host) < max(sender) OVER (PARTITION BY signal, host) AS by_several
    FROM process WHERE NOT ended AND signal IN (1, 2, 15) AND sender IS NOT NULL AND sender != pid
      AND (used_cuda OR rank IS NOT NULL) AND NOT helper)
SELECT CASE WHEN count(*) = 1 THEN any_value(process) END AS process, list(rank ORDER BY rank) AS ranks, NULL AS comm,
       max(signal_ns + shift_ns) AS ns, NULL AS seq,
       format('{} ended by signal {}, which {} sent', CASE WHEN count(rank) = 0 THEN plural(count(*), 'process')
                  ELSE rank_list(list(rank)) END || CASE WHEN count(*) = 1 THEN ' was' ELSE ' were' END, signal,
              CASE WHEN count(DISTINCT host) > 1 THEN format('a process on each of {} hosts', count(DISTINCT host))
                   ELSE format('process {}', any_value(sender)) END) AS message
FROM ended GROUP BY signal, CASE WHEN by_several THEN sender END, CASE WHEN by_several THEN host END;
