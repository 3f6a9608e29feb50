// How a function is exported: a strong pncclX and a weak ncclX which is the same code, as NVIDIA's
// library does, so that an interposer may take ncclX and call pncclX. Nothing in this library calls
// either.
#pragma once

#include "names.h"

#define TRACEHOOK_EXPORTED extern "C" __attribute__((visibility("default")))

#define TRACEHOOK_NCCL(type, name, ...)                                                            \
    TRACEHOOK_EXPORTED type p##name(__VA_ARGS__);                                                  \
    TRACEHOOK_EXPORTED __attribute__((weak, alias("p" #name))) type name(__VA_ARGS__);             \
    TRACEHOOK_EXPORTED type p##name(__VA_ARGS__)
