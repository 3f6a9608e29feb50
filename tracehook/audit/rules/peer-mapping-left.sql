-- severity: warning
-- sentence: Memory of peers was still mapped when the process ended.
-- advice: Drop the peers' tensors and call PeerGroup.close() on all ranks before the program ends.
-- divergence: unless all
-- needs: ipc.open
SELECT process, [mapping.rank] AS ranks, CASE WHEN count(DISTINCT comm) = 1 THEN any_value(comm) END AS comm, max(last_ns) AS ns,
       NULL AS seq,
       format('{} ended with {} of {} mapped ({}); its PeerGroup was not closed, or tensors still lay on it', who(mapping.rank, process),
              plural(count(*), 'segment'), plural(count(DISTINCT (comm, peer)), 'peer'), in_bytes(sum(size))) AS message
FROM mapping JOIN process USING (process)
WHERE closed_seq IS NULL AND (ended OR how = 'os._exit') AND NOT failed AND lost = 0
  -- A peer that has ended takes its memory with it.
  AND NOT EXISTS (FROM event e WHERE e.process = mapping.process AND e.event = 'peer.lost' AND e.peer_life = mapping.peer_life)
GROUP BY process, mapping.rank;
