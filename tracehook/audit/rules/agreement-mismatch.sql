-- severity: error
-- sentence: The ranks wanted to register different windows, or had used windows differently; nothing was registered.
-- advice: Let the ranks allocate alike inside their scopes, and register windows of their own in one order; tracehook.trim(group), called on all ranks, gives back what is not used alike; if threads open scopes at the same time, let each of them use its own group, with SYMM_REGISTER_POLICY=isolated.
-- divergence: always
-- needs: agreement.mismatch
-- What a rank wanted is not in the log, but the memory of its pools that had no window of that communicator is.
WITH refused AS (
    SELECT *, row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth,
           (SELECT string_agg(in_bytes(size), ', ' ORDER BY pool_segment) FROM pool_segment p
            WHERE p.process = event.process AND p.device = event.device AND p.born_ns <= event.ns
              AND coalesce(p.freed_seq > event.seq, true)
              AND NOT EXISTS (FROM registration r WHERE r.process = event.process AND r.comm_id = event.comm_id
                              AND r.kind = 'window' AND r.memory = p.pool_segment AND r.made_seq < event.seq
                              AND coalesce(r.undone_seq > event.seq, true))) AS bare
    FROM event WHERE event = 'agreement.mismatch'),
-- The odd one comes first: most ranks are right.
counted AS (SELECT *, count(*) OVER (PARTITION BY comm, nth, bare) AS alike FROM refused)
SELECT NULL AS process, list(coalesce(rank, comm_rank) ORDER BY alike, comm_rank) AS ranks, comm, min(ns) AS ns, NULL AS seq,
       format('{}: the ranks ', group_of(comm)) ||
       CASE WHEN count(bare) = 0 THEN 'had used windows at different places, were at different points of the program, or wanted different windows of the program''s own'
       ELSE 'did not agree on what to register, so nothing was; memory without a window: ' ||
            string_agg(format('{} on {}', coalesce(bare, 'none'), who(coalesce(rank, comm_rank), process)), '; ' ORDER BY alike, comm_rank)
       END AS message
FROM counted GROUP BY comm, nth;
