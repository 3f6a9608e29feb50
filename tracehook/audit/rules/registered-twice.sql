-- severity: error
-- sentence: A segment was registered again with a communicator that held it already.
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} registered segment {} ({}, {}) with communicator {} again: it held it since event {}',
              who(rank, process), memory, addr, in_bytes(size), comm,
              (SELECT max(seq) FROM step s WHERE s.process = step.process AND s.comm_id = step.comm_id AND s.kind = step.kind
               AND s.memory = step.memory AND s.seq < step.seq)) AS message
FROM step
WHERE event LIKE 'register.%' AND before LIKE 'register.%';
