#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tiers/base/block_io.h"
#include "tiers/base/unique_fd.h"
#include "tiers/cold_format.h"

namespace kvtier {

/// The number in "NNNNNNNN.seg". Errors: kNotFound for any other name.
Result<uint32_t> ParseSegmentName(std::string_view name);

/// The segment files of a cold store: made on first use, opened on demand, a bounded number open at once.
/// Owns: the files' descriptors.
/// Threads: any, each with its own BlockIo; Load first, alone. The mutex guards the table and is never held
/// across I/O.
class ColdSegments {
 public:
  struct Options {
    std::string folder;
    StoreUuid uuid{};
    uint64_t segment_bytes = 0;
    uint32_t segment_limit = 0;  ///< numbers are below it
    bool direct_io = false;
    uint64_t spare_bytes = 0;  ///< of the disk, that a new file leaves free for the index
  };
  /// An open segment file. Holding it keeps the descriptor open.
  struct File {
    UniqueFd fd;
  };
  using FilePtr = std::shared_ptr<const File>;

  struct Found {
    uint32_t number = 0;
    uint64_t sequence = 0;    ///< 0: the header is damaged, or could not be read
    bool unread = false;      ///< the latter
    bool unopened = false;    ///< nor even the file
    uint64_t file_bytes = 0;  ///< may be less than segment_bytes: truncated
  };

  static constexpr uint32_t kMaxOpenFiles = 128;

  explicit ColdSegments(Options options);

  /// Lists the folder and reads every header. Half-made files and those above the limit are removed; a sound
  /// header of another store gets its file renamed to NAME.foreign, NAME.foreign-2 and so on; a truncated
  /// file gets its size back; one that cannot be opened is left alone. Errors: kUnavailable,
  /// kPermissionDenied, kFailedPrecondition (no free name).
  Result<std::vector<Found>> Load(BlockIo& io);
  /// Writes a new header over a damaged one.
  Status RepairHeader(uint32_t number, uint64_t sequence, BlockIo& io);

  /// Whether there is a file for the segment, in whatever use.
  bool Has(uint32_t number) const;
  /// The file, if the segment is in its use `sequence`. Errors: kStale when it is in another, kDataLoss when
  /// there is no such segment.
  Result<FilePtr> Open(uint32_t number, uint64_t sequence);
  /// The same, made first where there is none. Errors also: kResourceExhausted (limit, disk full).
  Result<FilePtr> OpenOrCreate(uint32_t number, uint64_t sequence, BlockIo& io);
  /// Starts a new use: every record that stands in the segment is dead from here on. Synced.
  Status Recycle(uint32_t number, uint64_t new_sequence, BlockIo& io);

  /// A sync of the segment failed. The kernel may have dropped what was written and not yet synced, and says
  /// so once: later syncs that succeed prove nothing for this use.
  void Distrust(uint32_t number, uint64_t sequence);
  bool Trusted(uint32_t number, uint64_t sequence) const;
  /// I/O on the file failed: it is opened anew, since what it was on may have come back as something else.
  void CloseFile(uint32_t number);

  /// Headers, and what CountMetadata was told of. Any thread.
  uint64_t metadata_bytes_written() const { return metadata_bytes_.load(std::memory_order_relaxed); }
  void CountMetadata(uint64_t bytes) const { metadata_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  uint32_t foreign() const { return foreign_; }                    ///< files that Load set aside
  uint32_t foreign_segments() const { return foreign_segments_; }  ///< that fit into what is set aside
  uint32_t unopened() const { return unopened_; }                  ///< files that Load could not open
  uint32_t count() const;
  const Options& options() const { return options_; }

 private:
  enum class State : uint8_t { kAbsent, kCreating, kPresent };
  struct Segment {
    State state = State::kAbsent;
    bool damaged = false;  ///< the header; what stands behind it may have any sequence
    uint64_t sequence = 0;
    uint64_t distrusted = 0;  ///< sequence of a use whose sync failed
    uint64_t last_use = 0;
    FilePtr file;  ///< null: not open
  };

  std::string PathOf(uint32_t number) const;
  Result<FilePtr> OpenFile(const std::string& path, int extra_flags) const;
  Result<FilePtr> OpenPresent(uint32_t number);
  Result<FilePtr> CreateFile(uint32_t number, uint64_t sequence, BlockIo& io) const;
  static Status SetAside(const std::string& path);
  Result<Found> Inspect(uint32_t number, BlockIo& io) const;
  /// Fills sequence and unread in. Errors: kFailedPrecondition for a sound header of another store.
  Status ReadUse(const File& file, BlockIo& io, Found& found) const;
  Status WriteHeader(const File& file, uint32_t number, uint64_t sequence, BlockIo& io) const;
  void KeepOpen(Segment& segment, FilePtr file);

  const Options options_;
  uint32_t foreign_ = 0;           ///< written by Load only
  uint32_t unopened_ = 0;          ///< likewise
  uint32_t foreign_segments_ = 0;  ///< that fit into what all files set aside take; likewise
  mutable std::atomic<uint64_t> metadata_bytes_{0};
  mutable std::mutex mutex_;
  std::condition_variable created_;
  std::vector<Segment> segments_;  ///< by number
  uint32_t present_ = 0;
  uint32_t open_ = 0;
  uint64_t use_clock_ = 0;
};

}  // namespace kvtier
