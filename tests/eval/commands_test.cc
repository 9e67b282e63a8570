// What both commands of kvtier-eval share.
#include "tests/eval/commands.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <stdexcept>

#include "tests/eval/methods.h"

namespace kvtier::eval {
namespace {

void ParseOnly(const std::string& method) {
  CLI::App app;
  CommonOptions options;
  AddCommon(app, options, MethodNames());
  std::vector<std::string> arguments = {method, "--only"};  // CLI11 takes them from the back
  app.parse(arguments);
  EXPECT_EQ(options.only, std::vector<std::string>{method});
}

void ParseJson(const std::string& file) {
  CLI::App app;
  CommonOptions options;
  AddCommon(app, options, MethodNames());
  std::vector<std::string> arguments = {file, "--json"};
  app.parse(arguments);
}

TEST(Methods, AreAskedForByNamesThatExist) {
  for (const std::string& name : MethodNames()) EXPECT_NO_THROW(ParseOnly(name)) << name;
  for (const std::string& name : {std::string("kv4"), AttendedNames().at(0)})
    EXPECT_THROW(ParseOnly(name), CLI::ValidationError) << name << " would evaluate nothing and succeed";
}

TEST(Results, AreNotComputedForAFileThatCannotBeWritten) {
  EXPECT_THROW(ParseJson("/nonexistent/x.json"), CLI::ValidationError);
  EXPECT_NO_THROW(ParseJson("/dev/null"));
}

TEST(Results, AreWrittenWhereAskedForAndAFailureIsTold) {
  const auto never = []() -> std::string { throw std::logic_error("nothing was asked for"); };
  EXPECT_TRUE(WriteJson({}, never));
  CommonOptions options;
  options.json = "/dev/full";
  EXPECT_FALSE(WriteJson(options, [] { return std::string("{}"); }));
}

}  // namespace
}  // namespace kvtier::eval
