#include "tiers/cxl_mapping.h"

#include <fcntl.h>
#include <libpmem2.h>
#include <linux/magic.h>
#include <numaif.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <vector>

#include "tiers/base/memfd.h"

namespace kvtier {

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kPopulateBytes = uint64_t{64} << 20;
constexpr uint32_t kSampledPages = 64;
constexpr uint32_t kMaxNodes = 1024;

/// libpmem2 gives an errno, negated, or a code of its own below all of them.
Status FromPmem(int error, std::string_view what) {
  const std::string text = std::string(what) + " (" + pmem2_errormsg() + ")";
  return error > PMEM2_E_UNKNOWN ? StatusFromErrno(-error, text) : Status(Code::kUnavailable, text);
}

/// For this process alone; the kernel drops it with the process.
Status Lock(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Status::Ok();
  if (errno == EWOULDBLOCK) return Status(Code::kFailedPrecondition, path + ": another daemon uses it");
  return StatusFromErrno(errno, "lock " + path);
}

Result<UniqueFd> OpenLocked(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
  if (!fd.valid() && errno == ELOOP) {
    return Status(Code::kFailedPrecondition, path + " is a symbolic link: name what it leads to");
  }
  if (!fd.valid()) return StatusFromErrno(errno, "open " + path);
  KVTIER_TRY(Lock(fd.get(), path));
  return fd;
}

/// The first bytes of a file, as many as there are of `limit`.
Result<std::vector<std::byte>> ReadStart(int fd, uint64_t limit) {
  std::vector<std::byte> start(limit);
  uint64_t done = 0;
  while (done < limit) {
    const ssize_t got = ::pread(fd, start.data() + done, limit - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return StatusFromErrno(errno, "read");
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  start.resize(done);
  return start;
}

/// Gives back what the file has beyond `bytes`, without moving its end: for a process that maps it still,
/// from an earlier daemon, memory without a file behind it is a signal, and a hole is zeros. How much of the
/// file is kept: all of it where a file system knows no holes.
Result<uint64_t> GiveBack(int fd, uint64_t bytes, uint64_t file_bytes) {
  if (file_bytes <= bytes) return file_bytes;
  const int punched = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(bytes),
                                  static_cast<off_t>(file_bytes - bytes));
  if (punched == 0) return bytes;
  if (errno == EOPNOTSUPP || errno == ENOSYS) return file_bytes;
  return StatusFromErrno(errno, "give back");
}

/// Every block of the file exists: a write into a hole of a full disk would raise SIGBUS.
Status Allocate(int fd, uint64_t from, uint64_t bytes) {
  if (from < bytes && ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return StatusFromErrno(errno, "size");
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return Status::Ok();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return StatusFromErrno(errno, "allocate");
  const std::vector<std::byte> zeros(uint64_t{1} << 20);
  for (uint64_t at = from; at < bytes;) {
    const uint64_t part = std::min<uint64_t>(zeros.size(), bytes - at);
    const ssize_t written = ::pwrite(fd, zeros.data(), part, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return StatusFromErrno(errno, "allocate");
    at += static_cast<uint64_t>(written);
  }
  return Status::Ok();
}

/// A file in memory outlives the daemon, not the machine.
bool IsInMemory(int fd) {
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return false;
  const auto type = static_cast<uint64_t>(info.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

}  // namespace

/// libpmem2's side of a mapping.
struct CxlMapping::Pmem {
  ~Pmem() {
    if (map != nullptr) pmem2_map_delete(&map);
    if (config != nullptr) pmem2_config_delete(&config);
    if (source != nullptr) pmem2_source_delete(&source);
  }
  pmem2_source* source = nullptr;
  pmem2_config* config = nullptr;
  pmem2_map* map = nullptr;
  pmem2_memcpy_fn copy = nullptr;
  pmem2_memset_fn set = nullptr;
  pmem2_drain_fn drain = nullptr;
  unsigned flags = PMEM2_F_MEM_NONTEMPORAL;
};

CxlMapping::CxlMapping() : pmem_(std::make_unique<Pmem>()) {}

CxlMapping::~CxlMapping() {
  guard_.Reset();  // before the memory goes
}

Result<std::unique_ptr<CxlMapping>> CxlMapping::Make(Options options) {
  KVTIER_CHECK(options.bytes > 0 && options.bytes % kPageBytes == 0);
  std::unique_ptr<CxlMapping> mapping(new CxlMapping());
  mapping->kind_ = options.target.kind;
  mapping->bytes_ = options.bytes;
  switch (options.target.kind) {
    case CxlKind::kDevDax:
      KVTIER_TRY(mapping->OpenDevice(options));
      break;
    case CxlKind::kNuma:
      KVTIER_TRY(mapping->OpenMemory(options));
      break;
    default:
      KVTIER_TRY(mapping->OpenFile(options));
  }
  return mapping;
}

Status CxlMapping::OpenFile(const Options& options) {
  const std::string& path = options.target.path;
  KVTIER_ASSIGN(fd_, OpenLocked(path, O_CREAT));
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return StatusFromErrno(errno, path);
  if (!S_ISREG(info.st_mode)) return Status(Code::kFailedPrecondition, path + " is not a file");
  KVTIER_ASSIGN(const std::vector<std::byte> start, ReadStart(fd_.get(), kStartBytes));
  if (options.accept) KVTIER_TRY(options.accept(start));
  const auto old_bytes = static_cast<uint64_t>(info.st_size);
  const Result<uint64_t> kept = GiveBack(fd_.get(), options.bytes, old_bytes);
  Status status = kept.status();
  if (status.ok()) stale_bytes_ = *kept;
  if (status.ok()) status = Allocate(fd_.get(), old_bytes, options.bytes);
  if (status.ok()) status = Map();
  if (status.ok()) {
    const bool dax = persistence_ != CxlPersistence::kPage;
    if (!dax && IsInMemory(fd_.get())) persistence_ = CxlPersistence::kNone;
    if (!dax && kind_ == CxlKind::kFsDax) {
      status = Status(Code::kFailedPrecondition, "is on no DAX file system: name it \"file\" or \"auto\"");
    }
    if (dax && options.target.any_file) kind_ = CxlKind::kFsDax;
  }
  // What was made for nothing goes again.
  if (!status.ok() && old_bytes == 0) ::unlink(path.c_str());
  return status.WithContext(path);
}

Status CxlMapping::OpenDevice(const Options& options) {
  const std::string& path = options.target.path;
  KVTIER_ASSIGN(fd_, OpenLocked(path, 0));
  const Status mapped = Map();
  if (!mapped.ok()) return mapped.WithContext(path);
  stale_bytes_ = mapped_bytes_;
  // Memory that forgets can hold nothing of anybody's from before.
  if (!options.target.device_keeps_data) {
    persistence_ = CxlPersistence::kNone;
    return Status::Ok();
  }
  if (!options.accept) return Status::Ok();
  return options.accept(span().first(std::min<uint64_t>(bytes_, kStartBytes)));
}

Status CxlMapping::OpenMemory(const Options& options) {
  KVTIER_ASSIGN(fd_, MakeMemoryFile("kvtier-cxl", bytes_));
  KVTIER_TRY(Map());
  persistence_ = CxlPersistence::kNone;
  KVTIER_TRY(BindToNode(options.target.numa_node));
  return AddSeals(fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

Status CxlMapping::Map() {
  Pmem& pmem = *pmem_;
  if (const int error = pmem2_source_from_fd(&pmem.source, fd_.get()))
    return FromPmem(error, "open for mapping");
  size_t alignment = kPageBytes, source_bytes = 0;
  if (const int error = pmem2_source_alignment(pmem.source, &alignment)) return FromPmem(error, "alignment");
  if (const int error = pmem2_source_size(pmem.source, &source_bytes)) return FromPmem(error, "size");
  if (source_bytes < bytes_) {
    return Status(Code::kFailedPrecondition, "has " + std::to_string(source_bytes) +
                                                 " bytes, fewer than the " + std::to_string(bytes_) +
                                                 " of the capacity");
  }
  if (const int error = pmem2_config_new(&pmem.config)) return FromPmem(error, "configure");
  pmem2_config_set_required_store_granularity(pmem.config, PMEM2_GRANULARITY_PAGE);
  if (const int error = pmem2_map_new(&pmem.map, pmem.config, pmem.source)) return FromPmem(error, "map");
  pmem.copy = pmem2_get_memcpy_fn(pmem.map);
  pmem.set = pmem2_get_memset_fn(pmem.map);
  pmem.drain = pmem2_get_drain_fn(pmem.map);
  switch (pmem2_map_get_store_granularity(pmem.map)) {
    case PMEM2_GRANULARITY_BYTE:
      persistence_ = CxlPersistence::kByte;
      break;
    case PMEM2_GRANULARITY_CACHE_LINE:
      persistence_ = CxlPersistence::kCacheLine;
      break;
    case PMEM2_GRANULARITY_PAGE:
      persistence_ = CxlPersistence::kPage;
      // The library would sync every copy at once, and could not say that it failed.
      pmem.flags |= PMEM2_F_MEM_NOFLUSH;
      break;
  }
  data_ = static_cast<std::byte*>(pmem2_map_get_address(pmem.map));
  mapped_bytes_ = pmem2_map_get_size(pmem.map);
  const std::span<std::byte> mapped(data_, mapped_bytes_);
  KVTIER_ASSIGN(guard_, FaultGuard::Watch(mapped, std::max<uint64_t>(alignment, kPageBytes)));
  return Status::Ok();
}

Status CxlMapping::BindToNode(uint32_t node) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  const std::string name = "NUMA node " + std::to_string(node);
  if (node >= kMaxNodes) return Status(Code::kInvalidArgument, name + " is beyond what a mask holds");
  std::array<unsigned long, kMaxNodes / kBits> mask{};
  mask[node / kBits] |= 1ul << (node % kBits);
  if (::mbind(data_, bytes_, MPOL_BIND, mask.data(), kMaxNodes, 0) != 0) {
    return StatusFromErrno(errno, "bind memory to " + name);
  }
  // Now, and not while a block waits: memory of a node comes slowly, and the kernel kills who finds it full.
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14
  for (uint64_t at = 0; at < bytes_; at += kPopulateBytes) {
    const uint64_t part = std::min(kPopulateBytes, bytes_ - at);
    int error = 0;
    do {
      error = ::madvise(data_ + at, part, kPopulateWrite) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EINVAL) {
      Zero(at, part);
    } else if (error != 0) {
      return Status(Code::kResourceExhausted,
                    name + " gave " + std::to_string(at) + " of " + std::to_string(bytes_) + " bytes");
    }
  }
  return Status::Ok();
}

void CxlMapping::Write(uint64_t offset, std::span<const std::byte> bytes) {
  KVTIER_CHECK(offset <= bytes_ && bytes.size() <= bytes_ - offset);
  pmem_->copy(data_ + offset, bytes.data(), bytes.size(), pmem_->flags);
}

void CxlMapping::Zero(uint64_t offset, uint64_t bytes) {
  KVTIER_CHECK(offset <= mapped_bytes_ && bytes <= mapped_bytes_ - offset);
  pmem_->set(data_ + offset, 0, bytes, pmem_->flags);
}

Status CxlMapping::Persist(uint64_t offset, uint64_t bytes) {
  KVTIER_CHECK(offset <= mapped_bytes_ && bytes <= mapped_bytes_ - offset);
  if (persistence_ == CxlPersistence::kPage) {
    const uint64_t begin = offset / kPageBytes * kPageBytes;
    if (::msync(data_ + begin, offset + bytes - begin, MS_SYNC) != 0) return StatusFromErrno(errno, "msync");
  } else {
    pmem_->drain();  // copies flushed what they wrote
  }
  if (lost()) return Status(Code::kUnavailable, "a page of the memory is gone");
  return Status::Ok();
}

Result<UniqueFd> CxlMapping::OpenReadOnly() const {
  // Another description of the same file: a copy of the descriptor could write, and would keep the lock.
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return StatusFromErrno(errno, "open to read");
  return fd;
}

NumaPlacement CxlMapping::Placement() const {
  std::vector<void*> pages;
  for (uint32_t i = 0; i < kSampledPages; ++i) {
    pages.push_back(data_ + bytes_ / kPageBytes * i / kSampledPages * kPageBytes);
  }
  // Pages that were never touched are nowhere; reading one is enough where something is behind it.
  for (void* page : pages) static_cast<void>(*static_cast<const volatile std::byte*>(page));
  std::vector<int> nodes(pages.size(), -1);
  NumaPlacement placement;
  if (::move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) return placement;
  std::map<int, uint32_t> counts;
  for (const int node : nodes) {
    if (node < 0) continue;
    ++placement.sampled;
    if (++counts[node] > placement.on_node) {
      placement.on_node = counts[node];
      placement.node = node;
    }
  }
  return placement;
}

std::string CxlMapping::Describe() const {
  const char* how = "";
  switch (persistence_) {
    case CxlPersistence::kByte:
      how = "persistent, every store at once";
      break;
    case CxlPersistence::kCacheLine:
      how = "persistent by flushes of cache lines";
      break;
    case CxlPersistence::kPage:
      how = "persistent by msync";
      break;
    case CxlPersistence::kNone:
      how = "not persistent: lost with power";
      break;
  }
  return std::string(CxlKindName(kind_)) + ", " + how;
}

}  // namespace kvtier
