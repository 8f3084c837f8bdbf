#include "fhbn/peer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace lamina::fhbn {

namespace {

// A pidfd becomes readable when its process ends. A socket is readable whenever something was said on it, and
// hangs up when all holders of its other end are gone.
short ending_of(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode)) return POLLRDHUP;
  return POLLIN;
}

void close_all(std::span<const pollfd> watched) {
  for (const pollfd& one : watched) ::close(one.fd);
}

}  // namespace

Peer::Peer(std::string name, std::span<const int> watched) : name_(std::move(name)) {
  watched_.reserve(watched.size());
  for (const int descriptor : watched) {
    const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
      const int error = errno;
      close_all(watched_);
      throw std::system_error(error, std::generic_category(), "watching " + name_);
    }
    watched_.push_back({own, ending_of(own), 0});
  }
}

Peer::~Peer() { close_all(watched_); }

bool Peer::has_ended() const noexcept {
  return std::any_of(watched_.begin(), watched_.end(), [](pollfd one) {
    return ::poll(&one, 1, 0) > 0 && (one.revents & (one.events | POLLHUP | POLLERR | POLLNVAL)) != 0;
  });
}

}  // namespace lamina::fhbn
