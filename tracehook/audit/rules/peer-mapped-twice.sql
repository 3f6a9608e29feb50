-- severity: error
-- sentence: A peer's segment was mapped although it was mapped already.
-- advice: This is a bug of tracehook: report it with the logs.
-- divergence: unless all
-- needs: ipc.open
SELECT process, [rank] AS ranks, comm, opened_ns AS ns, opened_seq AS seq,
       format('{} mapped {} again, and had it mapped already', who(rank, process), peer_memory(mapping)) AS message
FROM mapping WHERE opened_before;
