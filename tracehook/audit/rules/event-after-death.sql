-- severity: error
-- sentence: A communicator was used after it had been destroyed or aborted.
-- advice: Do not use a communicator on other threads while one ends it; if only tracehook used it, report it with the logs.
-- divergence: unless all
SELECT process, [event.rank] AS ranks, event.comm, min(ns) AS ns, min(seq) AS seq,
       format('{} logged {} on {} after its {}, the first of them {}',
              who(any_value(event.rank), process), plural(count(*), 'event'), group_of(event.comm), any_value(ending), arg_min(event, seq))
       AS message
FROM event JOIN communicator USING (process, comm_id)
WHERE seq > ended_seq
  -- An abort waits some seconds for a call that is under way, and no longer: that one began before. Of a batch the whole is timed.
  AND ns - coalesce(us, 0) * 1000 >= ended_ns
  AND NOT (event = 'register.local' AND us IS NULL AND EXISTS (
      FROM event b WHERE b.process = communicator.process AND b.comm_id = communicator.comm_id AND b.event = 'register.batch'
        AND b.seq > event.seq AND b.ns - b.us * 1000 < ended_ns))
  AND (event LIKE 'register.%' OR event LIKE 'deregister.%' OR event IN ('communicator.ready', 'placement.first_use'))
  AND event NOT LIKE '%.stalled'
GROUP BY process, event.rank, event.comm, comm_id;
