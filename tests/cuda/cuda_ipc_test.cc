// Memory and order across processes: a daemon that exports its arenas and a client that imports them, and the
// client's own buffer the other way round.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "tests/cuda/fake_machine.h"
#include "tiers/base/unique_fd.h"
#include "tiers/cuda/cuda_device.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 70000;

/// One end of a connection between two processes that trust each other.
class Peer {
 public:
  explicit Peer(UniqueFd socket) : socket_(std::move(socket)) {
    // A peer that dies shows as the end of the stream; one that hangs as this.
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    KVTIER_CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
  }
  template <typename Value>
  void Send(const Value& value) const {
    KVTIER_CHECK(send(socket_.get(), &value, sizeof(value), MSG_NOSIGNAL) == sizeof(value));
  }
  template <typename Value>
  Value Receive() const {
    Value value;
    KVTIER_CHECK(recv(socket_.get(), &value, sizeof(value), MSG_WAITALL) == sizeof(value));
    return value;
  }

 private:
  UniqueFd socket_;
};

/// Runs `client` in a process of its own, made before anything of CUDA is, and `daemon` here.
void RunBoth(const std::function<void(Peer&)>& daemon, const std::function<bool(Peer&)>& client) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ours.Reset();
    Peer peer(std::move(theirs));
    fake_cuda::Reset({.seed = 2});
    const bool is_right = client(peer) && fake_cuda::Violations().empty();
    _exit(is_right ? 0 : 1);
  }
  theirs.Reset();
  {
    Peer peer(std::move(ours));
    daemon(peer);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the client was not content: " << status;
}

/// A device with a stream and pinned memory.
struct Side {
  SteadyClock clock;
  std::unique_ptr<CudaDevice> device = CudaDevice::Make(0, clock).value();
  CudaStream stream = device->MakeStream().value();
  PinnedBuffer pinned = device->AllocatePinned(kBytes).value();
  CudaEvent done = device->MakeEvent(EventSharing::kThisProcess).value();

  bool Fill(std::byte* target, int value) {
    memset(pinned.data(), value, kBytes);
    return device->CopyToDevice(target, pinned.span(), stream.get()).ok();
  }
  bool Wait() { return device->Record(done.get(), stream.get()).ok() && device->WaitFor(done.get()).ok(); }
  bool Holds(const std::byte* source, int value) {
    if (!device->CopyToHost(pinned.span(), source, stream.get()).ok() || !Wait()) return false;
    for (const std::byte one : pinned.span()) {
      if (one != static_cast<std::byte>(value)) return false;
    }
    return true;
  }
};

class CudaIpcTest : public FakeMachineTest {};

TEST_F(CudaIpcTest, AClientReadsThePoolAfterWhatTheDaemonHasQueued) {
  RunBoth(
      [](Peer& client) {
        Side side;
        const DeviceBuffer pool = side.device->Allocate(kBytes).value();
        const CudaEvent written = side.device->MakeEvent(EventSharing::kOtherProcesses).value();
        ASSERT_TRUE(side.Fill(pool.data(), 7));
        ASSERT_TRUE(side.device->Record(written.get(), side.stream.get()).ok());
        client.Send(side.device->Export(pool).value());
        client.Send(side.device->Export(written.get()).value());
        ASSERT_TRUE(client.Receive<bool>());  // it has queued its wait
        fake_cuda::RunAll();
        ASSERT_TRUE(client.Receive<bool>());  // it has given the pool back
        ASSERT_TRUE(side.Wait());
      },
      [](Peer& daemon) {
        Side side;
        const auto pool = side.device->ImportMemory(daemon.Receive<CudaHandle>(), kBytes);
        const auto written = side.device->ImportEvent(daemon.Receive<CudaHandle>());
        if (!pool.ok() || !written.ok()) return false;
        if (!side.device->Await(side.stream.get(), written->get()).ok()) return false;
        daemon.Send(true);
        const bool is_right = side.Holds(pool->data(), 7);
        daemon.Send(true);
        return is_right;
      });
}

TEST_F(CudaIpcTest, TheDaemonFillsAClientsBufferBetweenTheClientsEvents) {
  RunBoth(
      [](Peer& client) {
        Side side;
        {
          const ImportedBuffer buffer =
              side.device->ImportMemory(client.Receive<CudaHandle>(), kBytes).value();
          const CudaEvent ready = side.device->ImportEvent(client.Receive<CudaHandle>()).value();
          const CudaEvent filled = side.device->MakeEvent(EventSharing::kOtherProcesses).value();
          ASSERT_TRUE(side.device->Await(side.stream.get(), ready.get()).ok());
          ASSERT_TRUE(side.Fill(buffer.data(), 9));
          ASSERT_TRUE(side.device->Record(filled.get(), side.stream.get()).ok());
          client.Send(side.device->Export(filled.get()).value());
          ASSERT_TRUE(side.Wait());
          ASSERT_TRUE(client.Receive<bool>());  // has waited for `filled`
        }
        client.Send(true);
      },
      [](Peer& daemon) {
        Side side;
        const DeviceBuffer buffer = side.device->Allocate(kBytes).value();
        const CudaEvent ready = side.device->MakeEvent(EventSharing::kOtherProcesses).value();
        // Late work of the client's own, which the daemon's must not overtake.
        if (!side.Fill(buffer.data(), 1)) return false;
        if (!side.device->Record(ready.get(), side.stream.get()).ok()) return false;
        daemon.Send(side.device->Export(buffer).value());
        daemon.Send(side.device->Export(ready.get()).value());
        const auto filled = side.device->ImportEvent(daemon.Receive<CudaHandle>());
        if (!filled.ok() || !side.Wait()) return false;
        if (!side.device->Await(side.stream.get(), filled->get()).ok()) return false;
        const bool is_right = side.Holds(buffer.data(), 9);
        daemon.Send(true);
        return daemon.Receive<bool>() && is_right;
      });
}

TEST_F(CudaIpcTest, AHandleOfThisProcessAndOneOfNobodyAreRefused) {
  SteadyClock clock;
  const auto device = CudaDevice::Make(0, clock).value();
  const DeviceBuffer pool = device->Allocate(kBytes).value();
  EXPECT_EQ(device->ImportMemory(device->Export(pool).value(), kBytes).status().code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(device->ImportMemory(CudaHandle{}, kBytes).ok());
  EXPECT_FALSE(device->ImportEvent(CudaHandle{}).ok());
  EXPECT_TRUE(device->Usable().ok());
}

TEST_F(CudaIpcTest, AnEventOfThisProcessAloneIsNotExported) {
  SteadyClock clock;
  const auto device = CudaDevice::Make(0, clock).value();
  const CudaEvent event = device->MakeEvent(EventSharing::kThisProcess).value();
  EXPECT_FALSE(device->Export(event.get()).ok());
}

}  // namespace
}  // namespace kvtier
