#pragma once

#include <string>

namespace lamina::fhbn {

// The process at the other end, as far as waiting for it goes.
class Peer {
public:
  // `descriptor`: a pidfd of its process, or a socket that it holds; -1 if nothing tells of its end. Kept
  // open by this object, which makes a copy.
  Peer(std::string name, int descriptor);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  // A system call: not for the fast path.
  bool has_ended() const noexcept;

private:
  std::string name_;
  int descriptor_;
  short ending_;  // the event that tells of the end
};

}  // namespace lamina::fhbn
