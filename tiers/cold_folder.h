#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tiers/base/block_io.h"
#include "tiers/base/unique_fd.h"
#include "tiers/cold_format.h"

namespace kvtier {

/// A cold store's folder, locked and checked.
struct ColdFolder {
  std::string path;
  UniqueFd lock;  ///< held for as long as the store lives; the kernel drops it with the process
  StoreUuid uuid{};
  bool direct_io = false;
  bool preallocates = false;  ///< fallocate works
  bool full = false;          ///< the disk: what is there can be read

  std::string index() const { return path + "/index"; }
  std::string models() const { return path + "/models"; }
  std::string segments() const { return path + "/segments"; }
};

/// What the FORMAT file says.
struct ColdFormat {
  StoreUuid uuid{};
  uint64_t segment_bytes = 0;
};
/// Errors: kNotFound, kFailedPrecondition (another version), kDataLoss.
Result<ColdFormat> ReadColdFormat(const std::string& path);
/// Writes FORMAT anew where it is missing or its checksum is wrong and more than half of the segments have
/// sound headers that name one store. Nothing is done when FORMAT is sound, of whatever version. Errors:
/// kDataLoss (no such headers), I/O.
Status RestoreColdFormat(const std::string& path);
/// Names of files that an interrupted step leaves, and of indexes that were moved aside: safe to remove.
bool IsLeftover(std::string_view name);

/// Takes the lock, makes or checks the FORMAT file and the subfolders, tests that a block can be written and
/// read back; on a full disk, where there is a store, only how its files can be opened. Errors, each one line
/// that names the folder: kNotFound, kFailedPrecondition (not a folder, foreign files, held by another
/// daemon, made with another version or segment size), kDataLoss (FORMAT damaged), kPermissionDenied,
/// kResourceExhausted, kUnavailable.
Result<ColdFolder> OpenColdFolder(const ColdStoreOptions& options, BlockIo& io);

/// Writes a block to a temporary file and reads it back: with O_DIRECT when allowed, else or when that fails,
/// buffered. True: O_DIRECT works, and is on the descriptor. Errors: of the buffered try.
Result<bool> ProbeDirectIo(const std::string& folder, bool allow_direct_io, BlockIo& io);

/// The models of a store: one small file each, written whole and synced, because a scan cannot rebuild them.
inline constexpr uint64_t kMaxModelFieldsBytes = uint64_t{1} << 20;
/// Errors: kOutOfRange (another model than the `max_models` that are there), kInvalidArgument, I/O.
Status WriteModelFile(const std::string& folder, const ModelRecord& model,
                      uint32_t max_models = kMaxColdModels);
std::string ModelFileName(const NamespaceDigest& name_space);
/// Damaged files are counted in `dropped` and left alone.
Result<std::vector<ModelRecord>> ReadModelFiles(const std::string& folder, uint64_t& dropped);

/// Removes those, but none that merely could not be read; how many there were.
Result<uint64_t> RemoveDamagedModels(const std::string& folder);
/// Removes those of no block that was found, from `recovery` too.
Status RemoveModelsWithoutBlocks(const std::string& folder, ColdRecovery& recovery);
/// Removes files that a kill left half made.
Status RemoveHalfMadeModels(const std::string& folder);

/// Names in a folder, without "." and "..", sorted.
Result<std::vector<std::string>> ListFolder(const std::string& path);
/// Makes renames and new names in a folder durable.
Status SyncFolder(const std::string& path);
/// Whole file or none, synced: through `path`.new and a rename.
Status WriteFileAtomically(const std::string& path, std::string_view bytes);
/// Errors: kNotFound, kOutOfRange (larger than `limit_bytes`), I/O.
Result<std::string> ReadWholeFile(const std::string& path, uint64_t limit_bytes);

}  // namespace kvtier
