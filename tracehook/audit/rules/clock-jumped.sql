-- severity: warning
-- sentence: Somebody set the clock of a host while a job ran that did not end well, or the machine slept.
-- advice: Look at the time service of that host (chronyd, ntpd); times in this audit are of a clock that does not jump.
-- divergence: never
-- needs: clock.jumped
SELECT process, [rank] AS ranks, NULL AS comm, ns, seq,
       format('the clock of {} jumped {} by {} s: somebody set it, or the machine slept', who(rank, process),
              CASE WHEN seconds < 0 THEN 'back' ELSE 'ahead' END, abs(seconds)) AS message
FROM event WHERE event = 'clock.jumped'
    AND EXISTS (FROM process WHERE (failed OR NOT ended AND NOT runs) AND rank IS NOT NULL AND NOT helper);
