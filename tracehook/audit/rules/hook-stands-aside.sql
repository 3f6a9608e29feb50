-- severity: warning
-- sentence: The hook could not do its work in a process, and said why.
-- advice: Do what the finding says; `tracehook doctor` tells whether it helped.
-- divergence: never
-- needs: hook.unsupported, hook.conflict
SELECT process, [rank] AS ranks, NULL AS comm, ns, seq,
       format('{}: {}, {}', who(rank, process), event, reason) || coalesce(': ' || advice, '') AS message
FROM event WHERE event IN ('hook.unsupported', 'hook.conflict');
