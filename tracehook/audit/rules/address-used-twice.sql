-- severity: error
-- sentence: A segment was allocated where another one still was: a free was not seen.
-- advice: This is a bug of tracehook: run the job once more with SYMM_REGISTER_CHECK=1, and report what it says, with the logs.
-- divergence: unless all
SELECT process, [rank] AS ranks, NULL AS comm, next_ns AS ns, next_seq AS seq,
       format('{} got segment {} at {} on device {} while segment {} was still there', who(rank, process), next, addr,
              device, segment) AS message
FROM (SELECT segment.*, lead(segment) OVER w AS next, lead(born_ns) OVER w AS next_ns, lead(born_seq) OVER w AS next_seq
      FROM segment JOIN process USING (process) WHERE addr IS NOT NULL AND born_seq IS NOT NULL AND lost = 0
      WINDOW w AS (PARTITION BY process, device, addr ORDER BY born_seq))
WHERE next_seq < coalesce(freed_seq, 9223372036854775807);
