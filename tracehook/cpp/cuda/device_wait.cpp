#include "cuda/device_wait.h"

#include "cuda/runtime.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace tracehook::cuda {

namespace {

constexpr std::size_t kPageBytes = 4096;

struct alignas(kPageBytes) Page {
    std::array<std::byte, kPageBytes> bytes;
};

// A page for each thread that waits at this moment: two may not register the same one, and one must
// not wait for the other, whose device may not finish before this thread goes on.
class Pages {
  public:
    static constexpr std::size_t kCount = 64;

    // Null if all are in use.
    Page* take() noexcept {
        for (std::size_t i = 0; i < kCount; ++i) {
            if (!taken_[i].test_and_set(std::memory_order_acquire)) {
                return &pages_[i];
            }
        }
        return nullptr;
    }
    void give_back(const Page* page) noexcept {
        taken_[static_cast<std::size_t>(page - pages_.data())].clear(std::memory_order_release);
    }

  private:
    std::array<Page, kCount> pages_{}; // never touched, so they take no memory
    std::array<std::atomic_flag, kCount> taken_{};
};

Pages pages;

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
    Page* const page = pages.take();
    if (page == nullptr) {
        return false;
    }
    const BesideCaptures relaxed;
    const bool waited = absorbed(cuda.cudaHostRegister(page, kPageBytes, 0)) == 0 &&
                        absorbed(cuda.cudaHostUnregister(page)) == 0;
    pages.give_back(page);
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
