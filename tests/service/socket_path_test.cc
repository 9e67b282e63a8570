#include "daemon/service/socket_path.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/service/session_fixture.h"

namespace kvtier {
namespace {

TEST(SocketPath, AStaleSocketFileIsReplaced) {
  TestFolder folder;
  const std::string path = folder.File("s");
  { const auto dead = ListenSeqPacket(path, 1); }
  ASSERT_EQ(::access(path.c_str(), F_OK), 0);
  EXPECT_TRUE(ListenSeqPacket(path, 1).ok());
}

TEST(SocketPath, ASocketOnWhichSomebodyAnswersIsLeftAlone) {
  TestFolder folder;
  const std::string path = folder.File("s");
  const auto alive = ListenSeqPacket(path, 1);
  ASSERT_TRUE(alive.ok());
  const Status second = ListenSeqPacket(path, 1).status();
  EXPECT_EQ(second.code(), Code::kFailedPrecondition);
  EXPECT_EQ(second.message(), "another process answers on " + path);
  EXPECT_EQ(PrepareSocketPath(path).code(), Code::kFailedPrecondition);
}

TEST(SocketPath, AFileThatIsNoSocketIsLeftAlone) {
  TestFolder folder;
  const std::string path = folder.File("s");
  std::ofstream(path) << "precious";
  EXPECT_EQ(PrepareSocketPath(path).message(), path + " exists and is not a socket");
  EXPECT_EQ(std::filesystem::file_size(path), 8u);
}

TEST(SocketPath, LongPathsAreRefused) {
  const std::string path = "/" + std::string(107, 'x');
  EXPECT_EQ(PrepareSocketPath(path).code(), Code::kInvalidArgument);
  EXPECT_EQ(ListenSeqPacket(path, 1).status().code(), Code::kInvalidArgument);
}

TEST(SocketPath, AMissingFolderIsNamed) {
  TestFolder folder;
  const std::string path = folder.File("no/s");
  EXPECT_EQ(ListenSeqPacket(path, 1).status().code(), Code::kNotFound);
  EXPECT_NE(SocketLock::Take(path).status().message().find(path), std::string::npos);
}

TEST(SocketLock, IsHeldByOneAndFreeAfterwards) {
  TestFolder folder;
  const std::string path = folder.File("s");
  {
    const auto first = SocketLock::Take(path);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(SocketLock::Take(path).status().message(), "another kvtierd serves " + path);
  }
  EXPECT_TRUE(SocketLock::Take(path).ok());
}

}  // namespace
}  // namespace kvtier
