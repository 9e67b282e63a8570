#include "tests/support/fake_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

#include "tiers/base/check.h"
#include "tiers/base/memfd.h"

namespace kvtier::fake_cuda {
namespace {

/// What memory holds that nobody has written.
constexpr int kFreshByte = 0xCD;

/// What one mapping takes: a page more than the memory, so that one byte too far is found.
uint64_t MappedBytes(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page + page;
}

}  // namespace

std::unique_ptr<Allocation> Allocation::Make(MemoryKind kind, int device, uint64_t bytes) {
  std::unique_ptr<Allocation> allocation(new Allocation(kind, device, bytes));
  Result<UniqueFd> file = MakeMemoryFile("fake-cuda", bytes);
  if (!file.ok()) return nullptr;
  allocation->file_ = std::move(*file);
  if (!allocation->Map()) return nullptr;
  memset(allocation->backing_.data(), kFreshByte, bytes);
  return allocation;
}

std::unique_ptr<Allocation> Allocation::Import(int device, int file, uint64_t bytes) {
  std::unique_ptr<Allocation> allocation(new Allocation(MemoryKind::kImported, device, bytes));
  allocation->file_ = UniqueFd(file);
  return allocation->Map() ? std::move(allocation) : nullptr;
}

bool Allocation::Map() {
  Result<MappedMemory> backing = MappedMemory::MapShared(file_.get(), bytes_, MapAccess::kReadWrite);
  if (!backing.ok()) return false;
  backing_ = std::move(*backing);
  void* reserved =
      mmap(nullptr, MappedBytes(bytes_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return false;
  program_ = static_cast<std::byte*>(reserved);
  const int access = is_on_device() ? PROT_NONE : PROT_READ | PROT_WRITE;
  return mmap(program_, bytes_, access, MAP_SHARED | MAP_FIXED, file_.get(), 0) != MAP_FAILED;
}

Allocation::~Allocation() {
  if (program_ == nullptr) return;
  // The address is never given again: whoever uses it too late is found, and does not find what is there now.
  void* gone = mmap(program_, MappedBytes(bytes_), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  KVTIER_CHECK(gone == program_);
}

std::byte* Allocation::Backing(const void* address) const {
  return backing_.data() + (static_cast<const std::byte*>(address) - program_);
}

bool Allocation::Holds(const void* address, uint64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(address);
  return first >= program_ && first <= program_ + bytes_ &&
         bytes <= static_cast<uint64_t>(program_ + bytes_ - first);
}

void Allocation::SetAccess(bool can_be_touched) const {
  if (!is_on_device()) return;
  KVTIER_CHECK(mprotect(program_, bytes_, can_be_touched ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

std::byte* MemoryMap::Add(std::unique_ptr<Allocation> allocation) {
  std::byte* address = allocation->program_address();
  by_address_[address] = std::move(allocation);
  return address;
}

Allocation* MemoryMap::Find(const void* address, uint64_t bytes) const {
  auto after = by_address_.upper_bound(static_cast<const std::byte*>(address));
  if (after == by_address_.begin()) return nullptr;
  Allocation* candidate = std::prev(after)->second.get();
  return candidate->Holds(address, bytes) ? candidate : nullptr;
}

Allocation* MemoryMap::At(const void* address) const {
  const auto found = by_address_.find(static_cast<const std::byte*>(address));
  return found == by_address_.end() ? nullptr : found->second.get();
}

void MemoryMap::Remove(const void* address) {
  by_address_.erase(static_cast<const std::byte*>(address));
}

uint64_t MemoryMap::DeviceBytes(int device) const {
  uint64_t bytes = 0;
  ForEach([&](const Allocation& one) {
    if (one.kind() == MemoryKind::kDevice && one.device() == device) bytes += one.bytes();
  });
  return bytes;
}

}  // namespace kvtier::fake_cuda
