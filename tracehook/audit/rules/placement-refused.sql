-- severity: error
-- sentence: The ranks were about to use windows at different places, or different configurations; the call was not made, or made without windows.
-- advice: Let all ranks allocate and free in one order inside their scopes, and give a call the same configuration on all ranks.
-- divergence: always
-- needs: placement.mismatch
WITH refused AS (
    SELECT *, row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth,
           (SELECT max_by(f, f.seq) FROM event f WHERE f.process = event.process AND f.comm_id = event.comm_id
            AND f.event = 'placement.first_use' AND f.seq < event.seq) AS use
    FROM event WHERE event = 'placement.mismatch')
SELECT NULL AS process, list(coalesce(rank, comm_rank) ORDER BY comm_rank) AS ranks, comm, min(ns) AS ns, NULL AS seq,
       format('{}: refused, because the ranks used different {}', group_of(comm),
              CASE WHEN count(DISTINCT coalesce(use.config, '')) > 1 THEN 'configurations' ELSE 'places' END) ||
       -- A use of known places is not in the log.
       CASE WHEN count(*) > 1 AND count(DISTINCT (use.operation, use.send_window, use.send_offset, use.receive_window,
                                                  use.receive_offset, use.config)) = 1
            THEN ', which had been used alike before (SYMM_REGISTER_VERIFY=every-use), or in another number'
            ELSE ': ' || string_agg(format('{} on {} {}', use.operation, who(coalesce(rank, comm_rank), process), use_of(use)), '; '
                                    ORDER BY comm_rank) END AS message
FROM refused GROUP BY comm, nth;
