-- What is neither a call nor the beginning or end of something that the other queries draw.
SELECT process, device, comm_id, event,
       if(us > 0 AND us < 1e12, greatest(ns - CAST(us * 1000 AS BIGINT), process.first_ns), ns) AS start, ns, $details
FROM event JOIN process USING (process)
WHERE process BETWEEN ? AND ?
  AND event NOT IN ('trace.begin', 'trace.end', 'communicator.group', 'rank.known', 'segment.alloc',
                    'segment.adopt', 'segment.free', 'segment.map', 'segment.unmap', 'pool.grow', 'pool.shrink')
  AND (comm_id IS NULL OR event NOT IN
       ('register.local', 'deregister.local', 'register.window', 'deregister.window', 'register.batch'))
ORDER BY process, comm_id NULLS FIRST, start, ns DESC, seq
