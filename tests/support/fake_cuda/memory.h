#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "tiers/base/mapping.h"
#include "tiers/base/unique_fd.h"

namespace kvtier::fake_cuda {

enum class MemoryKind : uint8_t { kDevice, kPinned, kImported };

/// A memory file that a program sees at one address, where device memory cannot be touched, and the fake at
/// another, where it can.
class Allocation {
 public:
  /// Null: the system has no memory.
  static std::unique_ptr<Allocation> Make(MemoryKind kind, int device, uint64_t bytes);
  /// Of another process: the file is opened anew.
  static std::unique_ptr<Allocation> Import(int device, int file, uint64_t bytes);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  MemoryKind kind() const { return kind_; }
  bool is_on_device() const { return kind_ != MemoryKind::kPinned; }
  int device() const { return device_; }
  uint64_t bytes() const { return bytes_; }
  int file() const { return file_.get(); }
  std::byte* program_address() const { return program_; }
  /// Where the fake reads and writes what a program knows as `address`.
  std::byte* Backing(const void* address) const;
  bool Holds(const void* address, uint64_t bytes) const;
  /// For a kernel that runs: the program's address can be used, or not.
  void SetAccess(bool can_be_touched) const;

 private:
  Allocation(MemoryKind kind, int device, uint64_t bytes) : kind_(kind), device_(device), bytes_(bytes) {}
  bool Map();

  const MemoryKind kind_;
  const int device_;
  const uint64_t bytes_;
  UniqueFd file_;
  MappedMemory backing_;
  std::byte* program_ = nullptr;
};

/// What a program has been given, by its address.
class MemoryMap {
 public:
  std::byte* Add(std::unique_ptr<Allocation> allocation);
  /// The allocation that has all of these bytes; null: none has.
  Allocation* Find(const void* address, uint64_t bytes) const;
  /// That begins at `address`.
  Allocation* At(const void* address) const;
  void Remove(const void* address);
  uint64_t DeviceBytes(int device) const;
  uint64_t size() const { return by_address_.size(); }
  template <typename Body>
  void ForEach(const Body& body) const {
    for (const auto& [address, allocation] : by_address_) body(*allocation);
  }

 private:
  std::map<const std::byte*, std::unique_ptr<Allocation>> by_address_;
};

}  // namespace kvtier::fake_cuda
