-- severity: error
-- sentence: Memory was registered again with a communicator that held it already.
-- advice: Let the program not register what tracehook registers; if it does not, report it with the logs.
-- divergence: unless all
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} registered {} {} at {} ({}) with {} again, and held it already',
              who(rank, process), CASE kind WHEN 'window' THEN 'a window on pool segment' ELSE 'segment' END,
              memory, addr, in_bytes(size), group_of(comm)) AS message
FROM step SEMI JOIN (FROM process WHERE lost = 0) USING (process)
WHERE event LIKE 'register.%' AND before LIKE 'register.%' AND memory >= 0;
