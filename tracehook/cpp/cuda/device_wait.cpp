#include "cuda/device_wait.h"

#include "cuda/runtime.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <sys/mman.h>
#include <unistd.h>

namespace tracehook::cuda {

namespace {

// A page of the system for each thread that waits at this moment: two may not register the same
// one, and one must not wait for the other, whose device may not finish before this thread goes on.
class Pages {
  public:
    static constexpr std::size_t kCount = 64;

    // Null if all are in use, or the system has no room for them.
    std::byte* take() noexcept {
        for (std::size_t i = 0; begin_ != nullptr && i < kCount; ++i) {
            if (!taken_[i].test_and_set(std::memory_order_acquire)) {
                return begin_ + i * bytes();
            }
        }
        return nullptr;
    }
    void give_back(const std::byte* page) noexcept {
        taken_[static_cast<std::size_t>(page - begin_) / bytes()].clear(std::memory_order_release);
    }
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    static std::byte* reserved(std::size_t bytes) noexcept { // never touched: they take no memory
        void* const found =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return found != MAP_FAILED ? static_cast<std::byte*>(found) : nullptr;
    }

    const std::size_t bytes_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::byte* const begin_ = reserved(kCount * bytes_);
    std::array<std::atomic_flag, kCount> taken_{};
};

Pages& pages() noexcept {
    static auto* const all = new Pages;
    return *all;
}

// cudaDeviceSynchronize ends every capture on the device, whatever the thread and the mode: error
// 900, and the graph is lost. What gives memory back waits for the device as well, and in relaxed
// mode that leaves captures alone. Seen with driver 580 and CUDA 13 on an H100: cudaFree,
// cudaFreeHost and cudaHostUnregister waited for a kernel on another stream, and the capture went
// on. To unregister a page needs no memory and costs least: 70 us with registering it.
bool wait_by_unregistering() noexcept {
    const Runtime& cuda = runtime();
    if (cuda.cudaThreadExchangeStreamCaptureMode == nullptr || cuda.cudaHostRegister == nullptr ||
        cuda.cudaHostUnregister == nullptr) {
        return false;
    }
    std::byte* const page = pages().take();
    if (page == nullptr) {
        return false;
    }
    const BesideCaptures relaxed;
    const bool waited = absorbed(cuda.cudaHostRegister(page, pages().bytes(), 0)) == 0 &&
                        absorbed(cuda.cudaHostUnregister(page)) == 0;
    pages().give_back(page);
    return waited;
}

} // namespace

int wait_for_device(int device) noexcept {
    const Runtime& cuda = runtime();
    int before = -1;
    const bool moves = device >= 0 && cuda.cudaGetDevice != nullptr &&
                       cuda.cudaSetDevice != nullptr &&
                       absorbed(cuda.cudaGetDevice(&before)) == 0 && before != device;
    if (moves) {
        absorbed(cuda.cudaSetDevice(device));
    }
    int status = 0;
    if (!wait_by_unregistering() && cuda.cudaDeviceSynchronize != nullptr) {
        status = cuda.cudaDeviceSynchronize(); // a capture may be lost, the memory is safe
    }
    if (moves) {
        absorbed(cuda.cudaSetDevice(before));
    }
    return status;
}

} // namespace tracehook::cuda
