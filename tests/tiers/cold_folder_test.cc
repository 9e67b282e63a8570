#include "tiers/cold_folder.h"

#include <gmock/gmock.h>

#include "tests/support/faulty_block_io.h"
#include "tests/tiers/cold_fixture.h"

namespace kvtier {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class ColdFolderTest : public testing::Test {
 protected:
  Result<std::unique_ptr<ColdStore>> Make(const std::string& path) {
    return ColdStore::Make(TestColdOptions(path));
  }
  void WriteFile(const std::string& name, std::string_view text) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << text;
  }
  std::string ReadFile(const std::string& name) {
    return ReadWholeFile(folder_.path() + "/" + name, 1 << 20).value();
  }

  TempFolder folder_;
  std::unique_ptr<BlockIo> io_ = MakeBlockIo(BlockIoKind::kSync).value();
};

TEST_F(ColdFolderTest, AMissingFolderIsNamed) {
  const Status status = Make(folder_.path() + "/none").status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(folder_.path() + "/none"));
}

TEST_F(ColdFolderTest, AFileInPlaceOfTheFolderIsRefused) {
  WriteFile("file", "text");
  const Status status = Make(folder_.path() + "/file").status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("is not a folder"));
}

TEST_F(ColdFolderTest, AFolderWithForeignFilesIsRefusedAndLeftAlone) {
  WriteFile("photo.jpg", "not ours");
  const Status status = Make(folder_.path()).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("photo.jpg"));
  EXPECT_EQ(ListFolder(folder_.path()).value(), std::vector<std::string>{"photo.jpg"});
}

TEST_F(ColdFolderTest, S53_ASecondStoreIsRefusedUntilTheFirstIsGone) {
  Result<std::unique_ptr<ColdStore>> first = Make(folder_.path());
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const Status status = Make(folder_.path()).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr(folder_.path()));
  EXPECT_THAT(status.message(), HasSubstr("another daemon"));
  first.value().reset();
  EXPECT_TRUE(Make(folder_.path()).ok());
}

TEST_F(ColdFolderTest, AnotherFormatIsRefusedWithBothVersionsAndStaysAsItIs) {
  ASSERT_TRUE(Make(folder_.path()).ok());
  const std::string own = ReadFile("FORMAT");
  for (const std::string version : {"1", "3"}) {
    std::string format = own;
    format.replace(format.find("version 2"), 9, "version " + version);
    WriteFile("FORMAT", format);
    const Status status = Make(folder_.path()).status();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("has format version " + version +
                                            ", this program reads version 2: give it an empty"));
    EXPECT_EQ(ReadFile("FORMAT"), format);
  }
}

TEST_F(ColdFolderTest, ADamagedFormatFileIsNamedAndNothingIsLost) {
  ASSERT_TRUE(Make(folder_.path()).ok());
  const std::string format = ReadFile("FORMAT");
  const size_t uuid_at = format.find("uuid ") + 5;
  for (const std::string& damaged :
       {std::string(), std::string("something else"), format.substr(0, format.size() / 2),
        std::string(format).replace(uuid_at, 1, format[uuid_at] == '0' ? "1" : "0")}) {
    WriteFile("FORMAT", damaged);
    const Status status = Make(folder_.path()).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << damaged;
    EXPECT_THAT(status.message(), HasSubstr("FORMAT"));
    EXPECT_EQ(ReadFile("FORMAT"), damaged);
  }
  WriteFile("FORMAT", format);
  EXPECT_TRUE(Make(folder_.path()).ok());
}

TEST_F(ColdFolderTest, AnotherSegmentSizeIsRefused) {
  ASSERT_TRUE(Make(folder_.path()).ok());
  ColdStoreOptions options = TestColdOptions(folder_.path());
  options.segment_bytes *= 2;
  const Status status = ColdStore::Make(options).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("made with segments of"));
}

TEST_F(ColdFolderTest, OptionsWithoutRoomForASegmentAreRefused) {
  ColdStoreOptions options = TestColdOptions(folder_.path());
  options.capacity_bytes = options.segment_bytes;
  EXPECT_EQ(ColdStore::Make(options).status().code(), Code::kInvalidArgument);
  options = TestColdOptions(folder_.path());
  options.segment_bytes += 1;
  EXPECT_EQ(ColdStore::Make(options).status().code(), Code::kInvalidArgument);
}

TEST_F(ColdFolderTest, AnInterruptedFirstStartDoesNotStopTheNext) {
  WriteFile("LOCK", "");
  WriteFile("PROBE", "half a block");
  WriteFile("FORMAT.new", "kvtier co");
  EXPECT_TRUE(Make(folder_.path()).ok());
}

TEST_F(ColdFolderTest, S50_ODirectRefusedAtWriteFallsBackToBuffered) {
  FaultyBlockIo faulty(*io_);
  faulty.FailNth(IoRequest::Op::kWrite, 1, Status(Code::kUnavailable, "injected: EINVAL"));
  const Result<bool> direct = ProbeDirectIo(folder_.path(), /*allow_direct_io=*/true, faulty);
  ASSERT_TRUE(direct.ok()) << direct.status().ToString();
  EXPECT_FALSE(*direct);
  EXPECT_EQ(faulty.count(IoRequest::Op::kWrite), 2u);
  EXPECT_TRUE(ListFolder(folder_.path()).value().empty());
}

TEST_F(ColdFolderTest, ODirectIsNotTriedWhenNotAllowed) {
  const Result<bool> direct = ProbeDirectIo(folder_.path(), /*allow_direct_io=*/false, *io_);
  ASSERT_TRUE(direct.ok());
  EXPECT_FALSE(*direct);
}

TEST_F(ColdFolderTest, AFullDiskAtTheSelfTestIsAClearError) {
  FaultyBlockIo faulty(*io_);
  faulty.FailFrom(IoRequest::Op::kWrite, 1, StatusFromErrno(ENOSPC, "write"));
  const Result<ColdFolder> folder = OpenColdFolder(TestColdOptions(folder_.path()), faulty);
  EXPECT_EQ(folder.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(folder.status().message(), HasSubstr("cold store " + folder_.path() + ": self-test"));
}

TEST_F(ColdFolderTest, BytesThatReadBackWrongFailTheSelfTest) {
  FaultyBlockIo faulty(*io_);
  faulty.ShortenNth(IoRequest::Op::kRead, 1, 0);
  faulty.ShortenNth(IoRequest::Op::kRead, 2, 0);
  EXPECT_FALSE(ProbeDirectIo(folder_.path(), true, faulty).ok());
}

TEST_F(ColdFolderTest, ModelsComeBackAndADamagedOneIsCounted) {
  ASSERT_TRUE(fs::create_directory(folder_.path() + "/m"));
  const std::string models = folder_.path() + "/m";
  for (uint64_t i = 0; i < 3; ++i) {
    const ModelRecord model{.name_space = DigestOf<NamespaceDigest>(i), .fields = std::string(i * 100, 'x')};
    ASSERT_TRUE(WriteModelFile(models, model).ok());
    ASSERT_TRUE(WriteModelFile(models, model).ok());
  }
  uint64_t dropped = 0;
  EXPECT_EQ(ReadModelFiles(models, dropped).value().size(), 3u);
  EXPECT_EQ(dropped, 0u);

  WriteFile("m/" + DigestOf<NamespaceDigest>(2).ToHex() + ".model", "damage");
  const std::vector<ModelRecord> left = ReadModelFiles(models, dropped).value();
  EXPECT_EQ(left.size(), 2u);
  EXPECT_EQ(dropped, 1u);
  // The next registration writes it again.
  ASSERT_TRUE(WriteModelFile(models, {.name_space = DigestOf<NamespaceDigest>(2), .fields = "again"}).ok());
  dropped = 0;
  EXPECT_EQ(ReadModelFiles(models, dropped).value().size(), 3u);
  EXPECT_EQ(dropped, 0u);
}

TEST_F(ColdFolderTest, ModelFieldsAreBounded) {
  const ModelRecord model{.name_space = TestNamespace(),
                          .fields = std::string(kMaxModelFieldsBytes + 1, 'x')};
  EXPECT_EQ(WriteModelFile(folder_.path(), model).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier
