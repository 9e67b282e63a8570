#include "client/ctl/output.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvtier::ctl {
namespace {

TEST(JsonWriter, NestsAndEscapes) {
  JsonWriter json;
  json.BeginObject().Text("a\"b", "line\nend\\").Number("n", 18446744073709551615u).Bool("yes", true);
  json.BeginArray("list")
      .Element(1)
      .Element(2)
      .BeginObject()
      .EndObject()
      .EndArray()
      .Real("r", 0.25)
      .EndObject();
  EXPECT_EQ(json.str(),
            R"({"a\"b":"line\u000aend\\","n":18446744073709551615,"yes":true,"list":[1,2,{}],"r":0.25})");
}

TEST(JsonWriter, ReplacesWhatIsNoUtf8) {
  JsonWriter json;
  json.BeginArray();
  const auto text = [&json](std::string_view bytes) { json.BeginObject().Text("t", bytes).EndObject(); };
  text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");  // stays
  text("a\xff\xfe");
  text("\xc0\xaf");          // longer than it needs to be
  text("\xed\xa0\x80");      // a surrogate
  text("\xf4\x90\x80\x80");  // beyond the last character
  text("\xe2\x82");          // cut
  json.EndArray();
  EXPECT_EQ(json.str(),
            "[{\"t\":\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"},{\"t\":\"a\\ufffd\\ufffd\"},"
            "{\"t\":\"\\ufffd\\ufffd\"},{\"t\":\"\\ufffd\\ufffd\\ufffd\"},"
            "{\"t\":\"\\ufffd\\ufffd\\ufffd\\ufffd\"},{\"t\":\"\\ufffd\\ufffd\"}]");
}

TEST(JsonWriter, WritesNullForWhatIsNoNumberInJson) {
  JsonWriter json;
  json.BeginObject().Real("a", std::nan("")).Real("b", HUGE_VAL).EndObject();
  EXPECT_EQ(json.str(), R"({"a":null,"b":null})");
}

TEST(HumanSeconds, PicksAUnit) {
  EXPECT_EQ(HumanSeconds(0), "0 ms");
  EXPECT_EQ(HumanSeconds(0.000256), "256 us");
  EXPECT_EQ(HumanSeconds(0.25), "250 ms");
  EXPECT_EQ(HumanSeconds(90.5), "90.5 s");
  EXPECT_EQ(HumanSeconds(150), "2.5 min");
  EXPECT_EQ(HumanSeconds(3 * 3600), "3.0 h");
  EXPECT_EQ(HumanSeconds(4 * 86'400), "4.0 d");
}

TEST(Table, AlignsTextLeftAndNumbersRight) {
  Table table({"name", "n"});
  table.Row({"a", "5"});
  table.Row({"longer", "1234"});
  EXPECT_EQ(table.str(), "name    n\na          5\nlonger  1234\n");
}

TEST(Table, ShowsControlCharactersAsTheirCodes) {
  Table table({"id"});
  table.Row(
      {"a\x1b[2Jb\nc\x7f\xc2\x9b"
       "d\xc3\xa9\xff"});
  EXPECT_EQ(table.str(), "id\na\\x1b[2Jb\\x0ac\\x7f\\x9bd\xc3\xa9\\xff\n");
}

TEST(HumanBytes, PicksAUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 50), "3072.0 TiB");
}

TEST(Hex, WritesEveryByteWithTwoDigits) {
  EXPECT_EQ(Hex(std::string_view("\x00\x0f\xff", 3)), "000fff");
}

}  // namespace
}  // namespace kvtier::ctl
