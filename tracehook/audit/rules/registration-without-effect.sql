-- severity: warning
-- sentence: NCCL accepted windows and made none: nothing is symmetric.
-- advice: Leave NCCL_WIN_ENABLE at 1; `tracehook doctor` tells what this NCCL and these devices can do.
-- divergence: unless all
SELECT process, [rank] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       format('{} made {} with {} that had no effect (this communicator has no symmetric memory)', who(any_value(rank), process),
              plural(count(*), 'registration'), group_of(comm)) AS message
FROM event WHERE event = 'register.window' AND ok AND NOT effective
GROUP BY process, rank, comm;
