-- severity: error
-- sentence: Memory was deregistered from a communicator that did not hold it: twice, or without a registration.
-- advice: This is a bug of tracehook, or the program deregisters memory itself: look for its own calls of ncclCommDeregister, or report it with the logs.
-- divergence: unless all
-- scope: process
-- needs: deregister.local, deregister.window
-- NCCL may accept that or not.
WITH tried AS (
    SELECT *, last_value(CASE WHEN ok THEN event END IGNORE NULLS)
              OVER (PARTITION BY process, comm_id, kind, memory ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
              AS before
    FROM (SELECT *, split_part(event, '.', 2) AS kind, coalesce(segment, pool_segment) AS memory FROM event
          WHERE event IN ('register.local', 'deregister.local', 'register.window', 'deregister.window')
            AND NOT (event = 'register.window' AND NOT coalesce(effective, true)) AND error IS DISTINCT FROM -1
            AND coalesce(segment, pool_segment) IS NOT NULL))
SELECT tried.process, [tried.rank] AS ranks, comm, ns, seq,
       format('{} deregistered {} {} at {} from {}, {}',
              who(tried.rank, tried.process), CASE kind WHEN 'window' THEN 'a window on pool segment' ELSE 'segment' END,
              memory, addr, group_of(comm),
              CASE WHEN before IS NULL THEN 'which never held it' ELSE 'for the second time' END) AS message
FROM tried JOIN process USING (process)
WHERE event LIKE 'deregister.%' AND (before IS NULL OR before LIKE 'deregister.%') AND lost = 0;
