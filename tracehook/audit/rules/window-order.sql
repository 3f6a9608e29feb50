-- severity: error
-- sentence: The windows of a communicator do not pair: their number, their sizes or their order differ between ranks.
-- advice: Register the same windows in one order on all ranks, and leave SYMM_REGISTER_GUARD on, which refuses what differs.
-- divergence: always
-- needs: register.window
-- NCCL pairs the k-th registration of each rank, whatever it is. A round that was given up on is part of the order.
WITH known AS (
    -- Of a communicator of which a rank threw lines away: from which place on its windows are all known.
    SELECT comm, max(first) AS place
    FROM (SELECT c.comm, coalesce(min(r.ordinal + 1) FILTER (r.made_seq >= p.from_seq), 4611686018427387903) AS first
          FROM communicator c JOIN process p USING (process)
          LEFT JOIN registration r ON r.process = c.process AND r.comm_id = c.comm_id AND r.kind = 'window'
          WHERE p.proof_ns IS NOT NULL GROUP BY c.comm, c.process)
    GROUP BY comm),
numbered AS (
    SELECT comm, process, coalesce(rank, comm_rank) AS rank, size, made_ns, made_seq, ordinal,
           row_number() OVER (PARTITION BY comm, process, comm_id ORDER BY made_seq) AS place
    FROM registration WHERE kind = 'window'),
made AS (
    SELECT numbered.* REPLACE (CASE WHEN known.comm IS NULL THEN numbered.place ELSE ordinal + 1 END AS place)
    FROM numbered LEFT JOIN known USING (comm) WHERE known.comm IS NULL OR ordinal IS NOT NULL),
-- A log that is not whole cannot tell that a rank made no more windows, and one with a gap not even their order.
every AS (
    SELECT comm, coalesce(list(DISTINCT coalesce(c.rank, comm_rank)) FILTER (p.ended), []) AS all_ranks
    FROM communicator c JOIN process p USING (process) GROUP BY comm HAVING max(lost) = 0),
kind AS (
    SELECT comm, place, size, list(rank ORDER BY rank) AS ranks, min(made_ns) AS ns FROM made GROUP BY comm, place, size),
position AS (
    SELECT comm, place, all_ranks, min(ns) AS ns, count(*) AS kinds, flatten(list(ranks)) AS here,
           list({'size': size, 'ranks': ranks} ORDER BY len(ranks) DESC, size) AS told
    FROM kind JOIN every USING (comm) GROUP BY comm, place, all_ranks),
first AS (
    SELECT comm, min(position.place) AS place FROM position LEFT JOIN known USING (comm)
    WHERE kinds > 1 OR (NOT list_has_all(here, all_ranks) AND position.place >= coalesce(known.place, 0)) GROUP BY comm),
sizes AS (
    SELECT comm, process, list(size ORDER BY size) AS sorted FROM made GROUP BY comm, process),
likeness AS (
    SELECT comm, count(DISTINCT sorted) = 1 AS permuted FROM sizes GROUP BY comm)
SELECT position.*, permuted, list_filter(all_ranks, lambda r: NOT list_contains(here, r)) AS absent
FROM first JOIN position USING (comm, place) JOIN likeness USING (comm);
-- then
SELECT NULL AS process,
       CASE WHEN len(absent) > 0 THEN absent
            WHEN len(told[1].ranks) > len(told[2].ranks) THEN flatten([t.ranks for t in told[2:]])
            ELSE flatten([t.ranks for t in told]) END AS ranks,
       comm, ns, NULL AS seq,
       format('{}: {} at window {}: {}{}{}', group_of(comm),
              CASE WHEN len(absent) > 0 AND kinds = 1 THEN 'the number of windows differs'
                   WHEN permuted THEN 'the order of windows differs' ELSE 'the sizes of windows differ' END,
              place - 1,
              array_to_string([format('{} on {}', in_bytes(t.size), rank_list(t.ranks)) for t in told], '; '),
              CASE WHEN len(absent) > 0 THEN format('; none on {}', rank_list(absent)) ELSE '' END,
              CASE WHEN len(absent) = 0 AND len(told[1].ranks) > len(told[2].ranks)
                   THEN format('; {} {} against the others', rank_list(flatten([t.ranks for t in told[2:]])),
                               CASE len(flatten([t.ranks for t in told[2:]])) WHEN 1 THEN 'stands' ELSE 'stand' END)
                   ELSE '' END) AS message
FROM suspect;
