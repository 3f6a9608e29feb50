-- severity: error
-- sentence: Memory went back to the driver while a peer had it mapped, or was mapped by a peer after that.
-- advice: Keep the shared tensor until the PeerGroup is closed; if the program did, report it with the logs.
-- divergence: unless all
-- needs: ipc.open
-- Ranks that map each other's memory are on one host, so their clocks are one.
WITH memory AS (
    SELECT process, 'segment' AS kind, segment AS memory, addr, freed_ns, freed_seq FROM segment WHERE unmapped_seq IS NULL
    UNION ALL SELECT process, 'pool segment', pool_segment, addr, freed_ns, freed_seq FROM pool_segment),
owner AS (
    SELECT DISTINCT process, rank, life, generation FROM event WHERE event = 'ipc.export')
SELECT owner.process, list_distinct([owner.rank, mapping.rank]) AS ranks, mapping.comm,
       greatest(freed_ns, opened_ns) AS ns, CASE WHEN freed_ns >= opened_ns THEN freed_seq END AS seq,
       format('{} freed {} {} at {}, which {} {}', who(owner.rank, owner.process), memory.kind, memory.memory, memory.addr,
              who(mapping.rank, mapping.process),
              CASE WHEN freed_ns < opened_ns THEN format('mapped {:.3f} ms later', (opened_ns - freed_ns) / 1e6)
                   WHEN closed_ns IS NULL THEN 'had mapped, and never unmapped'
                   ELSE format('had mapped, and unmapped {:.3f} ms later', (closed_ns - freed_ns) / 1e6) END) AS message
FROM mapping JOIN process importer USING (process) JOIN owner ON owner.life = mapping.peer_life AND owner.generation = mapping.generation
JOIN process p ON p.process = owner.process JOIN memory ON memory.process = owner.process AND memory.kind = mapping.kind
     AND memory.memory = mapping.memory
WHERE freed_ns < coalesce(closed_ns, importer.alive_ns, importer.last_ns) AND p.lost = 0 AND importer.lost = 0;
