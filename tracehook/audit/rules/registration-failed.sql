-- severity: error
-- sentence: NCCL refused a registration, or a deregistration, or it came too late for a communicator that was not ready.
-- advice: Run once more with NCCL_DEBUG=INFO, which says why NCCL refused; with SYMM_REGISTER_LOCAL=off on all ranks nothing is registered locally.
-- divergence: unless alike
SELECT process, [rank] AS ranks, comm, ns, seq,
       CASE event
       WHEN 'communicator.failed' THEN
           format('{} has nothing registered with {} any more: segment {} at {} failed with {}, and {} undone',
                  who(rank, process), group_of(comm), segment, addr, nccl_error(error),
                  CASE registrations WHEN 1 THEN 'the other registration was'
                  ELSE format('{} other registrations were', registrations) END)
       ELSE format('{}: {} of {} {} at {} ({}) on {} failed{}', who(rank, process), event,
                   CASE WHEN segment IS NULL THEN 'pool segment' ELSE 'segment' END, coalesce(segment, pool_segment), addr,
                   in_bytes(size), group_of(comm),
                   CASE WHEN error = -1 THEN ': the communicator did not become ready' ELSE ' with ' || nccl_error(error) END
                   || CASE WHEN event = 'register.window' AND EXISTS (
                          FROM communicator c WHERE c.process = event.process AND c.comm_id = event.comm_id AND c.ended_seq < event.seq)
                      THEN ', because an abort ended the wait for the other ranks' ELSE '' END)
       END AS message
FROM event
WHERE event = 'communicator.failed'
   OR (event IN ('deregister.local', 'register.window', 'deregister.window') AND NOT ok)
   OR (event = 'register.local' AND NOT ok AND NOT EXISTS (
       FROM communicator c WHERE c.process = event.process AND c.comm_id = event.comm_id AND c.failed_seq IS NOT NULL));
