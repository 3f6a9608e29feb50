#include "device_properties.h"

#include "devices.h"
#include "identity.h"

#include <cstdio>

namespace tracehook::rehearsal::cuda {

void fill_properties(DeviceProperties& properties, int device) {
    properties = {};
    std::snprintf(properties.name, sizeof properties.name, "%s", gpu().name);
    properties.uuid = device_uuid(physical_index(device));
    properties.total_global_memory = device_capacity();
#define PROPERTY(field, attribute, value) properties.field = value;
#define ATTRIBUTE(attribute, value)
#include "device_properties.def"
#undef PROPERTY
#undef ATTRIBUTE
}

int device_attribute(int attribute, int device) {
    switch (attribute) {
        // clang-format off
#define PROPERTY(field, number, value) case number: return value;
#define ATTRIBUTE(number, value) case number: return value;
// clang-format on
#include "device_properties.def"
#undef PROPERTY
#undef ATTRIBUTE
    default:
        return 0;
    }
}

} // namespace tracehook::rehearsal::cuda
