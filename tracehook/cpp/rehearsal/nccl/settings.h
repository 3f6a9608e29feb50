// The environment of the emulated NCCL, read once, at the first question.
//
// Every other file asks here; none calls getenv for a setting. Any thread, no lock.
#pragma once

#include "nccl/traits.h"

#include <chrono>
#include <cstdio>
#include <string>

namespace tracehook::rehearsal::nccl {

enum class RuleMode { kReport, kAbort, kOff };
enum class WindowMode { kOn, kNull };

struct Settings {
    // TRACEHOOK_EMU_DIR: where ranks meet and where violations and summaries are written. `records`
    // is false when the variable is unset: then `directory` is a per-user directory, used for
    // meeting only.
    std::string directory;
    bool records = false;

    // TRACEHOOK_EMU_RULES: report (default), abort (at the first violation) or off.
    RuleMode rules = RuleMode::kReport;

    // TRACEHOOK_EMU_STRICT_L7=0: ranks that differ in what they registered at one operation are
    // counted, and do not break rule L7.
    bool strict_uniformity = true;

    // TRACEHOOK_EMU_HANDLE_REUSE=0: never give a dead communicator's address to a new one.
    bool reuse_handles = true;

    // TRACEHOOK_EMU_NCCL_VERSION: what ncclGetVersion says (22809); see has().
    int version = 22809;

    // TRACEHOOK_EMU_WINDOWS: on (default), or null: a communicator that has no symmetric support.
    WindowMode windows = WindowMode::kOn;

    // TRACEHOOK_EMU_WINDOW_TIMEOUT, seconds (60): how long a rank waits for the others in what
    // would hang on hardware: a window registration, an operation that is symmetric on some ranks
    // only.
    std::chrono::milliseconds window_timeout{60000};

    // NCCL's own, as NCCL reads them. NCCL_LOCAL_REGISTER=0: no registration has an effect;
    // NCCL_P2P_DISABLE=1, or devices that do not reach each other: nobody maps memory of others;
    // NCCL_LEGACY_CUDA_REGISTER=1: memory of cudaMalloc is mapped too.
    bool local_register = true;
    bool peer_to_peer = true;
    bool legacy_register = false;

    // RANK: the rank of this process in the job, -1 when unset.
    int rank = -1;
    // WORLD_SIZE: how many ranks the job has, 0 when unset.
    int world = 0;

    // What makes device 0 of two processes the same device: both see the same devices of the same
    // host.
    std::size_t host = 0;

    // Equal on all processes whose devices NVLink joins: those of one emulated host (NCCL_HOSTID),
    // whichever devices they see, or of one fabric.
    std::size_t machine = 0;
};

const Settings& settings();

// NCCL_GRAPH_REGISTER, false: a captured call registers nothing by itself. NCCL, too, reads it once
// a call is captured, and not before.
bool graph_register();

// Makes the directory if it is not there; false if that failed.
bool ensure_directory();

// Opens the file of such records of this process, to append a line. Null if there is no directory
// of records, or if that failed.
std::FILE* open_record(const char* kind);

using tracehook::nccl::Trait;

// What the emulated version of NCCL does with windows: versions differ, and jobs rely on it.
bool has(Trait trait);

} // namespace tracehook::rehearsal::nccl
