-- Each step by which a counter of a device changes: 0 segments, 1 registered segments, 2 pools, 3 windows.
SELECT process, coalesce(device, -1), counter, ns, memory, size, change
FROM (SELECT process, device, 0 AS counter, born_ns AS ns, born_seq AS seq, segment AS memory, size, 1 AS change
      FROM segment WHERE born_ns IS NOT NULL
      UNION ALL
      SELECT process, device, 0, freed_ns, freed_seq, segment, size, -1
      FROM segment WHERE born_ns IS NOT NULL AND freed_ns IS NOT NULL
      UNION ALL
      SELECT process, device, 0, ns, seq, seq, if(event = 'range.map', 1, -1) * size::BIGINT, 1
      FROM event WHERE event IN ('range.map', 'range.unmap')
      UNION ALL
      SELECT process, device, 2, born_ns, NULL, pool_segment, size, 1 FROM pool_segment WHERE born_ns IS NOT NULL
      UNION ALL
      SELECT process, device, 2, freed_ns, freed_seq, pool_segment, size, -1
      FROM pool_segment WHERE born_ns IS NOT NULL AND freed_ns IS NOT NULL
      UNION ALL
      SELECT process, device, if(kind = 'local', 1, 3), made_ns, made_seq, memory, size, 1 FROM registration
      UNION ALL
      SELECT process, device, if(kind = 'local', 1, 3), undone_ns, undone_seq, memory, size, -1
      FROM registration WHERE undone_ns IS NOT NULL)
WHERE process BETWEEN ? AND ? AND size IS NOT NULL AND memory IS NOT NULL
ORDER BY process, coalesce(device, -1), counter, ns, seq, change DESC
