-- severity: warning
-- sentence: Another process ended this one by a signal, as launchers do with the ranks that are left after a failure.
-- advice: Look at the findings before this one: they are the cause; if there are none, a scheduler or a person ended the job.
-- divergence: unless all
SELECT CASE WHEN count(*) = 1 THEN any_value(process) END AS process, list(rank ORDER BY rank) AS ranks, NULL AS comm,
       max(signal_ns + shift_ns) AS ns, NULL AS seq,
       format('{} ended by signal {}, which process {} sent', CASE WHEN count(rank) = 0 THEN plural(count(*), 'process')
                  ELSE rank_list(list(rank)) END || CASE WHEN count(*) = 1 THEN ' was' ELSE ' were' END,
              signal, sender) AS message
FROM process WHERE NOT ended AND signal IN (1, 2, 15) AND sender IS NOT NULL AND sender != pid
  AND (used_cuda OR rank IS NOT NULL) AND NOT helper
GROUP BY signal, sender;
