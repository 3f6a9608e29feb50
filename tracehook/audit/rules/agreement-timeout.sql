-- severity: error
-- sentence: An agreement was given up: some rank never joined it.
-- advice: See what the rank that did not join did last: `tracehook report DIR`; if it was only slow, give the group a longer time-out.
-- divergence: always
-- needs: agreement.timeout
-- A rank that hears from the others what it has missed says so itself, without entries; or which rank waits no longer for it.
SELECT NULL AS process, [global_rank(comm, missing_rank)] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       CASE WHEN bool_or(comm_rank != missing_rank AND entries = 0) THEN
           format('{}: {} ended its own wait in an agreement by an exception, before all ranks came', group_of(comm), member(comm, missing_rank))
       WHEN bool_and(comm_rank = missing_rank AND entries = 0) THEN
           format('{}: {} did not come to an agreement for which another rank waited', group_of(comm), member(comm, missing_rank))
       ELSE format('{}: {} did not join an agreement on {}{}; {} waited', group_of(comm),
              member(comm, missing_rank), CASE max(entries) WHEN 1 THEN '1 entry' ELSE format('{} entries', max(entries)) END,
              coalesce(format(' within {:.1f} s', max(us) / 1e6), ''),
              coalesce(rank_list(list(DISTINCT coalesce(rank, comm_rank)) FILTER (comm_rank != missing_rank)), 'nobody else')) END AS message
FROM event WHERE event = 'agreement.timeout' GROUP BY comm, missing_rank;
