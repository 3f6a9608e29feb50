-- severity: error
-- sentence: Some ranks left no log, so nothing is proved about them.
WITH world AS (
    SELECT job, attempt, max(world_size) AS size, list(DISTINCT rank) AS here, min(first_ns) AS ns
    FROM process WHERE rank IS NOT NULL AND world_size IS NOT NULL GROUP BY job, attempt),
absent AS (
    SELECT world.*, list_filter(range(size), lambda r: NOT list_contains(here, r)) AS missing FROM world
    WHERE size <= 1048576),
partial AS (
    SELECT comm, max(ranks) AS ranks, count(DISTINCT comm_rank) AS here, min(found_ns) AS ns,
           list_filter(range(max(ranks)), lambda r: NOT list_contains(list(DISTINCT comm_rank), r)) AS missing
    FROM communicator WHERE ranks <= 1048576 GROUP BY comm HAVING count(DISTINCT comm_rank) < max(ranks))
SELECT NULL AS process, missing AS ranks, NULL AS comm, ns, NULL AS seq,
       format('{} of {} left no log: {}', len(missing), plural(size, 'rank'), rank_list(missing)) AS message
FROM absent WHERE len(missing) > 0
UNION ALL
SELECT NULL, [], comm, ns, NULL,
       format('communicator {} has {}, and the logs know {} of them; not {} of it', comm, plural(ranks, 'rank'), here,
              rank_list(missing))
FROM partial WHERE NOT EXISTS (FROM absent WHERE len(missing) > 0)
  -- A process that was killed may have been about to join; of that tells no-end.
  AND len(missing) > (SELECT count(*) FROM process p WHERE NOT p.ended AND (p.used_cuda OR p.rank IS NOT NULL)
                      AND NOT EXISTS (FROM communicator c WHERE c.process = p.process AND c.comm = partial.comm));
