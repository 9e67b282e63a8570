#include "client/src/session_socket.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

namespace kvtier::client {
namespace {

/// What listens where a daemon would.
class SessionSocketTest : public testing::Test {
 protected:
  SessionSocketTest() : path_(testing::TempDir() + "kvtier-" + std::to_string(::getpid()) + ".session") {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    ::unlink(path_.c_str());
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
  }
  ~SessionSocketTest() override { ::unlink(path_.c_str()); }

  void SendDescriptor(int peer, int fd) {
    char byte = 0;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    iovec vector{.iov_base = &byte, .iov_len = 1};
    msghdr header{};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
    ASSERT_EQ(::sendmsg(peer, &header, 0), 1);
  }

  const std::string path_;
  UniqueFd listener_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  const TimePoint deadline_ = SteadyClock().Now() + std::chrono::seconds(30);
};

TEST_F(SessionSocketTest, SaysThatNoDescriptorIsLeftForTheOneThatCame) {
#if defined(__SANITIZE_ADDRESS__)
  std::puts(
      "not run here: the type check of UBSan needs descriptors of its own and takes their lack for a bad "
      "object");
  return;
#endif
  Result<SessionSocket> socket = SessionSocket::Connect(path_, "test", deadline_, stop_.get());
  ASSERT_TRUE(socket.ok()) << socket.status().ToString();
  const UniqueFd peer(::accept(listener_.get(), nullptr, nullptr));
  SendDescriptor(peer.get(), stop_.get());

  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto received = socket->Receive();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(received.status().code(), Code::kResourceExhausted) << received.status().ToString();
  EXPECT_NE(received.status().message().find("descriptor"), std::string::npos);
}

TEST_F(SessionSocketTest, StopsWaitingWhenTheHandleCloses) {
  Result<SessionSocket> socket = SessionSocket::Connect(path_, "test", deadline_, stop_.get());
  ASSERT_TRUE(socket.ok()) << socket.status().ToString();
  ASSERT_EQ(::eventfd_write(stop_.get(), 1), 0);
  EXPECT_EQ(socket->ReceiveBy(deadline_, stop_.get()).status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace kvtier::client
