"""Names behind the numbers of a log."""

# Who registers segments, as SYMM_REGISTER_LOCAL says it. The order is that of LocalMode in cpp/nccl/interpose.h.
MODES = ("auto", "own", "observe", "off")
# Who registers segments with one communicator. The order is that of Local in cpp/core/registration_calls.h.
KINDS = ("own", "observed", "off")
