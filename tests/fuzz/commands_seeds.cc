// Requests as clients send them, for target_commands.cc.
#include "daemon/service/convert.h"
#include "tests/fuzz/commands_steps.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tests/support/engine_harness.h"

namespace kvtier {
namespace {

/// Puts an input together.
class Script {
 public:
  template <typename Message>
  Script& Call(uint8_t method, uint8_t session, const Message& message) {
    const std::string bytes = message.SerializeAsString();
    input_.Put(method).Put(session).Put16(static_cast<uint16_t>(bytes.size())).PutText(bytes);
    return *this;
  }
  Script& Register(uint8_t session, uint32_t tokens_per_block) {
    v1::RegisterModelRequest request;
    FillSpec(TinyModel(), *request.mutable_spec());
    request.mutable_spec()->set_tokens_per_block(tokens_per_block);
    return Call(0, session, request).Settle();
  }
  Script& Put(uint8_t session, uint64_t first, uint64_t count, v1::Durability durability, uint16_t tail = 0) {
    v1::PutRequest request;
    request.set_ticket(first + 1);
    request.set_durability(durability);
    for (uint64_t i = 0; i < count; ++i) {
      v1::PutBlock& block = *request.add_blocks();
      block.set_key(std::string(MakeKey(first + i).AsStringView()));
      block.set_parent(std::string(MakeKey(first + i - 1).AsStringView()));
      block.set_first_position((first + i) * 64);
      block.set_tokens(i + 1 == count && tail != 0 ? tail : 64);
    }
    request.set_deadline_ms(100);
    return Call(5, session, request);
  }
  Script& Acquire(uint8_t session, uint64_t lease, uint64_t first, uint64_t count, bool tails = false) {
    v1::AcquireRequest request;
    request.set_lease(lease);
    request.set_parent(std::string(MakeKey(first - 1).AsStringView()));
    request.set_keys(Keys(first, count));
    request.set_want_tails(tails);
    request.set_deadline_ms(50);
    return Call(2, session, request);
  }
  Script& Act(uint8_t what, uint8_t argument) {
    input_.Put(what).Put(argument);
    return *this;
  }
  Script& Advance(uint16_t ms) {
    input_.Put(kAdvance).Put16(ms);
    return *this;
  }
  Script& Settle() {
    input_.Put(kSettle);
    return *this;
  }
  static std::string Keys(uint64_t first, uint64_t count) {
    std::string keys;
    for (uint64_t i = 0; i < count; ++i) keys += MakeKey(first + i).AsStringView();
    return keys;
  }
  FuzzTarget::Bytes Take() { return input_.Take(); }

 private:
  InputWriter input_;
};

FuzzTarget::Bytes ReadingAndForgetting() {
  Script script;
  script.Register(1, 64).Put(1, 10, 4, v1::DURABILITY_MEMORY, 16).Settle();
  v1::LookupRequest lookup;
  lookup.set_parent(std::string(MakeKey(9).AsStringView()));
  lookup.set_keys(Script::Keys(10, 4));
  script.Call(1, 1, lookup).Acquire(1, 7, 10, 3, true).Settle();
  v1::RenewRequest renew;
  renew.set_lease(7);
  script.Call(4, 1, renew);
  v1::ReleaseRequest release;
  release.set_lease(7);
  release.set_damaged_keys(Script::Keys(11, 1));
  script.Call(3, 1, release).Settle();
  v1::RemoveRequest remove;
  remove.set_keys(Script::Keys(12, 2));
  script.Call(9, 1, remove);
  remove.clear_keys();
  remove.set_whole_namespace(true);
  return script.Call(9, 1, remove).Take();
}

FuzzTarget::Bytes FillingTheLadder() {
  Script script;
  script.Register(1, 64);
  for (uint64_t first = 10; first < 42; first += 8) {
    script.Put(1, first, 8, first % 16 == 10 ? v1::DURABILITY_DURABLE : v1::DURABILITY_MEMORY).Settle();
  }
  v1::WaitTicketRequest wait;
  wait.set_ticket(11);
  wait.set_deadline_ms(1000);
  script.Call(6, 1, wait).Acquire(1, 7, 10, 8);
  v1::PrefetchRequest prefetch;
  prefetch.set_ticket(99);
  prefetch.set_tier(1);
  prefetch.set_keys(Script::Keys(10, 16));
  prefetch.set_deadline_ms(100);
  v1::CancelRequest cancel;
  cancel.set_ticket(99);
  script.Call(7, 1, prefetch).Act(kStep, 0).Act(kFailJob, 1).Act(kRunJob, 2).Call(8, 1, cancel);
  return script.Act(kClose, 1).Act(kOpen, 1).Register(1, 64).Acquire(1, 8, 10, 8).Advance(500).Take();
}

FuzzTarget::Bytes Administration() {
  Script script;
  script.Register(0, 128).Put(0, 10, 6, v1::DURABILITY_MEMORY).Settle();
  v1::TierCountRequest count;
  count.set_count(2);
  script.Call(13, 0, count).Settle();
  count.set_tier(1);
  script.Call(14, 0, count).Call(10, 0, v1::StatsRequest()).Call(11, 0, v1::ListModelsRequest());
  v1::ListBlocksRequest blocks;
  blocks.set_limit(4);
  blocks.set_after(std::string(Key{}.AsStringView()));
  script.Call(12, 0, blocks).Settle();
  v1::VerifyRequest verify;
  verify.set_tier(3);
  verify.set_deadline_ms(5000);
  return script.Call(15, 0, verify).Settle().Call(16, 0, v1::DrainRequest()).Settle().Take();
}

FuzzTarget::Bytes SeveralTenants() {
  Script script;
  script.Register(1, 64).Register(2, 64).Put(1, 10, 3, v1::DURABILITY_MEMORY).Settle();
  return script.Acquire(2, 7, 10, 3)
      .Acquire(1, 7, 10, 3)
      .Put(2, 10, 3, v1::DURABILITY_DURABLE)
      .Settle()
      .Acquire(2, 8, 10, 3)
      .Act(kClose, 2)
      .Settle()
      .Take();
}

}  // namespace

std::vector<FuzzTarget::Bytes> CommandsSeeds() {
  return {ReadingAndForgetting(), FillingTheLadder(), Administration(), SeveralTenants()};
}

}  // namespace kvtier
