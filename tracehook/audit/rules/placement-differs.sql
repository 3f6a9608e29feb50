-- severity: error
-- sentence: A collective used windows at different places on different ranks: its results, and what it overwrote, are wrong.
-- advice: Let all ranks allocate and free the tensors of scopes in one order, between the same scopes, and leave SYMM_REGISTER_GUARD at its default, which refuses such calls.
-- divergence: always
-- needs: placement.first_use
-- Of each rank the distinct uses, in order of appearance, reduced to what has to be equal (table `operation`). Those that
-- were refused (placement.mismatch is the next of such events) did no harm. An agreement that failed next may have been one
-- of windows, and on some ranks only (who raises in a scope logs none): such a use counts on no rank.
WITH whole AS (
    SELECT comm FROM communicator JOIN process USING (process) LEFT JOIN gone USING (process, comm_id)
    GROUP BY comm HAVING max(lost) = 0 AND NOT bool_or(coalesce(placements, false))),
marked AS (
    SELECT *, lead(event) OVER (PARTITION BY process, comm_id ORDER BY seq) AS next FROM event SEMI JOIN whole USING (comm)
    WHERE event IN ('placement.first_use', 'placement.mismatch', 'agreement.timeout', 'agreement.failed')),
placed AS (
    SELECT m.*, CASE o.send WHEN 'where' THEN coalesce(send_window, '') || '+' || coalesce(send_offset, 0)
                WHEN 'whether' THEN (send_window IS NULL)::VARCHAR ELSE '' END AS send_place,
           CASE o.receive WHEN 'where' THEN coalesce(receive_window, '') || '+' || coalesce(receive_offset, 0)
                WHEN 'whether' THEN (receive_window IS NULL)::VARCHAR ELSE '' END AS receive_place
    FROM marked m JOIN operation o USING (operation)
    WHERE event = 'placement.first_use' AND coalesce(next != 'placement.mismatch', true)),
used AS (
    FROM placed ANTI JOIN (FROM placed WHERE next IN ('agreement.timeout', 'agreement.failed')) AS unsure
    USING (comm, operation, send_place, receive_place)),
distinct_use AS (
    SELECT comm, process, comm_id, operation, config, send_place, receive_place, min(seq) AS seq, min(ns) AS ns,
           any_value(coalesce(rank, comm_rank)) AS rank, arg_min(send_window, seq) AS send_window, arg_min(send_offset, seq) AS send_offset,
           arg_min(receive_window, seq) AS receive_window, arg_min(receive_offset, seq) AS receive_offset
    FROM used GROUP BY comm, process, comm_id, operation, config, send_place, receive_place),
ordered AS (
    SELECT *, operation || ' ' || send_place || ' ' || receive_place || coalesce(' ' || config, '') AS use,
           row_number() OVER (PARTITION BY comm, process, comm_id ORDER BY seq) AS place FROM distinct_use),
kind AS (
    SELECT comm, place, use, list(rank ORDER BY rank) AS ranks, min(ns) AS ns, arg_min(ordered, rank) AS example
    FROM ordered GROUP BY comm, place, use),
-- Almost all places have one kind, of which no list has to be made.
first AS (
    SELECT comm, min(place) AS place FROM (SELECT comm, place FROM kind GROUP BY comm, place HAVING count(*) > 1) GROUP BY comm)
SELECT comm, place, min(ns) AS ns, list({'ranks': ranks, 'e': example} ORDER BY len(ranks) DESC, use) AS told
FROM kind JOIN first USING (comm, place) GROUP BY comm, place;
-- then
SELECT NULL AS process,
       CASE WHEN len(told[1].ranks) > len(told[2].ranks) THEN flatten([t.ranks for t in told[2:]])
            ELSE flatten([t.ranks for t in told]) END AS ranks,
       comm, ns, NULL AS seq,
       format('{}: the ranks used windows differently, first at use {}: ', group_of(comm), place) || (
           SELECT string_agg(format('{} on {} {}', t.e.operation, rank_list(t.ranks), use_of(t.e)), '; ' ORDER BY t.ranks[1])
           FROM (SELECT unnest(told) AS t)) AS message
FROM suspect;
