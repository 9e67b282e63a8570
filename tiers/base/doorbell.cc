#include "tiers/base/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace kvtier {

Doorbell::Doorbell() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Doorbell::Ring() const {
  const uint64_t one = 1;
  // It fails only where it has rung more often than a counter holds.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

void Doorbell::Silence() const {
  uint64_t rung = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &rung, sizeof(rung));
}

}  // namespace kvtier
