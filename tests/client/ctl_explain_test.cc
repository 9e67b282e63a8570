#include "client/ctl/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/ctl/output.h"
#include "codecs/codec.h"

namespace kvtier::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(KeyBefore, IsTheKeyBelowTheFirstWithThePrefix) {
  EXPECT_EQ(Hex(KeyBefore("8").value()), "7" + std::string(63, 'f'));
  EXPECT_EQ(Hex(KeyBefore("a10").value()), "a0" + std::string(62, 'f'));
  EXPECT_EQ(Hex(KeyBefore(std::string(63, '0') + "1").value()), std::string(64, '0'));
  EXPECT_EQ(Hex(KeyBefore(std::string(64, 'f')).value()), std::string(63, 'f') + "e");
  EXPECT_EQ(KeyBefore("000").value(), "") << "from the first on";
  for (const std::string& prefix :
       {std::string(), std::string("xyz"), std::string("AB"), std::string(65, '1')}) {
    EXPECT_EQ(KeyBefore(prefix).status().code(), Code::kInvalidArgument) << prefix;
  }
}

class ExplainTest : public testing::Test {
 protected:
  ExplainTest() {
    for (const char* name : {"hot", "warm", "cold"}) stats_.add_tiers()->set_name(name);
    block_.set_key(std::string(32, '\xab'));
    block_.set_parent(std::string(32, '\xcd'));
    block_.set_first_position(128);
    block_.set_tokens(64);
    block_.set_uses_since(12);
    model_.set_tenant("uid:7");
    model_.mutable_spec()->set_model_id("qwen");
  }
  void AddCopy(uint32_t tier, CodecId codec) {
    auto& copy = *block_.add_copies();
    copy.set_tier(tier);
    copy.set_codec(static_cast<uint32_t>(codec));
    copy.set_bytes(4096);
    copy.set_present_ms(90'500);
    copy.set_k_error(0.125);
  }
  std::string Text() const { return ExplainText(block_, model_, stats_); }

  v1::ListBlocksReply::Block block_;
  v1::ListModelsReply::Model model_;
  v1::StatsReply stats_;
};

TEST_F(ExplainTest, TellsWhatTheBlockIsAndEachCopy) {
  AddCopy(0, CodecId::kRaw16);
  AddCopy(2, CodecId::kKv4p);
  EXPECT_THAT(Text(), HasSubstr("block abab"));
  EXPECT_THAT(Text(), HasSubstr("of    cdcd"));
  EXPECT_THAT(Text(), testing::ContainsRegex("uid:7 +qwen +128 to 191"));
  EXPECT_THAT(Text(), testing::ContainsRegex("hot +bits16 +4\\.0 KiB +90\\.5 s +0\\.1250 +0\\.0000"));
  EXPECT_THAT(Text(), HasSubstr("- a reader gets bits16 from hot, the highest tier that has it\n"));
  EXPECT_THAT(Text(),
              HasSubstr("- when hot needs room, the copy there just goes: cold has the block as int4\n"));
  EXPECT_THAT(Text(), HasSubstr(": 12 uses of other blocks came after its last one\n"));
  for (const char* other : {"leases", "floor", "tail block", "frequency"}) {
    EXPECT_THAT(Text(), Not(HasSubstr(other)));
  }
}

TEST_F(ExplainTest, TellsWhatComesNext) {
  AddCopy(1, CodecId::kKv4p);
  EXPECT_THAT(Text(), HasSubstr("- when warm needs room, it is moved on to cold"));
  block_.clear_copies();
  AddCopy(2, CodecId::kKv2p);
  EXPECT_THAT(Text(), HasSubstr("- cold is the last tier: when it needs room, the block is dropped\n"));
  block_.clear_copies();
  EXPECT_THAT(Text(), HasSubstr("- no tier has it at the moment"));
}

TEST_F(ExplainTest, TellsWhatHoldsAndWhatBoundsIt) {
  AddCopy(0, CodecId::kRaw16);
  block_.set_pins(2);
  block_.set_floor(v1::PRECISION_INT4);
  block_.set_is_tail(true);
  block_.set_recent_uses(15);
  EXPECT_THAT(Text(), HasSubstr("- leases or moves hold it (2)"));
  EXPECT_THAT(Text(), HasSubstr("- it is never kept below int4: its floor\n"));
  EXPECT_THAT(Text(), HasSubstr("- a tail block"));
  EXPECT_THAT(Text(), HasSubstr("counts 15 or more uses of it lately\n"));
}

}  // namespace
}  // namespace kvtier::ctl
