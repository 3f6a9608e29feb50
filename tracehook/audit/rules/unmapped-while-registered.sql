-- severity: error
-- sentence: A library took the memory of a segment away while it was registered: NCCL keeps the memory, or goes on to use it.
-- advice: Register nothing that a sleep mode takes away: unset TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK, set TORCH_DIST_USE_NCCL2=0, end the program's own windows before it sleeps, and set NCCL_GRAPH_REGISTER=0 before the start if it captures such memory.
-- divergence: unless all
-- needs: segment.unmap
-- segment.captured: NCCL itself registered the memory, for a captured call whose graph lives.
-- tracehook undoes its own registrations before. A window that the program made has the address of the segment.
WITH held AS (
    SELECT s.process, s.rank, r.comm, r.kind, s.addr, s.size, u.ns, u.seq
    FROM segment s JOIN event u ON u.process = s.process AND u.seq = s.unmapped_seq
    JOIN process p ON p.process = s.process JOIN communicator c ON c.process = s.process
    JOIN registration r ON r.comm_id = c.comm_id AND r.process = s.process
         AND (r.kind = 'local' AND r.memory = s.segment OR r.kind = 'window' AND r.addr = s.addr)
    WHERE p.lost = 0 AND coalesce(c.ended_seq > s.unmapped_seq, true) AND r.made_seq < s.unmapped_seq AND coalesce(r.undone_seq > s.unmapped_seq, true))
SELECT process, [any_value(rank)] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       format('{} lost the memory of {} ({}) while {} had {} on them', who(any_value(rank), process),
              plural(count(DISTINCT addr), 'segment'), in_bytes(sum(size)), group_of(comm),
              CASE kind WHEN 'local' THEN 'registrations' ELSE 'windows' END) AS message
FROM held GROUP BY process, comm, kind
UNION ALL BY NAME
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} lost the memory of a segment ({}) that NCCL itself had registered with {} for a captured call, and the graph lives',
              who(rank, process), in_bytes(size), group_of(comm)) AS message
FROM event WHERE event = 'segment.captured';
