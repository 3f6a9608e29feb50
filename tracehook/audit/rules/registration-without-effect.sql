-- severity: warning
-- sentence: NCCL accepted registrations and gave no handle for them: nothing is registered.
-- advice: Leave NCCL_LOCAL_REGISTER unset and NCCL_WIN_ENABLE at 1; `tracehook doctor` tells what this NCCL and these devices can do.
-- divergence: unless all
-- scope: process
SELECT process, [rank] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       format('{} made {} with {} that had no effect ({})', who(any_value(rank), process),
              plural(count(*), 'registration'), group_of(comm),
              CASE event WHEN 'register.local' THEN 'NCCL_LOCAL_REGISTER=0, or nothing that NCCL could use'
                         ELSE 'this communicator has no symmetric memory' END) AS message
FROM event WHERE event IN ('register.local', 'register.window') AND ok AND NOT effective
GROUP BY process, rank, comm, event;
