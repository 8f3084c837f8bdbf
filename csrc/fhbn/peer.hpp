#pragma once

#include <poll.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace lamina::fhbn {

// The process at the other end, as far as waiting for it goes.
class Peer {
public:
  // `watched`: what tells of its end, each by itself: a pidfd of its process, sockets that it holds. Copies
  // of them are kept open by this object.
  Peer(std::string name, std::span<const int> watched);
  explicit Peer(std::string name, std::initializer_list<int> watched = {})
      : Peer(std::move(name), std::span<const int>(watched.begin(), watched.size())) {}
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  // A system call: not for the fast path.
  bool has_ended() const noexcept;

private:
  std::string name_;
  std::vector<pollfd> watched_;
};

}  // namespace lamina::fhbn
