#include "nccl/device_wait.h"

#include "nccl/api.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace tracehook::nccl {

namespace {

constexpr int kRelaxed = 2; // cudaStreamCaptureModeRelaxed

// While it lives, calls of this thread that are not part of a capture do not end one.
class BesideCaptures {
  public:
    BesideCaptures() noexcept { exchange(); }
    ~BesideCaptures() { exchange(); }
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

  private:
    void exchange() noexcept { api().cudaThreadExchangeStreamCaptureMode(&mode_); }
    int mode_ = kRelaxed;
};

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
    const Api& cuda = api();
    if (cuda.cudaThreadExchangeStreamCaptureMode == nullptr || cuda.cudaHostRegister == nullptr ||
        cuda.cudaHostUnregister == nullptr) {
        return false;
    }
    Page* const page = pages.take();
    if (page == nullptr) {
        return false;
    }
    const BesideCaptures relaxed;
    const bool waited =
        cuda.cudaHostRegister(page, kPageBytes, 0) == 0 && cuda.cudaHostUnregister(page) == 0;
    pages.give_back(page);
    return waited;
}

} // namespace

void wait_for_device(int device) noexcept {
    const Api& cuda = api();
    const int before = current_device();
    if (device >= 0 && before != device) {
        cuda.cudaSetDevice(device);
    }
    if (!wait_by_unregistering()) {
        if (cuda.cudaGetLastError != nullptr) {
            cuda.cudaGetLastError(); // else torch would take the error for its own
        }
        if (cuda.cudaDeviceSynchronize != nullptr) {
            cuda.cudaDeviceSynchronize(); // a capture may be lost, the memory is safe
        }
    }
    if (before >= 0 && before != device && device >= 0) {
        cuda.cudaSetDevice(before);
    }
}

} // namespace tracehook::nccl
