-- severity: error
-- sentence: The ranks wanted to register different windows; nothing was registered.
SELECT NULL AS process, list(coalesce(rank, comm_rank) ORDER BY comm_rank) AS ranks, comm, min(ns) AS ns, NULL AS seq,
       format('communicator {}: the ranks did not agree on what to register ({}); nothing was', comm,
              string_agg(format('{}: {}', who(coalesce(rank, comm_rank), process), CASE entries WHEN 1 THEN '1 entry' ELSE format('{} entries', entries) END),
                         ', ' ORDER BY comm_rank)) AS message
FROM (SELECT *, row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth FROM event WHERE event = 'agreement.mismatch')
GROUP BY comm, nth;
