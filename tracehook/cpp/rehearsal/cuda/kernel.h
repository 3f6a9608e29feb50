// Kernels: how they are given to streams, and those that are not torch's: of Triton and other
// compilers, of extensions. None of them computes anything.
//
// Any thread, except in a forked child. Nothing waits.
#pragma once

#include "cuda_abi.h"
#include "gpu.h"
#include "handle_table.h"
#include "leaked.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tracehook::rehearsal::cuda {

// What the runtime and the driver say of every kernel.
inline constexpr int kKernelRegisters = 32;
inline int kernel_architecture() {
    return 10 * gpu().major + gpu().minor;
}

// How many blocks of that size a multiprocessor takes at once.
int blocks_at_once(int block_size);

inline constexpr int kAnyDevice = -1;

// A kernel that a program brings: what it loaded, or what a library that is not torch's registered.
struct Kernel {
    const std::string name;
    const int device; // on which alone it runs, or kAnyDevice
    std::atomic<bool> ran{false};
};

// Gives a kernel to the stream of a handle, which must be alive, and of the kernel's device; while
// that is captured, it becomes a node. Of such a kernel the times are counted that a device would
// run it: now, or whenever the graph is launched. Null: a kernel of torch.
Status launch_kernel(void* stream, const std::shared_ptr<Kernel>& kernel = nullptr);

// Kernels take no time, but what torch.cuda._sleep launches never ends if a device would run it for
// hours; not on a stream that is captured. `arguments`: those of the launch.
void spin_if_endless(const void* function, void** arguments, void* stream);

// Remembers the kernel of torch behind a function, by the name that the compiler gave it, which
// must stay; and that name, or null.
void name_kernel_of_torch(const void* function, const char* name);
const char* kernel_of_torch(const void* function);

// Whether it is what torch.cuda._sleep launches.
bool is_spin_kernel(const void* function);

// "my::kernel" for the compiler's name of "void my::kernel<int>(int*)", and what is no name of C++
// as it is.
std::string readable(const char* name);

// Tells the observer of emu_set_launch_observer what the calling thread launches, unless the host
// computes it.
void tell_of_launch(const char* name);
bool somebody_hears_of_launches();
bool host_computes_now();

// Code that was loaded, for one device or for any. Its kernels go with it; a graph keeps those that
// it captured.
class Module {
  public:
    explicit Module(int device) : device_(device) {}
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;
    ~Module();

    // The handle of a kernel, the same for the same name. What is inside of the code is not looked
    // at, so that every name is found.
    void* kernel(const std::string& name);

    // A kernel that has this handle already; `symbol` is its own, other kernels may share `name`.
    void add(const void* handle, const std::string& symbol, const std::string& name);

  private:
    const int device_;
    // Protects kernels_. The mutex of the table of kernels comes after it.
    std::mutex mutex_;
    std::map<std::string, void*> kernels_;
};

// The live modules, and the kernels of all of them, by handle.
inline HandleTable<Module>& modules() {
    return leaked<HandleTable<Module>>();
}
inline HandleTable<Kernel>& kernels() {
    return leaked<HandleTable<Kernel>>();
}

} // namespace tracehook::rehearsal::cuda
