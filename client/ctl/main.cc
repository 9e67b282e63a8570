// kvtierctl: looks into a running daemon and tells it what to do, or into a store that none uses. Exit codes:
// 0 done, 1 error or damage, 2 usage.
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "client/ctl/output.h"
#include "client/ctl/size.h"
#include "client/ctl/store_verbs.h"
#include "client/ctl/top.h"
#include "client/ctl/verbs.h"
#include "codecs/image_layout.h"
#include "daemon/policy/model_spec.h"
#include "kvtier/kvtier.h"

namespace kvtier::ctl {
namespace {

constexpr int kOk = 0, kError = 1, kUsage = 2;
constexpr char kDefaultSocket[] = "/run/kvtier/kvtierd.sock";
constexpr char kDefaultMetrics[] = "127.0.0.1:9464";

using Run = std::function<Result<std::string>(Verbs&)>;

/// Says what it wants instead of a range up to the largest double.
std::string CheckCount(const std::string& text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool good = error == std::errc() && end == text.data() + text.size() && count > 0;
  return good ? std::string() : "\"" + text + "\" is not a whole number of at least 1";
}

/// An empty name would else be the same as none.
std::string CheckNamed(const std::string& text) {
  return text.empty() ? "must not be empty" : std::string();
}

struct Arguments {
  std::string socket = kDefaultSocket;
  bool json = false;
  uint32_t timeout_s = 600;
  std::string tier;
  uint64_t count = 0;
  uint32_t model = 0;
  uint64_t limit = 0;
  std::string store, key, dtype = "fp16";
  std::string metrics = kDefaultMetrics;
  double interval_s = 2;
  uint64_t frames = 0;
  SizeRequest size{.block = {.tokens = kMaxTokens}};
};

void AddVerbs(CLI::App& app, Arguments& arguments, Run& run) {
  const auto verb = [&app, &run](const char* name, const char* what, Run does) {
    CLI::App* added = app.add_subcommand(name, what);
    added->callback([&run, does = std::move(does)] { run = does; });
    return added;
  };
  const auto with_tier = [&arguments](CLI::App* added) {
    added->add_option("TIER", arguments.tier, "name or number of the tier")->required()->check(CheckNamed);
    return added;
  };
  const auto with_count = [&arguments](CLI::App* added) {
    added->add_option("N", arguments.count, "how many blocks; all when left out")->check(CheckCount);
  };
  verb("status", "the daemon and its tiers", [](Verbs& v) { return v.Status(); });
  verb("tiers", "what the tiers hold", [](Verbs& v) { return v.Tiers(); });
  verb("models", "registered models of all tenants", [](Verbs& v) { return v.Models(); });
  CLI::App* blocks = verb("blocks", "blocks of a model",
                          [&](Verbs& v) { return v.Blocks(arguments.model, arguments.limit); });
  blocks->add_option("MODEL", arguments.model, "number of the model, see `models`")->required();
  blocks->add_option("--limit", arguments.limit, "at most so many blocks");
  verb("explain", "where a block is, and why", [&](Verbs& v) { return v.Explain(arguments.key); })
      ->add_option("KEY", arguments.key, "its key, or as much of it as no other starts with")
      ->required();
  with_count(with_tier(verb("demote", "move the least valuable blocks of a tier one tier down",
                            [&](Verbs& v) { return v.Demote(arguments.tier, arguments.count); })));
  with_count(with_tier(verb("evict", "drop the least valuable blocks of a tier",
                            [&](Verbs& v) { return v.Evict(arguments.tier, arguments.count); })));
  CLI::App* verify = verb("verify", "read and check every block of a tier; of all when none is named",
                          [&](Verbs& v) { return v.Verify(arguments.tier); });
  CLI::Option* tier =
      verify->add_option("TIER", arguments.tier, "name or number of the tier")->check(CheckNamed);
  verify
      ->add_option("--store", arguments.store,
                   "check the folder of a cold tier instead, which no daemon uses")
      ->excludes(tier)
      ->check(CheckNamed)
      ->type_name("FOLDER");
  CLI::App* repair =
      app.add_subcommand("repair", "make a cold tier's folder whole again, while no daemon uses it");
  repair->add_option("--store", arguments.store, "the folder")
      ->required()
      ->check(CheckNamed)
      ->type_name("FOLDER");
  verb("drain", "make every block durable and take no more puts", [](Verbs& v) { return v.Drain(); });
}

void AddTop(CLI::App& app, Arguments& arguments) {
  CLI::App* top = app.add_subcommand("top", "what the daemon does, live, from its metrics");
  top->add_option("--metrics", arguments.metrics, "where the daemon's metrics are")
      ->envname("KVTIER_METRICS")
      ->capture_default_str();
  top->add_option("--interval", arguments.interval_s, "seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  top->add_option("--frames", arguments.frames, "how many looks; until killed when left out")
      ->check(CheckCount);
}

void AddSize(CLI::App& app, Arguments& arguments) {
  CLI::App* size = app.add_subcommand("size", "what tiers of a size hold of a model; asks no daemon");
  BlockShape& block = arguments.size.block;
  const auto shape = [size](const char* name, uint16_t& value, uint16_t most, const char* what) {
    return size->add_option(name, value, what)->check(CLI::Range(uint16_t{1}, most));
  };
  shape("--layers", block.layers, kMaxLayers, "layers of the model")->required();
  shape("--kv-heads", block.kv_heads, 1024, "KV heads of a layer, of one rank")->required();
  shape("--head-dim", block.k_dim, static_cast<uint16_t>(kMaxHeadDim), "channels of a K head")->required();
  shape("--v-dim", block.v_dim, static_cast<uint16_t>(kMaxHeadDim),
        "channels of a V head; as K when left out");
  size->add_option("--tokens-per-block", block.tokens)
      ->check(CLI::IsMember({64, 128}))
      ->capture_default_str();
  size->add_option("--dtype", arguments.dtype, "of the engine's cache")
      ->check(CLI::IsMember({"fp16", "bf16", "fp8"}))
      ->capture_default_str();
  const auto capacity = [size](const char* name, uint64_t& value, const char* what) {
    size->add_option(name, value, what)->transform(CLI::AsSizeValue(false))->type_name("SIZE");
  };
  capacity("--hot", arguments.size.hot_bytes, "capacity of the hot tier, like 4GiB");
  capacity("--warm", arguments.size.warm_bytes, "of the warm one");
  capacity("--cold", arguments.size.cold_bytes, "of the cold one");
  capacity("--segment", arguments.size.segment_bytes, "segment of the cold tier");
  size->add_flag("!--no-tails", arguments.size.keep_tails, "the cold tier has tails = \"never\"");
  size->add_option("--tokens-per-second", arguments.size.tokens_per_second,
                   "new tokens of all engines together: how long a tier lasts")
      ->check(CLI::PositiveNumber);
}

/// With what was left out.
SizeRequest Completed(const Arguments& arguments) {
  SizeRequest request = arguments.size;
  BlockShape& block = request.block;
  block.dtype = arguments.dtype == "fp8"    ? DType::kE4m3
                : arguments.dtype == "bf16" ? DType::kBf16
                                            : DType::kFp16;
  if (block.v_dim == 0) block.v_dim = block.k_dim;
  block.nb = DefaultBoost(block.k_dim);
  return request;
}

int Fail(const kvtier::Status& status, Format format) {
  if (format == Format::kJson) {
    JsonWriter json;
    json.BeginObject().Text("error", CodeName(status.code())).Text("message", status.message()).EndObject();
    std::printf("%s\n", json.str().c_str());
  } else {
    std::fprintf(stderr, "kvtierctl: %s\n", status.ToString().c_str());
  }
  return kError;
}

int RunTop(const Arguments& arguments) {
  const auto interval = std::chrono::duration<double>(arguments.interval_s);
  const Status shown = ShowTop({.address = arguments.metrics,
                                .interval = std::chrono::duration_cast<Duration>(interval),
                                .frames = arguments.frames},
                               stdout);
  if (shown.ok()) return kOk;
  return Fail(shown, Format::kHuman);
}

int Print(const Result<std::string>& text, Format format) {
  if (text.ok()) {
    std::fputs(text.value().c_str(), stdout);
    return kOk;
  }
  // A verify that found damage has its figures to print all the same.
  if (text.status().code() == Code::kDataLoss && text.status().message().ends_with('\n')) {
    std::fputs(text.status().message().c_str(), stdout);
    return kError;
  }
  return Fail(text.status(), format);
}

int RunVerb(const Arguments& arguments, const Run& run) {
  client::Client::Options options;
  options.connection = {.socket = arguments.socket, .client_name = "kvtierctl"};
  options.timeout = std::chrono::seconds(2);
  const Result<std::shared_ptr<client::Client>> client = client::Client::Open(std::move(options));
  const Format format = arguments.json ? Format::kJson : Format::kHuman;
  if (!client.ok()) return Fail(client.status(), format);
  Verbs verbs(**client, format, std::chrono::seconds(arguments.timeout_s));
  const Result<std::string> text = run(verbs);
  (*client)->Close();
  return Print(text, format);
}

int Main(int argc, char** argv) {
  CLI::App app("Looks into a running kvtierd and tells it what to do.", "kvtierctl");
  app.set_version_flag("--version", std::string("kvtierctl ") + kvtier_version());
  Arguments arguments;
  Run run;
  app.add_option("--socket", arguments.socket, "the daemon's socket")
      ->envname("KVTIER_SOCKET")
      ->capture_default_str();
  app.add_option("--timeout", arguments.timeout_s, "seconds to wait for an answer")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_flag("--json", arguments.json, "one JSON object instead of text for people");
  app.require_subcommand(1);
  app.fallthrough();
  AddVerbs(app, arguments, run);
  AddTop(app, arguments);
  AddSize(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  const Format format = arguments.json ? Format::kJson : Format::kHuman;
  if (app.got_subcommand("top")) return RunTop(arguments);
  if (app.got_subcommand("size")) return Print(SizeReport(Completed(arguments), format), format);
  if (app.got_subcommand("repair")) return Print(RepairStore(arguments.store, format), format);
  if (!arguments.store.empty()) return Print(VerifyStore(arguments.store, format), format);
  return RunVerb(arguments, run);
}

}  // namespace
}  // namespace kvtier::ctl

int main(int argc, char** argv) {
  return kvtier::ctl::Main(argc, argv);
}
