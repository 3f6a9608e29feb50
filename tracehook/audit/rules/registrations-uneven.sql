-- severity: error
-- sentence: Ranks differed in whether they registered segments with a communicator: NCCL may wait for ever where it uses registrations.
-- advice: Call tracehook.disable() on all ranks, or on none; after a failed registration restart the job with SYMM_REGISTER_LOCAL=off.
-- divergence: always
-- needs: communicator.uneven
SELECT NULL AS process, [global_rank(comm, other_rank)] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       format('{}: {} {} segments with it, and {} {}', group_of(comm), member(comm, other_rank),
              CASE WHEN registered THEN 'registered' ELSE 'did not register' END,
              rank_list(list(DISTINCT coalesce(rank, comm_rank))), CASE WHEN registered THEN 'did not' ELSE 'did' END) AS message
FROM event WHERE event = 'communicator.uneven' GROUP BY comm, other_rank, registered;
