#include "tiers/cold_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <utility>

#include "tiers/base/aligned_buffer.h"
#include "tiers/cold_io.h"
#include "tiers/cold_segments.h"
#include "tiers/crc32c.h"

namespace kvtier {

namespace {

constexpr std::string_view kFormatTitle = "kvtier cold store\n";
constexpr uint64_t kMaxFormatFileBytes = 4096;
constexpr std::string_view kFormatName = "FORMAT";
constexpr std::string_view kLockName = "LOCK";
constexpr std::string_view kProbeName = "PROBE";

Status InFolder(const Status& status, const std::string& path) {
  return status.WithContext("cold store " + path);
}

std::string ToHex(const StoreUuid& uuid) {
  Key digits;  // borrows the hex printer: the first half of a key
  std::copy(uuid.begin(), uuid.end(), digits.bytes.begin());
  return digits.ToHex().substr(0, 2 * uuid.size());
}

uint32_t TextCrc(std::string_view text) {
  return Crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

/// "name value\n" out of the FORMAT file. Errors: kDataLoss.
Result<std::string> FormatField(std::string_view text, std::string_view name) {
  const std::string start = "\n" + std::string(name) + " ";
  const size_t at = text.find(start);
  if (at == std::string_view::npos) return Status(Code::kDataLoss, "FORMAT has no " + std::string(name));
  text.remove_prefix(at + start.size());
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return Status(Code::kDataLoss, "FORMAT is cut short");
  return std::string(text.substr(0, end));
}

Result<uint64_t> FormatNumber(std::string_view text, std::string_view name) {
  KVTIER_ASSIGN(const std::string value, FormatField(text, name));
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) {
    return Status(Code::kDataLoss, "FORMAT: bad " + std::string(name));
  }
  return number;
}

Result<StoreUuid> FormatUuid(std::string_view text) {
  KVTIER_ASSIGN(const std::string value, FormatField(text, "uuid"));
  StoreUuid uuid;
  if (value.size() != 2 * uuid.size()) return Status(Code::kDataLoss, "FORMAT: bad uuid");
  for (size_t i = 0; i < uuid.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = value.data() + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
    if (error != std::errc() || end != digits + 2) return Status(Code::kDataLoss, "FORMAT: bad uuid");
    uuid[i] = std::byte{byte};
  }
  return uuid;
}

bool HasSoundCrc(std::string_view text) {
  const Result<uint64_t> crc = FormatNumber(text, "crc32c");
  return crc.ok() && *crc == TextCrc(text.substr(0, text.rfind("crc32c ")));
}

/// Errors: kFailedPrecondition (another version), kDataLoss.
Result<ColdFormat> ParseFormat(std::string_view text) {
  if (!text.starts_with(kFormatTitle)) return Status(Code::kDataLoss, "FORMAT is not a cold store's");
  KVTIER_ASSIGN(const uint64_t version, FormatNumber(text, "version"));
  if (version != kColdFormatVersion) {
    return Status(Code::kFailedPrecondition,
                  "has format version " + std::to_string(version) + ", this program reads version " +
                      std::to_string(kColdFormatVersion) + ": give it an empty folder");
  }
  if (!HasSoundCrc(text)) return Status(Code::kDataLoss, "FORMAT: checksum");
  ColdFormat format;
  KVTIER_ASSIGN(format.segment_bytes, FormatNumber(text, "segment_bytes"));
  KVTIER_ASSIGN(format.uuid, FormatUuid(text));
  return format;
}

/// Errors: as ParseFormat, and kFailedPrecondition (segment size).
Result<StoreUuid> ReadFormat(std::string_view text, uint64_t segment_bytes) {
  KVTIER_ASSIGN(const ColdFormat format, ParseFormat(text));
  if (format.segment_bytes != segment_bytes) {
    return Status(Code::kFailedPrecondition, "was made with segments of " +
                                                 std::to_string(format.segment_bytes) + " bytes, not " +
                                                 std::to_string(segment_bytes));
  }
  return format.uuid;
}

Status WriteFormat(const std::string& path, const ColdFormat& format) {
  std::string text = std::string(kFormatTitle) + "version " + std::to_string(kColdFormatVersion) +
                     "\nsegment_bytes " + std::to_string(format.segment_bytes) + "\nuuid " +
                     ToHex(format.uuid) + "\n";
  text += "crc32c " + std::to_string(TextCrc(text)) + "\n";
  return WriteFileAtomically(path, text);
}

Result<StoreUuid> MakeFormat(const std::string& path, uint64_t segment_bytes) {
  StoreUuid uuid;
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return StatusFromErrno(errno, "random bytes");
  }
  KVTIER_TRY(WriteFormat(path, {.uuid = uuid, .segment_bytes = segment_bytes}));
  return uuid;
}

/// What a segment's header says of its store. Errors: kDataLoss (no sound header), I/O.
Result<ColdFormat> FormatOfSegment(const std::string& path, uint32_t number) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return StatusFromErrno(errno, "open " + path);
  SegmentHeader header;
  const ssize_t got = ::pread(fd.get(), &header, sizeof(header), 0);
  if (got < 0) return StatusFromErrno(errno, "read " + path);
  if (got != static_cast<ssize_t>(sizeof(header))) return Status(Code::kDataLoss, "cut short");
  KVTIER_TRY(CheckSegmentHeader(header, header.uuid, number, header.segment_bytes));
  return ColdFormat{.uuid = header.uuid, .segment_bytes = header.segment_bytes};
}

/// What more than half of the segments say. Errors: kDataLoss (nothing is said so often), I/O.
Result<ColdFormat> FormatOfSegments(const std::string& folder) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(folder));
  std::map<std::pair<StoreUuid, uint64_t>, size_t> votes;
  size_t segments = 0;
  for (const std::string& name : names) {
    const Result<uint32_t> number = ParseSegmentName(name);
    if (!number.ok()) continue;
    ++segments;
    const Result<ColdFormat> format = FormatOfSegment(folder + "/" + name, *number);
    if (format.ok()) ++votes[{format->uuid, format->segment_bytes}];
  }
  for (const auto& [store, count] : votes) {
    if (2 * count > segments) return ColdFormat{.uuid = store.first, .segment_bytes = store.second};
  }
  return Status(Code::kDataLoss, "FORMAT is damaged, and the segments do not say what stood there");
}

/// A folder without FORMAT must hold nothing but what an interrupted first start leaves.
Status CheckNoForeignFiles(const std::string& path) {
  KVTIER_ASSIGN(const std::vector<std::string> names, ListFolder(path));
  if (std::binary_search(names.begin(), names.end(), kFormatName)) return Status::Ok();
  constexpr std::string_view kOwn[] = {kLockName, kProbeName, "FORMAT.new", "lost+found"};
  for (const std::string& name : names) {
    if (std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn)) continue;
    return Status(Code::kFailedPrecondition,
                  "holds files of something else (" + name + "): give it an empty folder");
  }
  return Status::Ok();
}

Status CheckIsFolder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return StatusFromErrno(errno, "the folder");
  if (!S_ISDIR(info.st_mode)) return Status(Code::kFailedPrecondition, "is not a folder");
  return Status::Ok();
}

Result<UniqueFd> TakeLock(const std::string& path) {
  const std::string name = path + "/" + std::string(kLockName);
  UniqueFd lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return StatusFromErrno(errno, "open LOCK");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return Status(Code::kFailedPrecondition, "another daemon uses it (LOCK is held)");
  }
  return StatusFromErrno(errno, "lock LOCK");
}

Status MakeSubfolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return Status::Ok();
  return StatusFromErrno(errno, "make " + path);
}

bool ProbePreallocation(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kProbeName);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const bool works = fd.valid() && (::fallocate(fd.get(), 0, 0, kColdBlockBytes) == 0 || errno == ENOSPC);
  ::unlink(path.c_str());
  return works;
}

bool OpensWithDirectIo(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT)).valid();
}

Result<ColdFolder> OpenChecked(const ColdStoreOptions& options, BlockIo& io) {
  ColdFolder folder;
  folder.path = options.path;
  KVTIER_TRY(CheckIsFolder(folder.path));
  KVTIER_TRY(CheckNoForeignFiles(folder.path));  // before the lock file is made in it
  KVTIER_ASSIGN(folder.lock, TakeLock(folder.path));
  const std::string format_path = folder.path + "/" + std::string(kFormatName);
  const Result<std::string> format = ReadWholeFile(format_path, kMaxFormatFileBytes);
  const Result<bool> direct_io = ProbeDirectIo(folder.path, options.allow_direct_io, io);
  folder.full = direct_io.status().code() == Code::kResourceExhausted && format.ok();
  if (!folder.full && !direct_io.ok()) return direct_io.status();
  folder.direct_io = folder.full ? options.allow_direct_io && OpensWithDirectIo(format_path) : *direct_io;
  folder.preallocates = folder.full || ProbePreallocation(folder.path);
  if (format.ok()) {
    KVTIER_ASSIGN(folder.uuid, ReadFormat(*format, options.segment_bytes));
  } else if (format.status().code() == Code::kNotFound) {
    KVTIER_ASSIGN(folder.uuid, MakeFormat(format_path, options.segment_bytes));
  } else {
    return format.status();
  }
  for (const std::string& subfolder : {folder.index(), folder.models(), folder.segments()}) {
    KVTIER_TRY(MakeSubfolder(subfolder));
  }
  KVTIER_TRY(SyncFolder(folder.path));
  return folder;
}

constexpr std::byte kProbePattern{0xA7};

/// Writes and reads one block back through `fd`. Errors: kDataLoss when the bytes differ.
Status TryBlock(int fd, BlockIo& io) {
  AlignedBuffer buffer;
  KVTIER_ASSIGN(std::span<std::byte> memory, buffer.Reserve(2 * kColdBlockBytes));
  const std::span<std::byte> written = memory.first(kColdBlockBytes);
  const std::span<std::byte> read = memory.subspan(kColdBlockBytes, kColdBlockBytes);
  std::fill(written.begin(), written.end(), kProbePattern);
  std::fill(read.begin(), read.end(), std::byte{0});
  KVTIER_TRY(RunWithTimeout(io, WriteRequest(fd, 0, written)));
  KVTIER_TRY(RunWithTimeout(io, SyncRequest(fd)));
  KVTIER_TRY(RunWithTimeout(io, ReadRequest(fd, 0, read)));
  if (std::equal(written.begin(), written.end(), read.begin())) return Status::Ok();
  return Status(Code::kDataLoss, "a block read back differs from what was written");
}

Status TryFile(const std::string& path, int flags, BlockIo& io) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600));
  if (!fd.valid()) return StatusFromErrno(errno, "make a file");
  if ((::fcntl(fd.get(), F_GETFL) & flags) != flags) {
    return Status(Code::kUnavailable, "the file system dropped O_DIRECT");
  }
  return TryBlock(fd.get(), io);
}

}  // namespace

Result<ColdFormat> ReadColdFormat(const std::string& path) {
  KVTIER_TRY(CheckIsFolder(path));
  KVTIER_ASSIGN(const std::string text,
                ReadWholeFile(path + "/" + std::string(kFormatName), kMaxFormatFileBytes));
  return ParseFormat(text);
}

Status RestoreColdFormat(const std::string& path) {
  KVTIER_TRY(CheckIsFolder(path));
  const std::string format_path = path + "/" + std::string(kFormatName);
  const Result<std::string> text = ReadWholeFile(format_path, kMaxFormatFileBytes);
  if (text.ok() && text->starts_with(kFormatTitle) && HasSoundCrc(*text)) return Status::Ok();
  const bool wrong = text.ok() || text.status().code() == Code::kOutOfRange;  // or longer than any
  if (!wrong && text.status().code() != Code::kNotFound) return text.status();
  Result<ColdFormat> format = FormatOfSegments(path + "/segments");
  if (!format.ok() && !text.ok()) return text.status();  // not a cold store at all
  if (!format.ok()) return format.status();
  KVTIER_ASSIGN(const UniqueFd lock, TakeLock(path));
  return WriteFormat(format_path, *format);
}

bool IsLeftover(std::string_view name) {
  return name.ends_with(".new") || name == kProbeName || name.starts_with("index.broken");
}

Result<ColdFolder> OpenColdFolder(const ColdStoreOptions& options, BlockIo& io) {
  Result<ColdFolder> folder = OpenChecked(options, io);
  if (!folder.ok()) return InFolder(folder.status(), options.path);
  return folder;
}

Result<bool> ProbeDirectIo(const std::string& folder, bool allow_direct_io, BlockIo& io) {
  const std::string path = folder + "/" + std::string(kProbeName);
  Status status(Code::kUnavailable, "not tried");
  bool direct = false;
  if (allow_direct_io) {
    status = TryFile(path, O_DIRECT, io);
    direct = status.ok();
  }
  if (!direct) status = TryFile(path, 0, io);
  ::unlink(path.c_str());
  if (!status.ok()) return status.WithContext("self-test");
  return direct;
}

}  // namespace kvtier
