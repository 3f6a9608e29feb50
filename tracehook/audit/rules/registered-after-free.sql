-- severity: error
-- sentence: Memory was registered that had gone back to the driver already.
-- advice: This is a bug of tracehook, or the program frees memory while it registers it: report it with the logs if it does not.
-- divergence: unless all
-- NCCL may refuse that or not.
WITH memory AS (
    SELECT process, rank, 'local' AS kind, segment AS memory, freed_seq FROM segment
    UNION ALL SELECT process, rank, 'window', pool_segment, freed_seq FROM pool_segment),
tried AS (
    SELECT process, comm, event[10:] AS kind, coalesce(segment, pool_segment) AS memory, addr, ns, seq
    FROM event WHERE event IN ('register.local', 'register.window'))
SELECT memory.process, [memory.rank] AS ranks, comm, ns, seq,
       format('{} registered {} {} at {} with {} after it was freed', who(memory.rank, memory.process),
              CASE memory.kind WHEN 'window' THEN 'pool segment' ELSE 'segment' END, memory.memory, addr, group_of(comm)) AS message
FROM memory JOIN tried USING (process, kind, memory)
WHERE seq > freed_seq;
