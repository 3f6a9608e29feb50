-- severity: error
-- sentence: Two places that were known were swapped later on some rank: results since then are wrong.
-- advice: Let all ranks pass the same tensors to each collective; tracehook.sync(), called by all ranks, tells where they differ.
-- divergence: always
-- needs: placement.digest
WITH told AS (
    SELECT comm, uses, digest, min(ns) AS ns, list(DISTINCT coalesce(rank, comm_rank)) AS ranks
    FROM event WHERE event = 'placement.digest'
      -- What was refused is counted too, where the ranks went on without windows: rule placement-refused.
      AND NOT EXISTS (FROM event e WHERE e.process = event.process AND e.comm_id = event.comm_id
                      AND e.event = 'placement.mismatch' AND e.seq < event.seq)
    GROUP BY comm, uses, digest),
milestone AS (
    SELECT comm, uses, min(ns) AS ns, count(*) AS kinds, list(ranks ORDER BY len(ranks) DESC, list_sort(ranks)) AS told
    FROM told GROUP BY comm, uses),
first AS (SELECT comm, min(uses) AS uses FROM milestone WHERE kinds > 1 GROUP BY comm)
SELECT NULL AS process,
       list_sort(CASE WHEN len(told[1]) > len(told[2]) THEN flatten(told[2:]) ELSE flatten(told) END) AS ranks, comm, ns,
       NULL AS seq,
       format('{}: the ranks used windows differently within {} with windows{}: {}', group_of(comm), plural(uses, 'collective'),
              coalesce((SELECT format(', after the first {}', max(m.uses)) FROM milestone m WHERE m.comm = milestone.comm
                        AND m.kinds = 1 AND m.uses < milestone.uses), ''),
              CASE WHEN len(told[1]) > len(told[2])
                   THEN format('{} {} against the others', rank_list(list_sort(flatten(told[2:]))),
                               CASE len(flatten(told[2:])) WHEN 1 THEN 'stands' ELSE 'stand' END)
                   ELSE array_to_string([rank_list(list_sort(t)) for t in told], ' against ') END) AS message
FROM milestone JOIN first USING (comm, uses);
