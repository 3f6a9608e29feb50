-- severity: warning
-- sentence: A window was ended while a device communicator lived: a kernel that still uses the window goes wrong without an error.
-- advice: Call ncclDevCommDestroy before the window is deregistered.
-- divergence: unless all
-- needs: device_communicator.create
-- NCCL allows it. Whether a kernel used that window, no log can tell.
WITH counted AS (
    SELECT *, last_value(device_communicators IGNORE NULLS) OVER (PARTITION BY process, comm_id ORDER BY seq) AS live
    FROM event WHERE event IN ('deregister.window', 'device_communicator.create', 'device_communicator.destroy'))
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} ended a window{} with {} while {} of it lived: a kernel that still used the window would go wrong silently',
              who(rank, process), coalesce(format(' at {} ({})', addr, in_bytes(size)), ''), group_of(comm),
              plural(live, 'device communicator')) AS message
FROM counted SEMI JOIN (FROM process WHERE lost = 0) USING (process)
WHERE event = 'deregister.window' AND ok AND live > 0;
