-- severity: warning
-- sentence: The last line of a log is cut: the process was killed while it was written, or the file was copied halfway.
-- advice: Copy the file once more when the process has ended; if its process was killed, nothing is to be done.
-- divergence: never
SELECT process, [rank] AS ranks, NULL AS comm, last_ns AS ns, NULL AS seq,
       format('{}: the last line of {} is cut{}', who(rank, process), file,
              CASE WHEN ring THEN '; its event was read from the ring' ELSE ', and there is no ring beside it' END) AS message
FROM process WHERE torn AND log_stopped IS NULL;
