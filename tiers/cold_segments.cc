#include "tiers/cold_segments.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tiers/base/aligned_buffer.h"
#include "tiers/cold_folder.h"
#include "tiers/cold_io.h"

namespace kvtier {

namespace {

constexpr std::string_view kSuffix = ".seg";
constexpr std::string_view kNewSuffix = ".seg.new";
constexpr std::string_view kForeignSuffix = ".foreign";
constexpr std::string_view kForeignPart = ".seg.foreign";
constexpr uint32_t kMaxForeignNames = 100;
constexpr uint64_t kStatBlockBytes = 512;
constexpr size_t kNumberDigits = 8;

std::string NumberText(uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08u", number);
  return text;
}

/// A disk smaller than the tier's capacity would else be filled with segments until the index cannot grow.
Status CheckSpace(const std::string& folder, uint64_t bytes) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return StatusFromErrno(errno, "look at " + folder);
  if (space.f_bavail * space.f_frsize >= bytes) return Status::Ok();
  return Status(Code::kResourceExhausted, "no space for another segment in " + folder);
}

/// What the files that were set aside take of the disk.
Result<uint64_t> ForeignBytes(const std::string& folder) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    struct stat info {};
    if (name.find(kForeignPart) == std::string::npos) continue;
    if (::stat((folder + "/" + name).c_str(), &info) != 0) continue;
    bytes += static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes;
  }
  return bytes;
}

/// Reserves the blocks where the file system can, else only sets the size.
Status Allocate(int fd, uint64_t bytes, const std::string& path) {
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return Status::Ok();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return StatusFromErrno(errno, "allocate " + path);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return Status::Ok();
  return StatusFromErrno(errno, "size " + path);
}

}  // namespace

Result<uint32_t> ParseSegmentName(std::string_view name) {
  if (name.size() == kNumberDigits + kSuffix.size() && name.ends_with(kSuffix)) {
    uint32_t number = 0;
    const std::string_view digits = name.substr(0, kNumberDigits);
    if (std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      for (char digit : digits) number = number * 10 + static_cast<uint32_t>(digit - '0');
      if (number < kColdMaxSegments) return number;
    }
  }
  return Status(Code::kNotFound, "not a segment's name");
}

ColdSegments::ColdSegments(Options options)
    : options_(std::move(options)), segments_(options_.segment_limit) {}

std::string ColdSegments::PathOf(uint32_t number) const {
  return options_.folder + "/" + NumberText(number) + std::string(kSuffix);
}

Result<ColdSegments::FilePtr> ColdSegments::OpenFile(const std::string& path, int extra_flags) const {
  const int direct = options_.direct_io ? O_DIRECT : 0;
  auto file = std::make_shared<File>();
  file->fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | direct | extra_flags, 0600));
  if (!file->fd.valid()) return StatusFromErrno(errno, "open " + path);
  return FilePtr(std::move(file));
}

Result<std::vector<ColdSegments::Found>> ColdSegments::Load(BlockIo& io) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(options_.folder));
  std::vector<Found> all;
  for (const std::string& name : names) {
    const std::string path = options_.folder + "/" + name;
    if (name.ends_with(kNewSuffix) && ::unlink(path.c_str()) != 0) {
      return StatusFromErrno(errno, "remove half-made " + path);
    }
    const Result<uint32_t> number = ParseSegmentName(name);
    if (!number.ok()) continue;
    if (*number >= options_.segment_limit) {
      // The capacity was larger once. It is a hard bound, and what stands there can be computed again.
      if (::unlink(path.c_str()) != 0) return StatusFromErrno(errno, "remove " + path);
      continue;
    }
    Result<Found> found = Inspect(*number, io);
    if (found.status().code() == Code::kFailedPrecondition) {
      KVTIER_TRY(SetAside(path));
      ++foreign_;
      continue;
    }
    if (found.status().code() == Code::kResourceExhausted) return found.status();
    if (!found.ok()) {
      // It may be somebody's mistake, or gone at the next start; until then it takes its room.
      ++unopened_;
      found = Found{.number = *number, .unread = true, .unopened = true};
    }
    all.push_back(*found);
  }
  KVTIER_ASSIGN(const uint64_t foreign_bytes, ForeignBytes(options_.folder));
  foreign_segments_ = static_cast<uint32_t>(std::min<uint64_t>(
      (foreign_bytes + options_.segment_bytes - 1) / options_.segment_bytes, options_.segment_limit));
  std::lock_guard lock(mutex_);
  for (const Found& found : all) {
    segments_[found.number].state = State::kPresent;
    segments_[found.number].sequence = found.sequence;
    segments_[found.number].damaged = found.sequence == 0;
  }
  present_ = static_cast<uint32_t>(all.size());
  return all;
}

Status ColdSegments::SetAside(const std::string& path) {
  for (uint32_t attempt = 1; attempt <= kMaxForeignNames; ++attempt) {
    const std::string suffix = attempt == 1 ? "" : "-" + std::to_string(attempt);
    const std::string aside = path + std::string(kForeignSuffix) + suffix;
    // NOREPLACE: what was set aside before may be somebody's only copy.
    if (::renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, aside.c_str(), RENAME_NOREPLACE) == 0) {
      return Status::Ok();
    }
    if (errno != EEXIST) return StatusFromErrno(errno, "move foreign " + path + " aside");
  }
  return Status(Code::kFailedPrecondition, "foreign " + path + ": " + std::to_string(kMaxForeignNames) +
                                               " files of that name were set aside already: remove some");
}

Result<ColdSegments::Found> ColdSegments::Inspect(uint32_t number, BlockIo& io) const {
  KVTIER_ASSIGN(FilePtr file, OpenFile(PathOf(number), 0));
  struct stat info {};
  if (::fstat(file->fd.get(), &info) != 0) return StatusFromErrno(errno, "stat " + PathOf(number));
  Found found{.number = number, .file_bytes = static_cast<uint64_t>(info.st_size)};
  if (!S_ISREG(info.st_mode)) return found;
  if (found.file_bytes >= kColdSegmentHeaderBytes) KVTIER_TRY(ReadUse(*file, io, found));
  if (found.file_bytes < options_.segment_bytes) {
    // What is written behind the cut needs a file of full size, its space reserved. `found` still says where
    // the cut was.
    Allocate(file->fd.get(), options_.segment_bytes, PathOf(number))
        .IgnoreBecause("where the disk is full a write into the segment says so, and a recycle tries again");
  }
  return found;
}

Status ColdSegments::ReadUse(const File& file, BlockIo& io, Found& found) const {
  AlignedBuffer buffer;
  KVTIER_ASSIGN(std::span<std::byte> block, buffer.Reserve(kColdBlockBytes));
  const std::span<std::byte> memory = block.first(kColdBlockBytes);
  found.unread = !RunWithTimeout(io, ReadRequest(file.fd.get(), 0, memory)).ok();
  if (found.unread) return Status::Ok();

  SegmentHeader header;
  std::memcpy(&header, block.data(), sizeof(header));
  const Status sound = CheckSegmentHeader(header, options_.uuid, found.number, options_.segment_bytes);
  if (sound.code() == Code::kFailedPrecondition) return sound;
  if (sound.ok()) found.sequence = header.sequence;
  return Status::Ok();
}

Status ColdSegments::WriteHeader(const File& file, uint32_t number, uint64_t sequence, BlockIo& io) const {
  AlignedBuffer buffer;
  KVTIER_ASSIGN(std::span<std::byte> block, buffer.Reserve(kColdBlockBytes));
  const SegmentHeader header = MakeSegmentHeader(options_.uuid, number, sequence, options_.segment_bytes);
  std::memcpy(block.data(), &header, sizeof(header));
  KVTIER_TRY(RunWithTimeout(io, WriteRequest(file.fd.get(), 0, block.first(kColdBlockBytes))));
  CountMetadata(kColdBlockBytes);
  return RunWithTimeout(io, SyncRequest(file.fd.get()));
}

Status ColdSegments::RepairHeader(uint32_t number, uint64_t sequence, BlockIo& io) {
  KVTIER_ASSIGN(const FilePtr file, OpenPresent(number));
  KVTIER_TRY(WriteHeader(*file, number, sequence, io));
  std::lock_guard lock(mutex_);
  segments_[number].sequence = sequence;
  segments_[number].damaged = false;
  return Status::Ok();
}

bool ColdSegments::Has(uint32_t number) const {
  std::lock_guard lock(mutex_);
  return number < segments_.size() && segments_[number].state == State::kPresent;
}

Result<ColdSegments::FilePtr> ColdSegments::Open(uint32_t number, uint64_t sequence) {
  {
    std::lock_guard lock(mutex_);
    if (number >= segments_.size() || segments_[number].state != State::kPresent) {
      return Status(Code::kDataLoss, "segment " + std::to_string(number) + " is not there");
    }
    if (segments_[number].sequence != sequence) {
      return Status(Code::kStale, "segment " + std::to_string(number) + " was recycled");
    }
  }
  return OpenPresent(number);
}

Result<ColdSegments::FilePtr> ColdSegments::OpenPresent(uint32_t number) {
  {
    std::lock_guard lock(mutex_);
    Segment& segment = segments_[number];
    segment.last_use = ++use_clock_;
    if (segment.file != nullptr) return segment.file;
  }
  // Two workers may open the same file at once; both descriptors work and one is kept.
  KVTIER_ASSIGN(FilePtr file, OpenFile(PathOf(number), 0));
  std::lock_guard lock(mutex_);
  KeepOpen(segments_[number], file);
  return file;
}

void ColdSegments::KeepOpen(Segment& segment, FilePtr file) {
  if (segment.file != nullptr) return;
  segment.file = std::move(file);
  segment.last_use = ++use_clock_;
  if (++open_ <= kMaxOpenFiles) return;
  Segment* oldest = nullptr;
  for (Segment& other : segments_) {
    if (other.file != nullptr && (oldest == nullptr || other.last_use < oldest->last_use)) oldest = &other;
  }
  oldest->file.reset();  // who is using it still holds it
  --open_;
}

Result<ColdSegments::FilePtr> ColdSegments::OpenOrCreate(uint32_t number, uint64_t sequence, BlockIo& io) {
  KVTIER_CHECK(sequence > 0);
  {
    std::unique_lock lock(mutex_);
    if (number >= segments_.size()) {
      return Status(Code::kResourceExhausted, "segment " + std::to_string(number) +
                                                  " is above the limit of " +
                                                  std::to_string(options_.segment_limit));
    }
    Segment& segment = segments_[number];
    const TimePoint deadline = SteadyClock{}.Now() + kColdIoTimeout;
    if (!created_.wait_until(lock, deadline, [&] { return segment.state != State::kCreating; })) {
      return Status(Code::kDeadlineExceeded, "segment " + std::to_string(number) + " is still being made");
    }
    if (segment.state == State::kPresent) {
      lock.unlock();
      return Open(number, sequence);
    }
    // What was set aside takes room of the same capacity.
    if (present_ + foreign_segments_ >= options_.segment_limit) {
      return Status(Code::kResourceExhausted,
                    "all " + std::to_string(options_.segment_limit) + " segments are in use");
    }
    segment.state = State::kCreating;
    ++present_;
  }
  Result<FilePtr> file = CreateFile(number, sequence, io);
  {
    std::lock_guard lock(mutex_);
    Segment& segment = segments_[number];
    segment.state = file.ok() ? State::kPresent : State::kAbsent;
    if (file.ok()) {
      segment.sequence = sequence;
      KeepOpen(segment, *file);
    } else {
      --present_;
    }
  }
  created_.notify_all();
  return file;
}

Result<ColdSegments::FilePtr> ColdSegments::CreateFile(uint32_t number, uint64_t sequence,
                                                       BlockIo& io) const {
  const std::string path = PathOf(number);
  const std::string new_path = options_.folder + "/" + NumberText(number) + std::string(kNewSuffix);
  const auto make = [&]() -> Result<FilePtr> {
    KVTIER_TRY(CheckSpace(options_.folder, options_.segment_bytes + options_.spare_bytes));
    KVTIER_ASSIGN(FilePtr file, OpenFile(new_path, O_CREAT | O_TRUNC));
    KVTIER_TRY(Allocate(file->fd.get(), options_.segment_bytes, new_path));
    KVTIER_TRY(WriteHeader(*file, number, sequence, io));
    // The name appears only now, so that a crash leaves a whole segment or none.
    if (::rename(new_path.c_str(), path.c_str()) != 0) return StatusFromErrno(errno, "name " + path);
    KVTIER_TRY(SyncFolder(options_.folder));
    return file;
  };
  Result<FilePtr> file = make();
  if (!file.ok()) {
    ::unlink(new_path.c_str());
    ::unlink(path.c_str());
  }
  return file;
}

Status ColdSegments::Recycle(uint32_t number, uint64_t new_sequence, BlockIo& io) {
  KVTIER_CHECK(new_sequence > 0);
  bool damaged = false;
  {
    std::lock_guard lock(mutex_);
    if (number >= segments_.size() || segments_[number].state != State::kPresent) {
      return Status(Code::kNotFound, "segment " + std::to_string(number) + " is not there");
    }
    damaged = segments_[number].damaged;
    segments_[number].sequence = new_sequence;
  }
  KVTIER_ASSIGN(FilePtr file, OpenPresent(number));
  // Nobody knows the sequence of what stands there: it could be the new one.
  if (damaged && ::ftruncate(file->fd.get(), 0) != 0) {
    return StatusFromErrno(errno, "empty " + PathOf(number));
  }
  // A truncated file gets its size, and its space, back.
  KVTIER_TRY(Allocate(file->fd.get(), options_.segment_bytes, PathOf(number)));
  KVTIER_TRY(WriteHeader(*file, number, new_sequence, io));
  std::lock_guard lock(mutex_);
  segments_[number].damaged = false;
  return Status::Ok();
}

void ColdSegments::Distrust(uint32_t number, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  if (number < segments_.size()) segments_[number].distrusted = sequence;
}

bool ColdSegments::Trusted(uint32_t number, uint64_t sequence) const {
  std::lock_guard lock(mutex_);
  return number < segments_.size() && segments_[number].distrusted != sequence;
}

void ColdSegments::CloseFile(uint32_t number) {
  std::lock_guard lock(mutex_);
  if (number >= segments_.size() || segments_[number].file == nullptr) return;
  segments_[number].file.reset();  // who is using it still holds it
  --open_;
}

uint32_t ColdSegments::count() const {
  std::lock_guard lock(mutex_);
  return present_;
}

}  // namespace kvtier
