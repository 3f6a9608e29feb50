// The functions of the CUDA runtime that tracehook calls: those of the runtime that torch
// is bound to, reached by dlsym. No second copy, no header.
#pragma once

#include <cstddef>

namespace tracehook::cuda {

template <typename... Args> using Function = int (*)(Args...);

// Null where this process has no such function.
struct Runtime {
    Function<int*> cudaGetDevice = nullptr;
    Function<int> cudaSetDevice = nullptr;
    Function<> cudaDeviceSynchronize = nullptr;
    Function<> cudaGetLastError = nullptr;
    Function<int*> cudaThreadExchangeStreamCaptureMode = nullptr;
    Function<void**, unsigned> cudaEventCreateWithFlags = nullptr;
    Function<void*> cudaEventQuery = nullptr;
    Function<void*, void*> cudaEventRecord = nullptr;
    Function<void*, std::size_t, unsigned> cudaHostRegister = nullptr;
    Function<void*> cudaHostUnregister = nullptr;
};

// Any thread. Finds the runtime among the loaded libraries at the first call, which comes after
// torch loaded it.
const Runtime& runtime() noexcept;

// For a call whose failure nobody hears of: takes the error out of the runtime, where torch would
// take it for its own. Returns `status`.
int absorbed(int status) noexcept;

// While it lives, calls of this thread leave captures alone that other calls would end: of graphs
// of this or another thread, with which mapping or freeing memory has nothing to do.
class BesideCaptures {
  public:
    BesideCaptures() noexcept { exchange(); }
    ~BesideCaptures() { exchange(); }
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

  private:
    void exchange() noexcept;
    int mode_ = 2; // cudaStreamCaptureModeRelaxed; then the mode before
};

} // namespace tracehook::cuda
