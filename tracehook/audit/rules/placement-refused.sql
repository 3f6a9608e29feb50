-- severity: error
-- sentence: The ranks were about to use windows at different places, or different configurations; the call was not made, or, with SYMM_REGISTER_GUARD=watch, made all the same.
-- advice: Let all ranks allocate and free the tensors of scopes in one order, between the same scopes, and wait() for each work of async_op=True before its tensors go; if configurations differ, give the call one on all ranks.
-- divergence: always
-- needs: placement.mismatch
WITH placed AS (
    SELECT *, row(operation, send_window, send_offset, receive_window, receive_offset, config) AS place
    FROM event WHERE event = 'placement.first_use'),
refused AS (
    SELECT *, row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth,
           (SELECT max_by(f, f.seq) FROM placed f WHERE f.process = event.process AND f.comm_id = event.comm_id
            AND f.seq < event.seq) AS use
    FROM event WHERE event = 'placement.mismatch'),
-- Of two ranks that differ, the one that does what nobody else of the job does comes first.
counted AS (
    SELECT *, (SELECT guard FROM process WHERE process.process = refused.process) = 'watch' AS is_made, (SELECT count(*) FROM placed p WHERE p.place IS NOT DISTINCT FROM refused.use.place) AS alike FROM refused)
SELECT NULL AS process, list(coalesce(rank, comm_rank) ORDER BY alike, comm_rank) AS ranks, comm, min(ns) AS ns, NULL AS seq,
       format('{}: {} the ranks used different {}', group_of(comm),
              CASE WHEN bool_or(is_made) THEN 'made all the same (SYMM_REGISTER_GUARD=watch), although' ELSE 'refused, because' END,
              CASE WHEN count(DISTINCT coalesce(use.config, '')) > 1 THEN 'configurations' ELSE 'places' END) ||
       -- A use of known places is not in the log.
       CASE WHEN count(*) > 1 AND count(DISTINCT use.place) = 1
            THEN ', which had been used alike before, or in another number'
            ELSE ': ' || string_agg(format('{} on {} {}', use.operation, who(coalesce(rank, comm_rank), process), use_of(use)), '; '
                                    ORDER BY alike, comm_rank) END AS message
FROM counted GROUP BY comm, nth;
