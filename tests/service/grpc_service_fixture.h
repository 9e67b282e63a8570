#pragma once

#include <mutex>
#include <vector>

#include "tests/service/grpc_fixture.h"

namespace kvtier {

/// Answers every kind of command with something recognisable and keeps the last put, acquire and demote.
class GrpcServiceTest : public GrpcFixture {
 protected:
  bool Answer(Command& command) override {
    std::lock_guard lock(mutex_);
    last_deadline_ = command.deadline;
    if (auto* lookup = std::get_if<Lookup>(&command.body)) {
      if (lookup->model.value == 99) {
        lookup->reply(Status(Code::kStale, "gone"));
        return true;
      }
      LookupReply reply;
      for (size_t i = 0; i < lookup->keys.size(); ++i) {
        reply.run.push_back({.precision = Precision::kInt4, .tier = TierId{static_cast<uint8_t>(i % 3)}});
      }
      reply.next_pending = true;
      reply.tails.push_back({.tokens = 7, .key = lookup->keys[0]});
      lookup->reply(reply);
    } else if (auto* acquire = std::get_if<Acquire>(&command.body)) {
      AcquireReply reply;
      AcquiredBlock block;
      block.key = acquire->keys[0];
      block.tokens = 64;
      block.codec = CodecId::kKv2p;
      block.precision = Precision::kInt2;
      block.served_from = TierId{2};
      block.image_bytes = 1000;
      block.place =
          Place{.tier = TierId{1}, .container = 3, .slot = 4, .offset = 8192, .bytes = 4096, .epoch = 77};
      block.k_error = 0.25f;
      reply.run.push_back(block);
      reply.stopped_by = Code::kNotFound;
      reply.expires = clock_.Now() + acquire->ttl;
      acquire->reply(reply);
    } else if (auto* put = std::get_if<Put>(&command.body)) {
      PutReply reply;
      for (const PutBlock& block : put->blocks) {
        put_bytes_.push_back(block.source.raw.empty() ? std::byte{0} : block.source.raw[0]);
        put_sizes_.push_back(block.source.raw.size());
        reply.blocks.push_back({.code = Code::kOk, .precision = Precision::kBits16, .tier = TierId{0}});
      }
      put->reply(reply);
    } else if (auto* remove = std::get_if<Remove>(&command.body)) {
      remove->reply(remove->keys.empty() ? 1000 : remove->keys.size());
    } else if (auto* stats = std::get_if<Stats>(&command.body)) {
      StatsReply reply;
      TierStats tier;
      tier.name = "hot";
      tier.blocks[5] = 12;
      reply.tiers.push_back(tier);
      stats->reply(reply);
    } else if (auto* demote = std::get_if<AdminDemote>(&command.body)) {
      demote->reply(demote->count);
    } else {
      return GrpcFixture::Answer(command);
    }
    return true;
  }
  TimePoint last_deadline() const {
    std::lock_guard lock(mutex_);
    return last_deadline_;
  }

  v1::PutRequest OnePut() {
    auto request = Signed<v1::PutRequest>();
    request.set_model(5);
    v1::PutBlock& block = *request.add_blocks();
    block.set_key(KeyBytes('k'));
    block.set_parent(KeyBytes('p'));
    block.set_tokens(64);
    return request;
  }
  grpc::Status PutOf(const v1::PutRequest& request) {
    v1::PutReply reply;
    return Call(&v1::Kvtier::Stub::Put, request, &reply);
  }
  grpc::Status RegisterOf(const v1::ModelSpec& spec) {
    auto request = Signed<v1::RegisterModelRequest>();
    *request.mutable_spec() = spec;
    v1::RegisterModelReply reply;
    return Call(&v1::Kvtier::Stub::RegisterModel, request, &reply);
  }
  grpc::Status LookupOf(const std::string& parent, const std::string& keys, uint32_t model = 5) {
    auto request = Signed<v1::LookupRequest>();
    request.set_model(model);
    request.set_parent(parent);
    request.set_keys(keys);
    v1::LookupReply reply;
    return Call(&v1::Kvtier::Stub::Lookup, request, &reply);
  }

  mutable std::mutex mutex_;
  TimePoint last_deadline_;
  std::vector<std::byte> put_bytes_;
  std::vector<size_t> put_sizes_;
};

#define EXPECT_GRPC(status, wanted_code, text)                  \
  do {                                                          \
    const grpc::Status got = (status);                          \
    EXPECT_EQ(got.error_code(), grpc::StatusCode::wanted_code); \
    EXPECT_EQ(got.error_message(), text);                       \
  } while (false)

}  // namespace kvtier
