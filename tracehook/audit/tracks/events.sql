-- What is no beginning or end of something that the other queries draw. `us` is the time before `ns` that it took.
SELECT process, comm_id, device, event,
       if(us > 0 AND us < 1e12, greatest(ns - CAST(us * 1000 AS BIGINT), process.first_ns), ns) AS start, ns, $details
FROM event JOIN process USING (process)
WHERE event NOT IN ('trace.begin', 'trace.end', 'segment.alloc', 'segment.adopt', 'segment.free', 'pool.grow', 'pool.shrink')
ORDER BY process, comm_id NULLS FIRST, start, ns DESC, seq
