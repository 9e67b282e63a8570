#include "tiers/base/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace kvtier {

Result<UniqueFd> MakeMemoryFile(const char* name, uint64_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return StatusFromErrno(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return StatusFromErrno(errno, "memfd size");
  return fd;
}

Status AddSeals(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0) return StatusFromErrno(errno, "memfd seal");
  return Status::Ok();
}

Status CheckSealed(int fd, int required_seals, uint64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & required_seals) != required_seals) {
    return Status(Code::kInvalidArgument, "the descriptor is not a memory file with the seals required");
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return Status(Code::kInvalidArgument, "the memory file is smaller than agreed");
  }
  return Status::Ok();
}

}  // namespace kvtier
