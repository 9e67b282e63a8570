#include <algorithm>
#include <vector>

#include "client/src/api_support.h"
#include "client/src/tickets.h"

namespace {

/// A larger capacity is taken for this one.
constexpr size_t kMaxCompletionsPerCall = 4096;

}  // namespace

using namespace kvtier;  // NOLINT(google-build-using-namespace): the C functions below are the whole rest
using namespace kvtier::client;  // NOLINT(google-build-using-namespace)

extern "C" {

kvtier_code kvtier_wait_layer(kvtier_client* handle, kvtier_ticket ticket, uint32_t layer,
                              kvtier_block_result* results, size_t capacity, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    if (results == nullptr) return Status(Code::kInvalidArgument, "results is NULL");
    if (capacity > kMaxLeaseBlocks)
      return Status(Code::kInvalidArgument, "capacity is above what a lease can hold");
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    size_t count = 0;
    KVTIER_TRY(WaitLayer(*client, ticket, layer, client->Deadline(timeout_ms), {results, capacity}, count));
    return FirstFailure(0, {results, count}, " of the fetch was not fetched");
  });
}

kvtier_code kvtier_completion_fd(kvtier_client* handle, int* fd) {
  return Guard([&]() -> Status {
    if (fd == nullptr) return Status(Code::kInvalidArgument, "fd is NULL");
    *fd = -1;
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    KVTIER_ASSIGN(*fd, client->completions().Descriptor());
    return Status::Ok();
  });
}

kvtier_code kvtier_completed(kvtier_client* handle, kvtier_ticket* tickets, size_t capacity, size_t* count) {
  return Guard([&]() -> Status {
    if (tickets == nullptr || count == nullptr)
      return Status(Code::kInvalidArgument, "tickets or count is NULL");
    *count = 0;
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    *count = client->completions().Take({tickets, std::min(capacity, kMaxCompletionsPerCall)});
    return Status::Ok();
  });
}

kvtier_code kvtier_wait(kvtier_client* handle, kvtier_ticket ticket, kvtier_put_result* results,
                        size_t capacity, uint32_t timeout_ms) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    std::vector<kvtier_put_result> outcomes;
    const size_t room = results == nullptr ? SIZE_MAX : capacity;
    KVTIER_TRY(WaitTicket(*client, ticket, client->Deadline(timeout_ms), room, outcomes));
    if (results != nullptr) std::copy(outcomes.begin(), outcomes.end(), results);
    for (const kvtier_put_result& outcome : outcomes) {
      if (outcome.code != KVTIER_OK && outcome.code != KVTIER_PRESENT) {
        return Status(static_cast<Code>(outcome.code), "a block of the put was not stored");
      }
    }
    return Status::Ok();
  });
}

kvtier_code kvtier_cancel(kvtier_client* handle, kvtier_ticket ticket) {
  return Guard([&]() -> Status {
    KVTIER_ASSIGN(const std::shared_ptr<Client> client, Handles::Get().Find(handle));
    return CancelTicket(*client, ticket, client->Deadline(0));
  });
}

}  // extern "C"
