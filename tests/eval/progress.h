#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace kvtier::eval {

/// What a long run is doing, on stderr: a line that changes, or lines of the larger steps where that is no
/// terminal.
class Progress {
 public:
  void Step(const std::string& step) {
    step_ = step;
    if (!terminal_) std::fprintf(stderr, "%6.0f s  %s\n", Seconds(), step.c_str());
    Show("");
  }
  void Show(const std::string& part) const {
    if (terminal_) std::fprintf(stderr, "\r%6.0f s  %s %-24s", Seconds(), step_.c_str(), part.c_str());
  }
  ~Progress() {
    if (terminal_) std::fprintf(stderr, "\n");
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  std::string step_;
};

}  // namespace kvtier::eval
