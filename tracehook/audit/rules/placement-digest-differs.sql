-- severity: error
-- sentence: Two places that were known were swapped later on some rank: results since then are wrong.
WITH milestone AS (
    SELECT comm, uses, min(ns) AS ns, count(DISTINCT digest) AS kinds,
           list(DISTINCT coalesce(rank, comm_rank)) AS ranks
    FROM event WHERE event = 'placement.digest' GROUP BY comm, uses),
first AS (SELECT comm, min(uses) AS uses FROM milestone WHERE kinds > 1 GROUP BY comm)
SELECT NULL AS process, list_sort(ranks) AS ranks, comm, ns, NULL AS seq,
       format('communicator {}: after {} with windows their places differ between {}; they were alike at {}', comm,
              plural(uses, 'collective'), rank_list(ranks),
              coalesce((SELECT format('use {}', max(m.uses)) FROM milestone m WHERE m.comm = milestone.comm AND m.kinds = 1
                        AND m.uses < milestone.uses), 'the beginning')) AS message
FROM milestone JOIN first USING (comm, uses);
