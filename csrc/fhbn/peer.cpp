#include "fhbn/peer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace lamina::fhbn {

namespace {

// A pidfd becomes readable when its process ends. A socket is readable whenever something was said on it, and
// hangs up when all who hold its other end are gone.
short ending_of(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode)) return POLLRDHUP;
  return POLLIN;
}

}  // namespace

Peer::Peer(std::string name, int descriptor)
    : name_(std::move(name)), descriptor_(-1), ending_(ending_of(descriptor)) {
  if (descriptor < 0) return;
  descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "watching " + name_);
}

Peer::~Peer() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Peer::has_ended() const noexcept {
  if (descriptor_ < 0) return false;
  pollfd watched{descriptor_, ending_, 0};
  return ::poll(&watched, 1, 0) > 0 && (watched.revents & (ending_ | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace lamina::fhbn
