-- severity: error
-- sentence: A collective was given a buffer that begins in a window and ends outside of it: NCCL would reach beyond the window.
-- advice: Pass a tensor that lies in its window whole: allocate it inside tracehook.symmetric(group), at its full size.
-- divergence: unless all
-- needs: placement.first_use
SELECT process, [any_value(rank)] AS ranks, comm, min(ns) AS ns, min(seq) AS seq,
       format('{}: {} on {} with a {} buffer that begins in a window and ends outside of it{}',
              who(any_value(rank), process), operation, group_of(comm),
              CASE WHEN bool_or(send_window = 'overrun') AND bool_or(receive_window = 'overrun') THEN 'send and receive'
                   WHEN bool_or(send_window = 'overrun') THEN 'send' ELSE 'receive' END,
              CASE count(*) WHEN 1 THEN '' ELSE format(', the first of {} such uses', count(*)) END) AS message
FROM event WHERE event = 'placement.first_use' AND (send_window = 'overrun' OR receive_window = 'overrun')
GROUP BY process, comm, comm_id, operation;
