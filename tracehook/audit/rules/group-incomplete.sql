-- severity: error
-- sentence: A group of torch has a communicator that leaves ranks of it out: the results of its collectives are wrong.
-- advice: Call new_group on all ranks of the job, in one order, with the same lists of ranks.
-- divergence: always
-- needs: communicator.group
WITH called AS (SELECT process, process.rank AS rank, comm_id, comm, "group" AS name, members, ns FROM event JOIN process USING (process)
                WHERE event = 'communicator.group' AND len(members) > 0),
small AS (SELECT called.* EXCLUDE (ns), c.found_ns AS ns, c.ranks AS held
          FROM called JOIN communicator c USING (process, comm_id) WHERE len(members) > c.ranks),
-- torch counts groups, also those of other ranks: under one number a rank that called in another order has other ranks.
named AS (SELECT name, members, list(DISTINCT rank ORDER BY rank) AS ranks FROM called GROUP BY name, members),
unlike AS (SELECT name, list({'members': members, 'ranks': ranks} ORDER BY len(ranks) DESC, members) AS told
           FROM named GROUP BY name HAVING count(*) > 1),
-- Of most use is a group that most ranks see alike.
example AS (SELECT name, told FROM unlike ORDER BY len(told[1].ranks) - len(told[2].ranks) DESC, name LIMIT 1)
SELECT NULL AS process,
       CASE WHEN len(told[1].ranks) > len(told[2].ranks) THEN flatten([t.ranks FOR t IN told[2:]])
            ELSE (SELECT list(DISTINCT rank ORDER BY rank) FROM small) END AS ranks,
       (SELECT arg_min(comm, ns) FROM small) AS comm, (SELECT min(ns) FROM small) AS ns, NULL AS seq,
       (SELECT format('group {} of {} has a communicator of {} on {}', arg_min(name, (ns, rank)), rank_list(arg_min(members, (ns, rank))),
                      plural(arg_min(held, (ns, rank)), 'rank'), rank_list([arg_min(rank, (ns, rank))])) FROM small)
       || coalesce(format('; group {} is ', name) || (
           SELECT string_agg(format('{} on {}', rank_list(t.members), rank_list(t.ranks)), ', and ' ORDER BY len(t.ranks) DESC, t.members)
           FROM (SELECT unnest(told) AS t)), '') AS message
FROM (SELECT 1) LEFT JOIN example ON true WHERE EXISTS (FROM small);
