#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/src/client.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

class Lease;

/// What a C handle stands for. The pointers that the C ABI hands out are numbers of this table, never
/// addresses: a handle that is stale, foreign or made up is found out without touching memory. Threads: any.
/// One per process and never destroyed, since C handles are process-wide and live until exit.
class Handles {
 public:
  struct ModelHandle {
    std::shared_ptr<Client> client;
    std::shared_ptr<const Model> model;
  };
  struct LeaseHandle {
    std::shared_ptr<Client> client;
    std::shared_ptr<Lease> lease;
  };

  static Handles& Get();

  /// Before the first thing that a client does. Errors: kFailedPrecondition in the child of a process that
  /// had a client: gRPC's threads are not in the child, and its calls would hang.
  Status AllowOpen();

  kvtier_client* Add(std::shared_ptr<Client> client);
  /// The handle that stands for the model already, or a new one.
  kvtier_model* Add(ModelHandle model);
  kvtier_lease* Add(LeaseHandle lease);

  // Errors: kStale for what is not in the table; kFailedPrecondition in the child of a fork.
  Result<std::shared_ptr<Client>> Find(const kvtier_client* handle);
  Result<ModelHandle> Find(const kvtier_model* handle);
  Result<LeaseHandle> Find(const kvtier_lease* handle);

  /// Takes the handle and all that belong to it out of the table.
  Result<std::shared_ptr<Client>> Take(const kvtier_client* handle);
  Result<LeaseHandle> Take(const kvtier_lease* handle);

 private:
  template <typename T>
  struct Entry {
    uint64_t fork_generation;
    T value;
  };
  template <typename T>
  using Table = std::unordered_map<uint64_t, Entry<T>>;

  Handles();
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();
  template <typename T>
  Result<T> FindIn(const Table<T>& table, const void* handle) const;
  template <typename Handle, typename T>
  Handle* AddTo(Table<T>& table, T value);

  std::mutex mutex_;
  uint64_t fork_generation_ = 0;
  uint64_t next_ = 1;
  bool used_ = false;  ///< a client was opened, or tried to
  bool used_before_fork_ = false;
  Table<std::shared_ptr<Client>> clients_;
  Table<ModelHandle> models_;
  Table<LeaseHandle> leases_;
};

}  // namespace kvtier::client
