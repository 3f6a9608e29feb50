-- severity: warning
-- sentence: A process could not write its log any more, because the disk was full for instance; the job went on.
-- advice: Make room where SYMM_REGISTER_LOG points to, or let it name another disk; SYMM_REGISTER_LOG_LIMIT bounds the log of a process.
-- divergence: never
SELECT process, [rank] AS ranks, NULL AS comm, log_stopped_ns AS ns, NULL AS seq,
       format('the log of {} could not be written any more: {}; what happened then is read from the ring{}', who(rank, process), log_stopped,
              CASE WHEN ring_dropped > 0 THEN ', which lost ' || plural(ring_dropped, 'event') ELSE '' END) AS message
FROM process WHERE log_stopped IS NOT NULL;
