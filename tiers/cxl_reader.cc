#include "tiers/cxl_reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "tiers/cold_io.h"

namespace kvtier {

Result<std::unique_ptr<CxlReader>> CxlReader::Open(const CxlTarget& target) {
  // NONBLOCK: whatever has come to have that name, opening it ends.
  UniqueFd fd(::open(target.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return StatusFromErrno(errno, "open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return StatusFromErrno(errno, "look at");
  const bool is_device = target.kind == CxlKind::kDevDax;
  if (!is_device && !S_ISREG(info.st_mode)) return Status(Code::kFailedPrecondition, "is not a file");
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Status(Code::kFailedPrecondition, "a daemon uses it");
    return StatusFromErrno(errno, "lock");
  }
  KVTIER_ASSIGN(std::unique_ptr<BlockIo> io, MakeBlockIo(BlockIoKind::kSync));
  std::unique_ptr<CxlReader> reader(new CxlReader(target.path, std::move(fd), std::move(io)));
  reader->bytes_ = static_cast<uint64_t>(info.st_size);
  if (is_device) KVTIER_TRY(reader->MapDevice(target));
  return reader;
}

Status CxlReader::MapDevice(const CxlTarget& target) {
  bytes_ = target.device_bytes;
  if (bytes_ == 0) return Status(Code::kUnavailable, "the system does not say how large it is");
  KVTIER_ASSIGN(mapping_, MappedMemory::MapShared(fd_.get(), bytes_, MapAccess::kReadOnly));
  KVTIER_ASSIGN(guard_, FaultGuard::Watch(mapping_.span(), target.device_page_bytes));
  return Status::Ok();
}

Result<std::span<const std::byte>> CxlReader::Read(uint64_t offset, uint64_t bytes, AlignedBuffer& buffer) {
  KVTIER_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  if (mapping_.data() != nullptr) return std::span<const std::byte>(mapping_.span().subspan(offset, bytes));
  KVTIER_ASSIGN(const std::span<std::byte> memory, buffer.Reserve(bytes));
  KVTIER_TRY(RunWithTimeout(*io_, ReadRequest(fd_.get(), offset, memory.first(bytes))));
  return std::span<const std::byte>(memory.first(bytes));
}

}  // namespace kvtier
