-- severity: error
-- sentence: In a rehearsal, a rank broke a rule of NCCL, or of memory between processes.
-- advice: Look the rule up in docs/rehearsal.md and mend the call; a real NCCL need not notice, and may hang or spoil memory later.
-- divergence: unless alike
-- needs: rehearsal.violation
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} broke rule {}: {}', CASE WHEN rank IS NULL THEN format('pid {}', process_id) ELSE who(rank, process) END,
              nccl_rule, sentence)
       || coalesce(': ' || nullif(details, ''), '') || coalesce(', on ' || group_of(comm), '')
       || coalesce(format(' (a consequence of: {})', consequence_of), '') AS message
FROM event WHERE event = 'rehearsal.violation';
