#include "client/src/handles.h"

#include <pthread.h>

#include "client/src/lease.h"

namespace kvtier::client {
namespace {

/// Handles are multiples of it, so that code which checks pointers for alignment accepts them.
constexpr uint64_t kHandleStep = 16;

uint64_t Number(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

}  // namespace

Handles& Handles::Get() {
  static Handles* const handles = new Handles();
  return *handles;
}

Handles::Handles() {
  ::pthread_atfork(&Handles::BeforeFork, &Handles::AfterForkInParent, &Handles::AfterForkInChild);
}

void Handles::BeforeFork() {
  Get().mutex_.lock();
}

void Handles::AfterForkInParent() {
  Get().mutex_.unlock();
}

void Handles::AfterForkInChild() {
  Handles& handles = Get();
  ++handles.fork_generation_;
  handles.used_before_fork_ = handles.used_;
  for (const auto& [number, entry] : handles.clients_) {
    if (entry.fork_generation + 1 == handles.fork_generation_) entry.value->CloseDescriptorInChild();
  }
  handles.mutex_.unlock();
}

Status Handles::AllowOpen() {
  std::lock_guard lock(mutex_);
  if (used_before_fork_) {
    return Status(Code::kFailedPrecondition,
                  "opened before fork(): a child needs exec() before it opens a handle");
  }
  used_ = true;
  return Status::Ok();
}

template <typename T>
Result<T> Handles::FindIn(const Table<T>& table, const void* handle) const {
  const auto it = table.find(Number(handle));
  if (it == table.end())
    return Status(Code::kStale, "the handle is not, or no longer, one of this library's");
  if (it->second.fork_generation != fork_generation_) {
    return Status(Code::kFailedPrecondition, "the handle was opened before fork(): it is the parent's");
  }
  return it->second.value;
}

template <typename Handle, typename T>
Handle* Handles::AddTo(Table<T>& table, T value) {
  const uint64_t number = next_++ * kHandleStep;
  table.emplace(number, Entry<T>{.fork_generation = fork_generation_, .value = std::move(value)});
  return reinterpret_cast<Handle*>(number);  // NOLINT(performance-no-int-to-ptr)
}

kvtier_client* Handles::Add(std::shared_ptr<Client> client) {
  std::lock_guard lock(mutex_);
  return AddTo<kvtier_client>(clients_, std::move(client));
}

kvtier_model* Handles::Add(ModelHandle model) {
  std::lock_guard lock(mutex_);
  for (const auto& [number, entry] : models_) {
    if (entry.value.model == model.model)
      return reinterpret_cast<kvtier_model*>(number);  // NOLINT(performance-no-int-to-ptr)
  }
  return AddTo<kvtier_model>(models_, std::move(model));
}

kvtier_lease* Handles::Add(LeaseHandle lease) {
  std::lock_guard lock(mutex_);
  return AddTo<kvtier_lease>(leases_, std::move(lease));
}

Result<std::shared_ptr<Client>> Handles::Find(const kvtier_client* handle) {
  std::lock_guard lock(mutex_);
  return FindIn(clients_, handle);
}

Result<Handles::ModelHandle> Handles::Find(const kvtier_model* handle) {
  std::lock_guard lock(mutex_);
  return FindIn(models_, handle);
}

Result<Handles::LeaseHandle> Handles::Find(const kvtier_lease* handle) {
  std::lock_guard lock(mutex_);
  return FindIn(leases_, handle);
}

Result<std::shared_ptr<Client>> Handles::Take(const kvtier_client* handle) {
  std::lock_guard lock(mutex_);
  Result<std::shared_ptr<Client>> client = FindIn(clients_, handle);
  if (!client.ok()) return client;
  clients_.erase(Number(handle));
  std::erase_if(models_, [&](const auto& item) { return item.second.value.client == *client; });
  std::erase_if(leases_, [&](const auto& item) { return item.second.value.client == *client; });
  return client;
}

Result<Handles::LeaseHandle> Handles::Take(const kvtier_lease* handle) {
  std::lock_guard lock(mutex_);
  Result<LeaseHandle> lease = FindIn(leases_, handle);
  if (lease.ok()) leases_.erase(Number(handle));
  return lease;
}

}  // namespace kvtier::client
