-- severity: error
-- sentence: A registration is not of the segment's own bytes, or the segment is on another device than the communicator.
-- advice: This is a bug of tracehook: report it with the logs.
-- divergence: unless all
WITH memory AS (
    SELECT process, 'local' AS kind, segment AS memory, device, addr, size FROM segment
    UNION ALL SELECT process, 'window', pool_segment, device, addr, size FROM pool_segment)
SELECT process, [r.rank] AS ranks, r.comm, made_ns AS ns, made_seq AS seq,
       format('{} registered {} {} as {} at {} with {} of device {}; it is {} at {} on device {}',
              who(r.rank, process), CASE kind WHEN 'window' THEN 'pool segment' ELSE 'segment' END, memory, in_bytes(r.size),
              r.addr, group_of(r.comm), r.comm_device, in_bytes(memory.size), memory.addr, memory.device) AS message
FROM registration r JOIN memory USING (process, kind, memory)
WHERE comm_id IS NOT NULL AND (r.addr != memory.addr OR r.size != memory.size OR r.comm_device != memory.device);
