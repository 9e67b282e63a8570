// The C ABI where there is no daemon.
#include <gtest/gtest.h>
#include <kvtier/kvtier.h>
#include <kvtier/kvtier.hpp>

#include <chrono>
#include <cstring>
#include <string>

namespace {

TEST(Offline, OpenAnswersUnavailableWithinItsTimeout) {
  kvtier_options options{};
  options.struct_size = sizeof(options);
  options.socket = "/nonexistent/kvtierd.sock";
  options.timeout_ms = 2000;
  auto* client = reinterpret_cast<kvtier_client*>(1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(kvtier_open(&options, &client), KVTIER_UNAVAILABLE);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_EQ(client, nullptr);
  EXPECT_NE(std::string(kvtier_last_error()).find("/nonexistent/kvtierd.sock"), std::string::npos);
}

TEST(Offline, OpenRefusesAPathThatNoSocketCanHave) {
  kvtier_options options{};
  options.struct_size = sizeof(options);
  const std::string path(200, 'x');
  options.socket = path.c_str();
  kvtier_client* client = nullptr;
  EXPECT_EQ(kvtier_open(&options, &client), KVTIER_INVALID_ARGUMENT);
}

TEST(Offline, S26_HandlesThatAreNoneAnswerStaleAndNothingIsTouched) {
  for (const uintptr_t value : {uintptr_t{0}, uintptr_t{16}, uintptr_t{12345}, ~uintptr_t{0}}) {
    auto* client = reinterpret_cast<kvtier_client*>(value);
    auto* model = reinterpret_cast<kvtier_model*>(value);
    auto* lease = reinterpret_cast<kvtier_lease*>(value);
    kvtier_stats stats{};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(kvtier_get_stats(client, &stats, 0), KVTIER_STALE);
    EXPECT_EQ(kvtier_wait(client, 1, nullptr, 0, 0), KVTIER_STALE);
    EXPECT_EQ(kvtier_clear(model, nullptr, 0), KVTIER_STALE);
    EXPECT_EQ(kvtier_release(lease), KVTIER_STALE);
    EXPECT_EQ(kvtier_lease_count(lease), 0u);
    EXPECT_EQ(kvtier_lease_tokens(lease), 0u);
    kvtier_close(client);
  }
}

TEST(Offline, S58_NullPointersAreCodes) {
  EXPECT_EQ(kvtier_open(nullptr, nullptr), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(kvtier_register_model(nullptr, nullptr, nullptr), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(kvtier_lookup(nullptr, nullptr, nullptr, nullptr, 0), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(kvtier_acquire(nullptr, nullptr, nullptr, nullptr), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(kvtier_fetch(nullptr, 0, 1, 0, 0, nullptr, nullptr), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(kvtier_put(nullptr, nullptr, nullptr, nullptr, nullptr), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(kvtier_get_stats(nullptr, nullptr, 0), KVTIER_INVALID_ARGUMENT);
  kvtier_close(nullptr);
}

TEST(Offline, FetchMarksEveryBlockStaleForAStaleLease) {
  kvtier_block_result results[2] = {};
  EXPECT_EQ(kvtier_fetch(nullptr, 0, 2, 0, 0, nullptr, results), KVTIER_STALE);
  EXPECT_EQ(results[0].code, KVTIER_STALE);
  EXPECT_EQ(results[1].code, KVTIER_STALE);
}

TEST(Offline, FetchOfMoreBlocksThanALeaseHoldsTouchesNoResult) {
  kvtier_block_result result = {};
  EXPECT_EQ(kvtier_fetch(nullptr, 0, SIZE_MAX, 0, 0, nullptr, &result), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(result.code, KVTIER_OK);
}

TEST(Offline, EveryCodeHasAName) {
  EXPECT_STREQ(kvtier_code_name(KVTIER_OK), "OK");
  EXPECT_STREQ(kvtier_code_name(KVTIER_CORRUPT), "CORRUPT");
  EXPECT_STREQ(kvtier_code_name(static_cast<kvtier_code>(77)), "UNKNOWN");
  EXPECT_STREQ(kvtier_precision_name(KVTIER_K4V2), "K4V2");
  EXPECT_STREQ(kvtier_precision_name(KVTIER_BITS16), "BITS16");
  EXPECT_STREQ(kvtier_precision_name(static_cast<kvtier_precision>(77)), "UNKNOWN");
  EXPECT_GT(std::strlen(kvtier_version()), 0u);
}

}  // namespace
