#pragma once

#include <chrono>
#include <thread>

namespace kvtier {

/// Polls `condition` until it holds; false after `seconds`. For what another process does in its own time.
template <typename Condition>
bool Eventually(double seconds, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace kvtier
