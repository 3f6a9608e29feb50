-- severity: error
-- sentence: A registration of windows was given up on all ranks, because it failed on one or the store did.
SELECT NULL AS process, list(coalesce(rank, comm_rank) ORDER BY comm_rank) AS ranks, comm, min(ns) AS ns, NULL AS seq,
       format('communicator {}: {} gave up a registration of windows together', comm,
              rank_list(list(coalesce(rank, comm_rank) ORDER BY comm_rank))) AS message
FROM (SELECT *, row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth FROM event WHERE event = 'agreement.failed')
GROUP BY comm, nth;
