-- How long each segment lived.
SELECT process, coalesce(device, -1), kind, memory, born_ns, freed_ns, addr, size, pool
FROM (SELECT process, device, 'segment' AS kind, segment AS memory, born_ns, freed_ns, addr, size, NULL AS pool FROM segment
      UNION ALL
      SELECT process, device, 'pool segment', pool_segment, born_ns, freed_ns, addr, size, pool FROM pool_segment)
JOIN process USING (process) WHERE process BETWEEN ? AND ?
ORDER BY process, coalesce(device, -1), kind, coalesce(born_ns, first_ns), memory
