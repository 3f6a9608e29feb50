// Runtime functions that do nothing. See the list for which, and what they answer.
#include "cuda_abi.h"
#include "runtime_call.h"

using namespace tracehook::rehearsal::cuda;

#define SUCCEED(name)                                                                              \
    EMU_EXPORT int name() {                                                                        \
        return context_call([] {});                                                                \
    }
#define REFUSE(name)                                                                               \
    EMU_EXPORT int name() {                                                                        \
        return context_call([] { return kNotSupported; });                                         \
    }

#include "cudart_stubs.def"

#undef SUCCEED
#undef REFUSE
