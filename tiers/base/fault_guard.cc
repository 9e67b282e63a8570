#include "tiers/base/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

namespace kvtier {

/// Free when `end` is 0. Written in this order: the other fields, then `end`.
struct FaultGuard::Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<uint64_t> page_bytes{0};
  std::atomic<bool> lost{false};
};

/// What the handler needs: it is called with nothing but the address.
struct FaultTable {
  std::array<FaultGuard::Slot, FaultGuard::kMaxGuards> slots;
  struct sigaction previous {};
  std::once_flag once;
  int install_error = 0;

  static FaultTable& Get() {
    static FaultTable table;
    return table;
  }
  /// Only what a signal handler may call.
  static void Handle(int signal, siginfo_t* info, void* context);
  void Install() {
    struct sigaction action {};
    action.sa_sigaction = &FaultTable::Handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (::sigaction(SIGBUS, &action, &previous) != 0) install_error = errno;
  }
};

void FaultTable::Handle(int signal, siginfo_t* info, void* context) {
  FaultTable& table = Get();
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (FaultGuard::Slot& slot : table.slots) {
    const uintptr_t end = slot.end.load(std::memory_order_acquire), begin = slot.begin.load();
    if (address < begin || address >= end) continue;
    const uint64_t page_bytes = slot.page_bytes.load();
    void* page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
    slot.lost.store(true);
    if (::mmap(page, page_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == page) {
      errno = saved_errno;
      return;
    }
  }
  errno = saved_errno;
  // Not ours: as if this handler was not there. The instruction faults again when it returns.
  if ((table.previous.sa_flags & SA_SIGINFO) != 0 && table.previous.sa_sigaction != nullptr) {
    table.previous.sa_sigaction(signal, info, context);
  } else if (table.previous.sa_handler != SIG_DFL && table.previous.sa_handler != SIG_IGN) {
    table.previous.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);
  }
}

FaultGuard& FaultGuard::operator=(FaultGuard&& other) noexcept {
  if (this != &other) {
    Reset();
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

Result<FaultGuard> FaultGuard::Watch(std::span<std::byte> memory, uint64_t page_bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  KVTIER_CHECK(page_bytes > 0 && begin % page_bytes == 0 && !memory.empty());
  FaultTable& table = FaultTable::Get();
  std::call_once(table.once, [&table] { table.Install(); });
  if (table.install_error != 0) return StatusFromErrno(table.install_error, "handle SIGBUS");
  for (Slot& slot : table.slots) {
    if (slot.taken.exchange(true)) continue;
    slot.lost.store(false);
    slot.page_bytes.store(page_bytes);
    slot.begin.store(begin);
    slot.end.store(begin + memory.size(), std::memory_order_release);
    return FaultGuard(&slot);
  }
  return Status(Code::kResourceExhausted, "too many mappings are watched for faults");
}

bool FaultGuard::lost() const {
  return slot_ != nullptr && slot_->lost.load();
}

void FaultGuard::Reset() {
  if (slot_ == nullptr) return;
  slot_->end.store(0);
  slot_->begin.store(0);
  slot_->taken.store(false);
  slot_ = nullptr;
}

}  // namespace kvtier
