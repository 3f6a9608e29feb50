-- severity: error
-- sentence: Memory was registered that had gone back to the driver already.
WITH memory AS (
    SELECT process, rank, 'local' AS kind, segment AS memory, freed_seq FROM segment
    UNION ALL SELECT process, rank, 'window', pool_segment, freed_seq FROM pool_segment)
SELECT memory.process, [memory.rank] AS ranks, comm, made_ns AS ns, made_seq AS seq,
       format('{} registered {} {} at {} with communicator {} after it was freed', who(memory.rank, memory.process),
              CASE memory.kind WHEN 'window' THEN 'pool segment' ELSE 'segment' END, memory.memory, addr, comm) AS message
FROM memory JOIN registration USING (process, kind, memory)
WHERE made_seq > freed_seq;
