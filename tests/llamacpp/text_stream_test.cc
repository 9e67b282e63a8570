#include "client/engines/llamacpp/text_stream.h"

#include <gtest/gtest.h>

#include <random>

namespace kvtier::llamacpp {
namespace {

TEST(TextStream, GivesPlainTextAtOnce) {
  TextStream stream({});
  EXPECT_EQ(stream.Add("Hello"), "Hello");
  EXPECT_EQ(stream.Add(" world"), " world");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, HoldsACharacterUntilItIsWhole) {
  TextStream stream({});
  EXPECT_EQ(stream.Add("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Add("\x98"), "");
  EXPECT_EQ(stream.Add("\x80z"), "\xF0\x9F\x98\x80z");
}

TEST(TextStream, ReplacesWhatIsNoUtf8) {
  // By the Unicode Standard: one U+FFFD for each maximal part of a character, and for each other byte.
  const std::string mark = "\xEF\xBF\xBD";
  for (const auto& [bytes, text] :
       std::vector<std::pair<std::string, std::string>>{{"\xFFx", mark + "x"},
                                                        {"\xC0\xAF", mark + mark},
                                                        {"\xE2\x82x", mark + "x"},
                                                        {"\xED\xA0\x80", mark + mark + mark},
                                                        {"\xF4\x90\x80\x80", mark + mark + mark + mark},
                                                        {"\xE0\x9F\x80", mark + mark + mark},
                                                        {"\xF0\x8F\x80\x80", mark + mark + mark + mark},
                                                        {"\xC3\x28", mark + "("}}) {
    TextStream stream({});
    std::string out = stream.Add(bytes);
    out += stream.Finish();
    EXPECT_EQ(out, text);
  }
  TextStream cut({});
  EXPECT_EQ(cut.Add("\xE2\x82"), "");
  EXPECT_EQ(cut.Finish(), mark);
}

TEST(TextStream, EndsBeforeAStopString) {
  TextStream stream({"", "STOP"});
  EXPECT_EQ(stream.Add("go on ST"), "go on ");
  EXPECT_EQ(stream.Add("ST"), "ST");
  EXPECT_EQ(stream.Add("OP and more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.Add("more"), "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, GivesABeginningOfAStopStringThatCameToNothing) {
  TextStream stream({"</end>"});
  EXPECT_EQ(stream.Add("x</en"), "x");
  EXPECT_EQ(stream.Add("ough"), "</enough");
  EXPECT_EQ(stream.Add("</"), "");
  EXPECT_EQ(stream.Finish(), "</");
}

TEST(TextStream, TakesTheFirstOfSeveralStopStrings) {
  TextStream stream({"bc", "abcd"});
  EXPECT_EQ(stream.Add("xab"), "x");
  EXPECT_EQ(stream.Add("cd"), "a");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, GivesTheSameTextHoweverItIsCut) {
  std::mt19937 random(20261130);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    static constexpr std::string_view kParts[] = {
        "a", "b", "ab", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xFF"};
    for (unsigned i = 0; i < 1 + random() % 12; ++i) text += kParts[random() % std::size(kParts)];
    const std::vector<std::string> stops = {"aba", "abab\xC3\xA9", "b\xC3\xA9"};
    TextStream whole(stops);
    std::string expected = whole.Add(text);
    expected += whole.Finish();
    TextStream pieces(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = 1 + random() % 3;
      out += pieces.Add(std::string_view(text).substr(at, bytes));
      at += bytes;
    }
    out += pieces.Finish();
    ASSERT_EQ(out, expected) << "round " << round;
    ASSERT_EQ(pieces.stopped(), whole.stopped()) << "round " << round;
  }
}

}  // namespace
}  // namespace kvtier::llamacpp
