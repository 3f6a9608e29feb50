-- severity: error
-- sentence: A communicator was destroyed while memory was still registered with it.
-- advice: If hook-stands-aside is found too, do what it says, because another hook left the memory registered; if not, this is a bug of tracehook: report it with the logs.
-- divergence: unless all
-- What NCCL refused to deregister is said by registration-failed. Windows that graphs use stay: ended-before-graphs.
-- So do those that a device communicator may use, and those of the program (their `memory` is below 0): NCCL ends both
-- with the communicator.
WITH held AS (
    SELECT r.* FROM registration r JOIN process p USING (process)
    WHERE p.lost = 0 AND memory >= 0 AND NOT EXISTS (
        FROM event e WHERE e.process = r.process AND e.comm_id = r.comm_id AND e.event = 'deregister.' || r.kind
          AND coalesce(e.segment, e.pool_segment) = r.memory AND e.seq > r.made_seq AND NOT e.ok)
      AND NOT (r.kind = 'window' AND EXISTS (
        FROM event e WHERE e.process = r.process AND e.comm_id = r.comm_id AND e.event = 'communicator.graphs')))
SELECT c.process, [c.rank] AS ranks, c.comm, c.ended_ns AS ns, c.ended_seq AS seq,
       format('{} destroyed {} while it held {}, the first of them of {} {} at {} ({})', who(c.rank, c.process), group_of(c.comm),
              concat_ws(' and ', CASE WHEN count(*) FILTER (kind = 'local') > 0
                                 THEN plural(count(*) FILTER (kind = 'local'), 'registration') END,
                        CASE WHEN count(*) FILTER (kind = 'window') > 0
                        THEN plural(count(*) FILTER (kind = 'window'), 'window') END),
              CASE arg_min(kind, made_seq) WHEN 'window' THEN 'pool segment' ELSE 'segment' END, arg_min(memory, made_seq),
              arg_min(addr, made_seq), in_bytes(arg_min(size, made_seq))) AS message
FROM communicator c JOIN held USING (process, comm_id)
WHERE c.ending = 'retire' AND made_seq < ended_seq AND coalesce(undone_seq > ended_seq, true)
  AND NOT (kind = 'window' AND coalesce(c.device_communicators > 0, false))
GROUP BY c.process, c.rank, c.comm, c.comm_id, c.ended_ns, c.ended_seq;
