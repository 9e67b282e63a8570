// Clients of the session socket, for target_session.cc.
#include <string>

#include "proto/session.pb.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/session_steps.h"
#include "tests/fuzz/target.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

std::string HelloBytes(bool maps_stores, uint32_t max_protocol = 1) {
  v1::ClientMessage message;
  message.mutable_hello()->set_min_protocol(1);
  message.mutable_hello()->set_max_protocol(max_protocol);
  message.mutable_hello()->set_client_name("seed");
  message.mutable_hello()->set_maps_stores(maps_stores);
  return message.SerializeAsString();
}
std::string MappedBytes(uint32_t arena) {
  v1::ClientMessage message;
  message.mutable_mapped()->set_arena(arena);
  return message.SerializeAsString();
}
std::string UnmappedBytes(uint32_t arena) {
  v1::ClientMessage message;
  message.mutable_unmapped()->set_arena(arena);
  return message.SerializeAsString();
}

class Script {
 public:
  Script& Act(SessionStep what, uint8_t number = 0) {
    input_.Put(what).Put(number);
    return *this;
  }
  Script& Send(uint8_t client, const std::string& bytes, uint8_t descriptors = 0) {
    input_.Put(kSend).Put(client).Put16(static_cast<uint16_t>(bytes.size())).Put(descriptors).PutText(bytes);
    return *this;
  }
  Script& Open(uint8_t client, uint8_t tenant, bool maps_stores = false) {
    return Act(kConnect, client)
        .Send(client, HelloBytes(maps_stores))
        .Act(kTurn)
        .Act(kTurn)
        .Act(kAnswer, tenant)
        .Act(kTurn)
        .Act(kRead, client);
  }
  FuzzTarget::Bytes Take() { return input_.Take(); }

 private:
  InputWriter input_;
};

}  // namespace

std::vector<FuzzTarget::Bytes> SessionSeeds() {
  const uint32_t store = StoreArenaId(kSharedStoreTier).value;
  return {Script()
              .Open(0, 0)
              .Act(kPublish, 0)
              .Act(kTurn)
              .Act(kRead, 0)
              .Act(kRetire, 0)
              .Act(kTurn)
              .Act(kRead, 0)
              .Send(0, UnmappedBytes(1))
              .Act(kTurn)
              .Act(kClose, 0)
              .Act(kTurn)
              .Take(),
          Script()
              .Open(1, 1, true)
              .Send(1, MappedBytes(store))
              .Act(kTurn)
              .Act(kWithdraw)
              .Act(kTurn)
              .Act(kRead, 1)
              .Send(1, UnmappedBytes(store), 1)
              .Act(kTurn)
              .Take(),
          Script()
              .Act(kPublish, 1)
              .Act(kPublish, 4)
              .Open(0, 0)
              .Open(1, 1)
              .Open(2, 0)
              .Open(3, 0)
              .Act(kRetire, 1)
              .Act(kTurn)
              .Act(kRead, 0)
              .Act(kAdvance, 60)
              .Act(kTurn)
              .Take(),
          Script()
              .Open(0, 0)
              .Act(kConnect, 1)
              .Send(1, HelloBytes(false, 0))
              .Act(kTurn)
              .Act(kTurn)
              .Act(kRead, 1)
              .Act(kConnect, 2)
              .Act(kTurn)
              .Act(kAdvance, 60)
              .Act(kTurn)
              .Take()};
}

}  // namespace kvtier
