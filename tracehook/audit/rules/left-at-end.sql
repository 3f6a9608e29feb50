-- severity: warning
-- sentence: Registrations were neither undone nor ended with their communicator when the process ended.
-- advice: Call dist.destroy_process_group() at the end of the program, on all ranks; of a communicator that the program made itself, ncclCommDestroy.
-- divergence: unless all
SELECT r.process, [r.rank] AS ranks, CASE WHEN count(DISTINCT r.comm) = 1 THEN any_value(r.comm) END AS comm,
       max(p.last_ns) AS ns, NULL AS seq,
       format('{} ended with {} on {}: {}; {} neither destroyed nor aborted', who(r.rank, r.process),
              concat_ws(' and ', CASE WHEN count(*) FILTER (kind = 'local') > 0 THEN
                            format('{} of segments ({})', plural(count(*) FILTER (kind = 'local'), 'registration'),
                                   in_bytes(sum(size) FILTER (kind = 'local'))) END,
                        CASE WHEN count(*) FILTER (kind = 'window') > 0 THEN
                            format('{} ({})', plural(count(*) FILTER (kind = 'window'), 'window'),
                                   in_bytes(sum(size) FILTER (kind = 'window'))) END),
              plural(count(DISTINCT r.comm), 'communicator'), array_to_string(list_sort(list(DISTINCT key_of(r.comm)))[:4], ', '),
              CASE count(DISTINCT r.comm) WHEN 1 THEN 'it was' ELSE 'they were' END) AS message
FROM registration r JOIN process p USING (process) JOIN communicator c USING (process, comm_id)
-- After a failure nobody undoes anything: that is said of the failure. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch puts a
-- wrapper around its group, and dist.destroy_process_group() does not reach the communicator.
WHERE r.how IS NULL AND (p.ended OR p.how = 'os._exit') AND NOT p.failed AND c.ended_seq IS NULL AND p.lost = 0
  AND coalesce(p.nccl_settings NOT ILIKE '%TORCH_DISTRIBUTED_DEBUG=DETAIL%', true)
GROUP BY r.process, r.rank;
