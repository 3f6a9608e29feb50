-- severity: error
-- sentence: A window was registered while a CUDA graph was being captured. NCCL before 2.30.7 loses such a capture.
-- advice: Register before the capture: run the same step once outside of it, or call tracehook.sync() after it.
-- divergence: unless all
-- needs: register.window
SELECT process, [rank] AS ranks, comm, made_ns AS ns, made_seq AS seq,
       format('{} registered a window on pool segment {} ({}) with {} while device {} was capturing',
              who(rank, process), memory, in_bytes(size), group_of(comm), device) AS message
FROM registration WHERE capturing;
