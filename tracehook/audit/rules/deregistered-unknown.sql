-- severity: error
-- sentence: Memory was deregistered from a communicator that did not hold it: twice, or without a registration.
-- advice: This is a bug of tracehook, or the program deregisters memory itself: look for its own calls of ncclCommDeregister, or report it with the logs.
-- divergence: unless all
-- needs: deregister.local, deregister.window
-- NCCL may accept that or not.
-- What was refused is no step, and is tried for itself.
WITH tried AS (
    SELECT process, rank, comm, ns, seq, addr, kind, memory, before FROM step WHERE event LIKE 'deregister.%' AND memory >= 0
    UNION ALL
    SELECT process, rank, comm, ns, seq, addr, event[12:], coalesce(segment, pool_segment),
           (SELECT arg_max(s.event, s.seq) FROM step s
            WHERE s.process = refused.process AND s.comm_id IS NOT DISTINCT FROM refused.comm_id AND s.kind = refused.event[12:]
              AND s.memory = coalesce(refused.segment, refused.pool_segment) AND s.seq < refused.seq)
    FROM event AS refused
    WHERE event IN ('deregister.local', 'deregister.window') AND NOT coalesce(ok, false) AND error IS DISTINCT FROM -1
      AND coalesce(segment, pool_segment) IS NOT NULL)
SELECT tried.process, [tried.rank] AS ranks, comm, ns, seq,
       format('{} deregistered {} {} at {} from {}, {}',
              who(tried.rank, tried.process), CASE kind WHEN 'window' THEN 'a window on pool segment' ELSE 'segment' END,
              memory, addr, group_of(comm),
              CASE WHEN before IS NULL THEN 'which never held it' ELSE 'for the second time' END) AS message
FROM tried JOIN process USING (process)
WHERE (before IS NULL OR before LIKE 'deregister.%') AND lost = 0;
