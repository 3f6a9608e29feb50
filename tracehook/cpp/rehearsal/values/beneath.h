// The state of a thread while it computes for a device: only CPU kernels are called, and nobody who
// watches PyTorch's dispatcher sees them.
//
// For the thread that makes it, until it goes.
#pragma once

#include "rehearsal/cuda/device.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tracehook::rehearsal::values {

class Beneath {
  public:
    Beneath() : keys_(local_keys()) {}
    Beneath(const Beneath&) = delete;
    Beneath& operator=(const Beneath&) = delete;

  private:
    static c10::impl::LocalDispatchKeySet local_keys() {
        c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
        keys.included_ = c10::default_included_set;
        keys.excluded_ =
            keys.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
            c10::autocast_dispatch_keyset | c10::functorch_transforms_ks |
            c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                 c10::DispatchKey::PythonDispatcher, c10::DispatchKey::PreDispatch,
                                 c10::DispatchKey::Functionalize});
        return keys;
    }

    c10::impl::ForceDispatchKeyGuard keys_;
    at::DisableRecordFunctionGuard watchers_;
};

// While a CUDA kernel of PyTorch works: the operations that it is made of are not computed one by
// one, because the host computes the whole.
class Within {
  public:
    Within() : before_(flag()) {
        flag() = true;
        emu_host_computes(1);
    }
    ~Within() {
        flag() = before_;
        emu_host_computes(-1);
    }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

    static bool holds() { return flag(); }

  private:
    static bool& flag() {
        static thread_local bool within = false;
        return within;
    }

    const bool before_;
};

} // namespace tracehook::rehearsal::values
