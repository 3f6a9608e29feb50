// What a room above keeps with one communicator, and is told of that communicator's life. The
// registrar knows nothing else of it.
//
// Made with the communicator, by whom the registrar was given, and gone with it. None of these
// functions throws.
#pragma once

#include <functional>
#include <memory>

namespace tracehook::registrar {

class Communicator;

class Companion {
  public:
    virtual ~Companion() = default;

    // Any thread, before a call that ends the communicator: whether something has to stay until
    // gone(). Waits a moment itself.
    virtual bool stays() noexcept { return false; }
    // By the thread inside the gate, before an ordered end, unless it stays: undoes all.
    virtual void retire() noexcept {}
    // The communicator is dead by an abort: nobody may wait for a call of it any more.
    virtual void kill() noexcept {}
    // Once, when it is dead: the last lines of the log.
    virtual void log_end() noexcept {}
    // The call that ended it has returned: the library has nothing of it any more. Any thread.
    virtual void gone() noexcept {}
    // After an ordered end, outside the gate: gives memory back that nobody needs now.
    virtual void release_idle() noexcept {}
};

using MakeCompanion = std::function<std::unique_ptr<Companion>(Communicator&)>;

} // namespace tracehook::registrar
