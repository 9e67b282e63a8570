#pragma once

namespace httplib {
struct Request;
}

namespace kvtier::llamacpp {

/// The connection of a request that is being answered, which the library shows to nobody. Borrows it: valid
/// until the answer is given. Threads: single-owner.
class PeerSocket {
 public:
  explicit PeerSocket(const httplib::Request& request);
  /// Whether the client has closed its end. False where the connection was not found.
  bool HasLeft() const;

 private:
  int fd_ = -1;
};

}  // namespace kvtier::llamacpp
