-- severity: warning
-- sentence: An exception ended a thread of a process, which went on without it.
-- advice: Read its traceback in the job's stderr; if the thread served others, let the program end with it.
-- divergence: unless all
-- needs: thread.exception
SELECT process, [rank] AS ranks, NULL AS comm, min(ns) AS ns, min(seq) AS seq,
       format('{}: {} ended thread {}', who(rank, process), coalesce(exception, 'an exception'), coalesce(any_value(thread_name), '?'))
       || CASE count(*) WHEN 1 THEN '' ELSE format(' and {} more', count(*) - 1) END || coalesce(': ' || nullif(message, ''), '') AS message
FROM event WHERE event = 'thread.exception' GROUP BY process, rank, exception, message;
