-- severity: error
-- sentence: An exception ended a process, or the program caught it and ended with a status that is not 0.
-- advice: Read its traceback in the job's stderr, and mend that first: what other ranks and later findings say may follow from it.
-- divergence: unless alike
SELECT process, [rank] AS ranks, NULL AS comm,
       -- Rank 0 tells which rank did not come to a monitored barrier, and fails; that ends it on the others.
       CASE WHEN message LIKE '%reached monitoredBarrier, but received errors%' THEN greatest(ended_ns,
                (SELECT max(ended_ns) + 1 FROM process WHERE message LIKE '%failed to pass monitoredBarrier%'))
            ELSE ended_ns END AS ns, NULL AS seq,
       format('{} ended by {}', who(rank, process), exception) || coalesce(': ' || nullif(message, ''), '') ||
       CASE WHEN NOT ended AND how = 'exception' THEN '; after that it never came to its end' ELSE '' END ||
       coalesce('; its log had stopped before that: ' || log_stopped, '') AS message
FROM process WHERE exception != 'KeyboardInterrupt' AND (used_cuda OR rank IS NOT NULL) AND NOT helper;
