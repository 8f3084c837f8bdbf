#include "fhbn/wait.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

#include "fhbn/ordered.hpp"

namespace lamina::fhbn {

using namespace std::chrono_literals;

namespace {

// A sleeper looks this often whether its peer still lives, and a caller of ours whether a signal came.
constexpr Duration kNap = 20ms;
// How often a waiter that is not woken looks for itself: a device cannot make system calls.
constexpr Duration kUnheardNap = 50us;
// Looking costs nothing yet when a peer is about to answer.
constexpr Duration kShortestSpin = 5us;
constexpr int kLooksPerClock = 64;

// Sleeps unless the flag was already taken back.
void sleep_on(Asleep& asleep, Duration longest) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(longest).count();
  const timespec relative{static_cast<std::time_t>(ns / 1'000'000'000),
                          static_cast<long>(ns % 1'000'000'000)};
  ::syscall(SYS_futex, &asleep.flag, FUTEX_WAIT, 1, &relative, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

bool changed(const Side& line, std::uint64_t observed) {
  return load_acquire(line.seqno) != observed || load_acquire(line.state) != State::kOpen;
}

// A pidfd becomes readable when its process ends. A socket is readable whenever data has arrived, and
// hangs up when all holders of its other end have closed it.
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

Woken Waiter::wait(const Side& line, std::uint64_t observed, Asleep& asleep, const Peer& peer,
                   Duration timeout, const std::function<bool()>& interrupted) {
  const auto start = Clock::now();
  auto now = start;
  while (now - start < std::min(spin_, timeout)) {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (changed(line, observed)) {
        ++spun_;
        learn(Clock::now() - start);
        return Woken::kReady;
      }
      pause();
    }
    now = Clock::now();
  }
  Woken woken = Woken::kReady;
  bool slept = false;
  while (true) {
    // In this order the peer, which writes its line and then looks at the flag, cannot miss us both ways.
    // The futex is the flag and not the line, whose state may change without its seqno.
    store_ordered(asleep.flag, std::uint32_t{1});
    if (load_ordered(line.seqno) != observed || load_ordered(line.state) != State::kOpen) break;
    now = Clock::now();
    if (now - start >= timeout) {
      // One that never waits has to notice its peer's end too. What it wrote before that counts.
      woken = !peer.has_ended() ? Woken::kLate : changed(line, observed) ? Woken::kReady : Woken::kAlone;
      break;
    }
    const Duration nap = load_acquire(line.unheard) != 0 ? kUnheardNap : kNap;
    if (!std::exchange(slept, true)) ++slept_;
    sleep_on(asleep, std::min(nap, timeout - (now - start)));
    if (changed(line, observed)) break;
    if (peer.has_ended()) {
      // It may have written between our look and its end.
      woken = changed(line, observed) ? Woken::kReady : Woken::kAlone;
      break;
    }
    if (interrupted()) {
      woken = Woken::kInterrupted;
      break;
    }
  }
  store_release(asleep.flag, std::uint32_t{0});
  learn(Clock::now() - start);
  return woken;
}

// Looking pays when the answer comes soon: for up to twice as long as waits usually are. Where they are
// longer than it is worth to look, the core is worth more to others.
void Waiter::learn(Duration waited) {
  usual_ += (std::min(waited, 4 * longest_spin_) - usual_) / 8;
  spin_ = 2 * usual_ <= longest_spin_ ? std::max(2 * usual_, longest_spin_ / 4) : kShortestSpin;
  spin_ = std::min(spin_, longest_spin_);
}

void wake(Asleep& peer) {
  if (load_ordered(peer.flag) == 0) return;
  // Taken back here, so that one sleep costs one system call, however long the sleeper takes to get up.
  store_ordered(peer.flag, std::uint32_t{0});
  ::syscall(SYS_futex, &peer.flag, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace lamina::fhbn
