#include "cuda/held_memory.h"

namespace tracehook::cuda {

int map_at(std::uintptr_t place, Memory memory, std::size_t size,
           std::span<const Access> access) noexcept {
    const auto& driver = virtual_memory();
    int status = driver.cuMemMap(place, size, 0, memory, 0);
    if (status != 0) {
        driver.cuMemAddressFree(place, size);
        return status;
    }
    for (std::size_t i = 0; status == 0 && i < access.size(); ++i) {
        status = driver.cuMemSetAccess(place, size, &access[i], 1);
    }
    if (status != 0) {
        driver.cuMemUnmap(place, size);
        driver.cuMemAddressFree(place, size);
    }
    return status;
}

} // namespace tracehook::cuda
