#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace kvtier::fault_fs {

/// A device's cache that a power failure empties: remembers what writes replaced until their file is synced.
/// Names, and sizes that were set, count as safe at once, as a journal keeps them; what an append added does
/// not. Threads: any.
class VolatileCache {
 public:
  void Start();
  /// Before `bytes` at `offset` of the file are overwritten through `fd`.
  void BeforeWrite(int fd, uint64_t offset, uint64_t bytes);
  void OnSync(int fd);
  /// A sync that fails drops what was written, as kernels do.
  void OnSyncFailed(int fd);
  /// Puts back what stood there before everything that was not synced.
  void LosePower();

 private:
  using FileId = std::pair<uint64_t, uint64_t>;  ///< device, inode
  struct Undo {
    uint64_t offset;
    std::vector<char> bytes;
    int64_t file_bytes;
  };
  struct File {
    int fd = -1;  ///< of its own
    std::vector<Undo> undos;
  };
  static FileId IdOf(int fd);
  static void TakeBack(File& file);

  std::mutex mutex_;
  bool started_ = false;
  std::map<FileId, File> files_;
};

}  // namespace kvtier::fault_fs
