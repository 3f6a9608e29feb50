-- severity: error
-- sentence: The ranks do not run the same thing: versions or settings differ.
WITH told AS (
    UNPIVOT (SELECT process, rank, tracehook, torch, cuda, nccl, allocator, policy FROM process WHERE communicators > 0)
    ON tracehook, torch, cuda, nccl, allocator, policy INTO NAME what VALUE value),
kind AS (
    SELECT what, value, list(rank ORDER BY rank) AS ranks, count(*) AS n FROM told GROUP BY what, value)
SELECT NULL AS process, arg_min(ranks, n) AS ranks, NULL AS comm, 0 AS ns, NULL AS seq,
       format('{} is ', what) || string_agg(format('{} on {}', CASE value WHEN '' THEN 'unset' ELSE value[:80] END, rank_list(ranks)), '; ' ORDER BY n DESC, value)
       AS message
FROM kind GROUP BY what HAVING count(*) > 1;
