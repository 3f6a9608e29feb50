-- severity: error
-- sentence: The program ended a process with a status that is not 0 (sys.exit, os._exit, exit of C).
-- advice: Look in the job's stdout and stderr for what it said before that, and for the call of sys.exit or os._exit in the program.
-- divergence: unless alike
SELECT process, [rank] AS ranks, NULL AS comm, ended_ns AS ns, NULL AS seq,
       format('{} ended with exit status {} ({})', who(rank, process), status,
              CASE how WHEN 'exit' THEN 'sys.exit' ELSE 'os._exit, or exit of C' END) AS message
FROM process WHERE how IN ('exit', 'os._exit') AND status != 0 AND exception IS NULL
  AND (used_cuda OR rank IS NOT NULL) AND NOT helper;
