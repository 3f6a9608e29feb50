-- severity: error
-- sentence: Memory was deregistered from a communicator that did not hold it: twice, or without a registration.
SELECT step.process, [step.rank] AS ranks, comm, ns, seq,
       format('{} deregistered {} {} at {} from communicator {}, {}',
              who(step.rank, step.process), CASE kind WHEN 'window' THEN 'a window on pool segment' ELSE 'segment' END,
              memory, addr, comm,
              CASE WHEN before IS NULL THEN 'which never held it' ELSE 'for the second time' END) AS message
FROM step JOIN process USING (process)
WHERE event LIKE 'deregister.%' AND (before IS NULL OR before LIKE 'deregister.%') AND lost = 0;
