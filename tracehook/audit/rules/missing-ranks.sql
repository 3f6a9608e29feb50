-- severity: error
-- sentence: Some ranks left no log, or none of a communicator that they are in: nothing is proved about them.
-- advice: Set SYMM_REGISTER_HOOK=1 and SYMM_REGISTER_LOG on all ranks and bring all files into one directory; if that is all there is, add --allow-incomplete.
-- divergence: never
-- Those that began together know each other by their attempt; but where machines come and go, torchrun counts on each by
-- itself, so whoever lived at the same time counts too.
WITH life AS (
    SELECT job, attempt, rank, max(world_size) AS size, min(first_ns) AS from_ns, max(coalesce(alive_ns, last_ns)) AS to_ns
    FROM process WHERE rank IS NOT NULL AND NOT helper GROUP BY job, attempt, rank),
world AS (
    SELECT job, attempt, max(size) AS size, min(from_ns) AS from_ns, max(to_ns) AS to_ns FROM life GROUP BY job, attempt),
absent AS (
    SELECT world.job, world.attempt, any_value(world.size) AS size, any_value(world.from_ns) AS ns,
           list_filter(range(any_value(world.size)), lambda r: NOT list_contains(list(DISTINCT life.rank), r)) AS missing
    FROM world JOIN life ON life.job IS NOT DISTINCT FROM world.job
         AND (life.attempt IS NOT DISTINCT FROM world.attempt OR (life.from_ns <= world.to_ns AND world.from_ns <= life.to_ns))
    WHERE world.size <= 1048576 GROUP BY world.job, world.attempt),
partial AS (
    SELECT comm, max(ranks) AS ranks, count(DISTINCT comm_rank) AS here, min(found_ns) AS ns,
           list_filter(range(max(ranks)), lambda r: NOT list_contains(list(DISTINCT comm_rank), r)) AS missing
    FROM communicator WHERE ranks <= 1048576 GROUP BY comm HAVING count(DISTINCT comm_rank) < max(ranks)),
torn AS (SELECT count(*) AS logs FROM process WHERE lost > 0)
SELECT NULL AS process, missing AS ranks, NULL AS comm, ns, NULL AS seq,
       format('{} of {} left no log: {}', len(missing), plural(size, 'rank'), rank_list(missing)) AS message
FROM absent WHERE len(missing) > 0
UNION ALL
SELECT NULL, coalesce(global, []), comm, ns, NULL,
       format('{} has {}, and the logs know {} of them; not {} of it', group_of(comm), plural(ranks, 'rank'), here,
              rank_list(coalesce(global, missing)))
FROM (SELECT partial.*, CASE WHEN len(members) > 0 THEN list_transform(missing, lambda r: members[r + 1]) END AS global
      FROM partial LEFT JOIN communicator_group USING (comm)) AS partial, torn
WHERE torn.logs = 0 AND NOT EXISTS (FROM absent WHERE len(missing) > 0)
  -- A process that was killed, or raised, may have been about to join; of that tell no-end and ended-by-exception.
  AND len(missing) > (SELECT count(*) FROM process p WHERE (NOT p.ended OR p.how = 'exception')
                      AND (p.used_cuda OR p.rank IS NOT NULL) AND NOT p.helper
                      AND NOT EXISTS (FROM communicator c WHERE c.process = p.process AND c.comm = partial.comm));
