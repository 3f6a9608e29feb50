-- severity: error
-- sentence: In a rehearsal, a rank broke a rule of NCCL, or of memory between processes.
-- advice: Mend the call that the finding names; a real NCCL need not notice it, and may hang or spoil memory later.
-- divergence: unless alike
-- needs: rehearsal.violation
WITH broken AS (
    SELECT *, CASE WHEN nccl_rule = 'M1' THEN regexp_extract(details, '^operation [0-9]+') ELSE '' END AS operation,
           CASE WHEN nccl_rule = 'M1' THEN regexp_extract(details, '^(message [0-9]+) from rank ([0-9]+): it sends (.*), this rank receives (.*)$',
                                                          ['number', 'sender', 'sent', 'wanted']) END AS of
    FROM event WHERE event = 'rehearsal.violation'),
told AS (SELECT *, count(*) OVER (PARTITION BY comm, operation, details) AS alike,
                global_rank(comm, TRY_CAST(of.sender AS INTEGER)) AS sender FROM broken),
-- Of sender and receiver either may be wrong: first who is in more such messages.
involved AS (SELECT comm, one AS involved, count(*) AS times
             FROM (SELECT comm, unnest([rank, sender]) AS one FROM told WHERE sender IS NOT NULL) GROUP BY ALL),
counted AS (
    SELECT told.*, coalesce(s.times, 0) AS sends, coalesce(r.times, 0) AS receives
    FROM told LEFT JOIN involved AS s ON s.comm = told.comm AND s.involved = told.sender
              LEFT JOIN involved AS r ON r.comm = told.comm AND r.involved = told.rank)
SELECT CASE WHEN sender IS NULL THEN process END AS process,
       CASE WHEN sender IS NULL THEN [rank] WHEN receives > sends THEN [rank, sender] ELSE [sender, rank] END AS ranks, comm,
       -- Of ranks that called different things the odd one comes first: most ranks are right.
       CASE WHEN operation = '' THEN ns
            ELSE min(ns) OVER (PARTITION BY comm, operation)
                 + dense_rank() OVER (PARTITION BY comm, operation ORDER BY alike) - 1 END AS ns, seq,
       CASE WHEN sender IS NOT NULL THEN
           CASE WHEN receives > sends THEN format('rank {} receives {} from rank {}, which sends {}', rank, of.wanted, sender, of.sent)
                ELSE format('rank {} sends {} to rank {}, which receives {}', sender, of.sent, rank, of.wanted) END
           || format(' ({}, rule M1: {}); ', of.number, sentence)
           || CASE WHEN sends = receives THEN 'this message cannot tell which of the two is wrong'
                   ELSE format('rank {} takes part in {} messages of this kind', CASE WHEN receives > sends THEN rank ELSE sender END,
                               greatest(sends, receives)) END
       ELSE format('{} broke rule {}: {}', CASE WHEN rank IS NULL THEN format('pid {}', process_id) ELSE who(rank, process) END,
                   nccl_rule, sentence)
            || coalesce(': ' || nullif(details, ''), '') END
       || coalesce(', on ' || group_of(comm), '')
       || coalesce(format(' (a consequence of: {})', consequence_of), '') AS message
FROM counted;
