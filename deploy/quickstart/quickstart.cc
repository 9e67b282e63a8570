// kvtier-quickstart: the client side of deploy/quickstart.sh. It fills a ladder of small tiers with real KV
// and reads it back from every tier; after the daemon was killed and started again it shows what is still
// there.
//   kvtier-quickstart climb SOCKET DATA_FOLDER STATE_FOLDER
//   kvtier-quickstart again SOCKET DATA_FOLDER STATE_FOLDER

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "deploy/quickstart/ladder.h"

namespace kvtier::quickstart {
namespace {

// With all of a tier's 16 MiB used, the ladder holds about 30 conversations of 2.5 MiB in hot and warm.
constexpr uint32_t kMostConversations = 100;
constexpr uint64_t kColdBlocks = 6 * 2 * kBlocks;
constexpr auto kPollEvery = std::chrono::milliseconds(20);
constexpr int kMostPolls = 500;
constexpr uint32_t kTierCount = 3;

struct CloseConnection {
  void operator()(kvtier_client* handle) const { kvtier_close(handle); }
};
using Connection = std::unique_ptr<kvtier_client, CloseConnection>;

struct Arguments {
  std::string socket, data, state;
};

Result<Connection> Connect(const std::string& socket) {
  kvtier_options options{};
  options.struct_size = sizeof options;
  options.socket = socket.c_str();
  options.timeout_ms = kTimeoutMs;
  kvtier_client* handle = nullptr;
  KVTIER_TRY(StatusOf(kvtier_open(&options, &handle), "open " + socket));
  return Connection(handle);
}

Result<std::vector<RealKv>> LoadModels(const std::string& folder) {
  std::vector<RealKv> models(2);
  KVTIER_ASSIGN(models[0], LoadRealKv(folder, "smollm2-135m", 3, 9));
  KVTIER_ASSIGN(models[1], LoadRealKv(folder, "qwen2.5-coder-0.5b", 2, 14));
  return models;
}

Result<kvtier_stats> Stats(kvtier_client* handle) {
  kvtier_stats stats{};
  stats.struct_size = sizeof stats;
  KVTIER_TRY(StatusOf(kvtier_get_stats(handle, &stats, kTimeoutMs), "stats"));
  if (stats.tiers != kTierCount)
    return Status(Code::kFailedPrecondition, "this needs the tiers hot, warm and cold");
  return stats;
}

uint64_t BlocksIn(const kvtier_tier_stats& tier) {
  uint64_t blocks = 0;
  for (const uint64_t count : tier.blocks) blocks += count;
  return blocks;
}

void PrintTiers(const kvtier_stats& stats) {
  for (uint32_t tier = 0; tier < stats.tiers; ++tier) {
    std::printf("  %-5s %3llu blocks", stats.tier[tier].name,
                static_cast<unsigned long long>(BlocksIn(stats.tier[tier])));
  }
  std::printf("\n");
  std::fflush(stdout);
}

/// Demotion goes on in the background: until no count changes from one poll to the next.
Result<kvtier_stats> Settled(kvtier_client* handle) {
  KVTIER_ASSIGN(kvtier_stats stats, Stats(handle));
  for (int polls = 0, same = 0; polls < kMostPolls && same < 10; ++polls) {
    std::this_thread::sleep_for(kPollEvery);
    KVTIER_ASSIGN(const kvtier_stats next, Stats(handle));
    bool unchanged = true;
    for (uint32_t tier = 0; tier < kTierCount; ++tier) {
      unchanged = unchanged && BlocksIn(next.tier[tier]) == BlocksIn(stats.tier[tier]);
    }
    same = unchanged ? same + 1 : 0;
    stats = next;
  }
  return stats;
}

/// Puts the KV under more and more keys until enough of it has been pushed down to the last tier.
Result<std::vector<Conversation>> Fill(kvtier_client* handle, const std::vector<RealKv>& models) {
  std::vector<Conversation> conversations;
  for (uint32_t number = 0; number < kMostConversations; ++number) {
    for (const RealKv& real : models) {
      KVTIER_ASSIGN(Conversation conversation, Conversation::Make(handle, real, number));
      KVTIER_TRY(conversation.Put(KVTIER_MEMORY));
      conversations.push_back(std::move(conversation));
    }
    KVTIER_ASSIGN(const kvtier_stats stats, Stats(handle));
    if (number % 8 == 0) PrintTiers(stats);
    if (BlocksIn(stats.tier[kTierCount - 1]) >= kColdBlocks) return conversations;
  }
  return Status(Code::kFailedPrecondition, "the tiers are too large: nothing reaches the last one");
}

/// "model number block" of each block that is in the last tier now.
Status NoteColdBlocks(const std::vector<Conversation>& conversations, const std::string& path) {
  std::ofstream file(path);
  for (const Conversation& conversation : conversations) {
    KVTIER_ASSIGN(const std::vector<int> tiers, conversation.Tiers());
    for (uint32_t block = 0; block < kBlocks; ++block) {
      if (tiers[block] != kTierCount - 1) continue;
      file << conversation.real().name << " " << conversation.number() << " " << block << "\n";
    }
  }
  file.close();
  return file ? Status::Ok() : Status(Code::kUnavailable, "cannot write " + path);
}

Status Climb(const Arguments& arguments) {
  KVTIER_ASSIGN(const Connection connection, Connect(arguments.socket));
  KVTIER_ASSIGN(const std::vector<RealKv> models, LoadModels(arguments.data));
  std::printf(
      "putting the KV of 512 tokens of two models, again and again under other keys, until it has gone down "
      "to cold\n");
  KVTIER_ASSIGN(const std::vector<Conversation> conversations, Fill(connection.get(), models));
  KVTIER_ASSIGN(const kvtier_stats stats, Settled(connection.get()));
  PrintTiers(stats);

  std::printf("fetching every block and comparing every value with its source\n");
  Ladder ladder;
  for (size_t i = conversations.size(); i-- > 0;)
    KVTIER_TRY(ladder.Fetch(conversations[i]));  // newest first: they are hot
  std::vector<std::string> names;
  for (uint32_t tier = 0; tier < stats.tiers; ++tier) names.emplace_back(stats.tier[tier].name);
  std::printf("\n");
  ladder.PrintTable(names);
  std::printf(
      "\n%llu blocks fetched, none wrong; FP16 came back bit-exact; in each layer of each block the error is "
      "the one that\n"
      "the daemon reports.\n",
      static_cast<unsigned long long>(ladder.blocks()));
  for (uint32_t tier = 0; tier < kTierCount; ++tier) {
    if (ladder.BlocksFrom(tier) == 0) return Status(Code::kInternal, "no block came from " + names[tier]);
  }
  KVTIER_TRY(ladder.WriteErrors(arguments.state + "/errors.csv"));
  KVTIER_TRY(Settled(connection.get()).status());
  return NoteColdBlocks(conversations, arguments.state + "/cold-blocks");
}

Status Again(const Arguments& arguments) {
  KVTIER_ASSIGN(const Connection connection, Connect(arguments.socket));
  KVTIER_ASSIGN(const std::vector<RealKv> models, LoadModels(arguments.data));
  std::ifstream noted(arguments.state + "/cold-blocks");
  Ladder ladder;
  std::string name;
  for (uint32_t number = 0, block = 0; noted >> name >> number >> block;) {
    const RealKv& real = name == models[0].name ? models[0] : models[1];
    KVTIER_ASSIGN(const Conversation conversation, Conversation::Make(connection.get(), real, number));
    std::vector<uint16_t> kv(real.kv.size());
    const Status status = ladder.FetchBlock(conversation, block, &kv).status();
    const std::string what =
        name + ", conversation " + std::to_string(number) + ", block " + std::to_string(block);
    if (!status.ok()) return status.WithContext(what + " was in cold before the restart");
  }
  if (ladder.blocks() == 0) return Status(Code::kInternal, "no block was in cold before the restart");
  std::printf("%llu blocks were in cold when the daemon was killed: all hit, and their values are right\n",
              static_cast<unsigned long long>(ladder.blocks()));
  return Status::Ok();
}

int Main(int argc, char** argv) {
  const std::string command = argc == 5 ? argv[1] : "";
  if (command != "climb" && command != "again") {
    std::fprintf(stderr, "usage: kvtier-quickstart climb|again SOCKET DATA_FOLDER STATE_FOLDER\n");
    return 2;
  }
  const Arguments arguments{argv[2], argv[3], argv[4]};
  const Status status = command == "climb" ? Climb(arguments) : Again(arguments);
  if (!status.ok()) std::fprintf(stderr, "kvtier-quickstart: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kvtier::quickstart

int main(int argc, char** argv) {
  return kvtier::quickstart::Main(argc, argv);
}
