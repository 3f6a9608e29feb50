-- severity: error
-- sentence: A person or the launcher interrupted a process (Ctrl-C, SIGINT).
-- advice: If the job hung before that, look at what each rank did last: `tracehook report DIR`.
-- divergence: never
SELECT process, [rank] AS ranks, NULL AS comm, ended_ns AS ns, NULL AS seq,
       format('{} was interrupted (KeyboardInterrupt)', who(rank, process)) ||
       CASE WHEN NOT ended AND how = 'exception' THEN '; after that it never came to its end' ELSE '' END AS message
FROM process WHERE exception = 'KeyboardInterrupt' AND (used_cuda OR rank IS NOT NULL) AND NOT helper;
