-- severity: error
-- sentence: A communicator was ended while CUDA graphs lived that were captured with it: NCCL waits for them without end.
-- advice: Release the graphs first: call graph.reset() and tracehook.release_graphs() before dist.destroy_process_group().
-- divergence: unless all
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} ended {} while {} with collectives of it lived: NCCL waits in that call until they are gone',
              who(rank, process), group_of(comm), plural(graphs, 'CUDA graph')) AS message
FROM event WHERE event = 'communicator.graphs';
