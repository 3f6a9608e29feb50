-- severity: error
-- sentence: Memory went back to the driver while a communicator still held it.
-- advice: This is a bug of tracehook: start the job with SYMM_REGISTER_HOOK=0 until it is mended, and report it with the logs.
-- divergence: unless all
WITH memory AS (
    SELECT process, rank, 'local' AS kind, segment AS memory, freed_ns, freed_seq FROM segment
    WHERE unmapped_seq IS NULL -- rule unmapped-while-registered
    UNION ALL SELECT process, rank, 'window', pool_segment, freed_ns, freed_seq FROM pool_segment)
SELECT memory.process, [memory.rank] AS ranks, comm, freed_ns AS ns, freed_seq AS seq,
       format('{} freed {} {} at {} ({}) while {} held it: {}',
              who(memory.rank, memory.process),
              CASE memory.kind WHEN 'window' THEN 'pool segment' ELSE 'segment' END, memory.memory, addr, in_bytes(size), group_of(comm),
              CASE WHEN undone_ns IS NULL THEN 'it was never deregistered'
                   ELSE format('deregistered {:.3f} ms later', (undone_ns - freed_ns) / 1e6) END) AS message
FROM memory JOIN registration USING (process, kind, memory) SEMI JOIN (FROM process WHERE lost = 0) USING (process)
WHERE made_seq < freed_seq AND coalesce(undone_seq > freed_seq, true);
