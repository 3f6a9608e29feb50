-- The communicators of each process, in the order in which it made them.
SELECT process, comm_id, comm, comm_rank, ranks, device, found_ns, ended_ns, ending, name
FROM communicator LEFT JOIN communicator_group USING (comm) WHERE process BETWEEN ? AND ?
ORDER BY process, found_ns NULLS FIRST, comm_id
