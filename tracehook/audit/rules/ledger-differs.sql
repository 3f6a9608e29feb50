-- severity: error
-- sentence: What tracehook knew of the allocator's segments was not what the allocator had.
-- advice: This is a bug of tracehook, or an allocator that it does not follow: report it with the logs and the output of `tracehook doctor`.
-- divergence: unless all
-- needs: segment.unknown, ledger.difference
SELECT process, [rank] AS ranks, NULL AS comm, ns, seq,
       CASE event WHEN 'segment.unknown' THEN format('{} freed or replaced a segment at {} that was not known', who(rank, process), addr)
       ELSE format('{}: the segment at {} is only in the {}', who(rank, process), addr, only_in) END AS message
FROM event WHERE event IN ('segment.unknown', 'ledger.difference');
