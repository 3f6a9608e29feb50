-- How long each registration was held.
SELECT process, comm_id, kind, memory, made_ns, undone_ns, how, addr, size, ordinal, effective
FROM registration WHERE process BETWEEN ? AND ? AND comm_id IS NOT NULL
ORDER BY process, comm_id, kind, made_ns, made_seq
