-- severity: error
-- sentence: The ranks do not run the same thing: versions or settings differ.
-- advice: Start all ranks from one environment: the same container, and the same variables.
-- divergence: always
-- Of each thing that differs, the largest communicator in which it does.
WITH told AS (
    SELECT process, rank, what, value FROM (FROM process WHERE communicators > 0)
    UNPIVOT INCLUDE NULLS (value FOR what IN (tracehook, torch, cuda, nccl, allocator, policy, local_min, segments, segment_memory, guard))),
-- What is alike in the whole job is alike in each of its communicators.
unlike AS (
    SELECT what FROM told GROUP BY what HAVING count(DISTINCT value) + CASE WHEN count(value) < count(*) THEN 1 ELSE 0 END > 1),
kind AS (
    SELECT comm, what, coalesce(value, 'unknown') AS value, list(told.rank ORDER BY told.rank) AS ranks, count(*) AS n,
           CASE WHEN count(told.rank) = count(*) THEN rank_list(list(told.rank ORDER BY told.rank))
                ELSE plural(count(*), 'process') END AS whom
    FROM told SEMI JOIN unlike USING (what) JOIN (SELECT DISTINCT process, comm FROM communicator) USING (process) GROUP BY comm, what, value),
difference AS (
    SELECT comm, what, sum(n) AS size, arg_min(ranks, n) AS odd,
           string_agg(format('{} on {}', CASE value WHEN '' THEN 'unset' ELSE value[:80] END, whom), '; ' ORDER BY n DESC, value) AS told
    FROM kind GROUP BY comm, what HAVING count(*) > 1)
SELECT NULL AS process, arg_max(odd, (size, comm)) AS ranks, NULL AS comm, 0 AS ns, NULL AS seq,
       format('{} is {}', what, arg_max(told, (size, comm))) AS message
FROM difference GROUP BY what;
