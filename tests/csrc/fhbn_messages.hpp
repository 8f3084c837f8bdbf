#pragma once

// Messages for the tests of channels. All of a message follows from its seqno: how many parts it has, how
// large they are and every byte of them; so whoever receives one can tell whether it is that one, and whole.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "expect.hpp"
#include "fhbn/receiver.hpp"
#include "fhbn/sender.hpp"

namespace fhbn_test {

using namespace std::chrono_literals;
using namespace lamina::fhbn;

// splitmix64: cheap enough to begin anew with every message.
class Random {
public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return (*this)() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

private:
  std::uint64_t state_;
};

// For what must happen, on however busy a machine; and for what must not.
inline constexpr Duration kLong = 60s;
inline const std::function<bool()> kNever = [] { return false; };
inline const std::function<bool()> kAtOnce = [] { return true; };
inline const Patience kPatient{kLong, kNever};

inline std::shared_ptr<const Peer> unwatched(const char* name) { return std::make_shared<Peer>(name); }

struct Message {
  std::uint32_t count = 0;
  std::array<std::span<const std::byte>, kMostParts> parts;
  operator Parts() const { return {parts.data(), count}; }
};

class Messages {
public:
  Messages(std::uint64_t seed, std::uint64_t message_bytes)
      : seed_(seed), room_(message_bytes), source_(room_ + kStarts) {
    Random random(seed);
    for (std::byte& b : source_) b = static_cast<std::byte>(random() >> 56);
  }

  Message at(std::uint64_t seqno) const {
    Random random(seed_ + seqno * 0xff51afd7ed558ccd);
    Message message;
    message.count = static_cast<std::uint32_t>(random.below(kMostParts + 1));
    std::uint64_t left = room_;
    for (std::uint32_t i = 0; i < message.count; ++i) {
      const std::uint64_t bytes = std::min(size(random, left), left);
      message.parts[i] = {source_.data() + random.below(kStarts), bytes};
      left -= bytes;
    }
    return message;
  }

  // That `arrived` is message `seqno` and nothing else. Also of one that has been held for a while.
  void check(const Arrived& arrived, std::uint64_t seqno) const {
    const std::string which = "message " + std::to_string(seqno);
    if (arrived.seqno != seqno) fail(which + " was expected, and " + std::to_string(arrived.seqno) + " came");
    const Message sent = at(seqno);
    expect(arrived.count == sent.count, which + " has another number of parts");
    for (std::uint32_t i = 0; i < sent.count; ++i) {
      const auto part = arrived.parts[i];
      expect(part.size() == sent.parts[i].size(), which + " has a part of another size");
      expect(reinterpret_cast<std::uintptr_t>(part.data()) % kPartAlignment == 0, which + " is not aligned");
      expect(part.empty() || std::memcmp(part.data(), sent.parts[i].data(), part.size()) == 0,
             which + " has other contents");
    }
  }

private:
  static constexpr std::uint64_t kStarts = 4093;  // parts begin at any address

  std::uint64_t size(Random& random, std::uint64_t left) const {
    switch (random.below(6)) {
      case 0:
        return 0;
      case 1:
        return 1;
      case 2:
        return random.below(256) | 1;
      case 3:
        return random.below(std::min<std::uint64_t>(left, 512) + 1);
      case 4:
        return random.below(left + 1);
      default:
        return random.one_in(2) ? left : left / 2;
    }
  }

  std::uint64_t seed_;
  std::uint64_t room_;
  std::vector<std::byte> source_;
};

// Messages that were received and not yet given back, which happens in random order.
template <typename T>
class Unreleased {
public:
  Unreleased(T& receiver, const Messages& messages, std::uint64_t seed)
      : receiver_(receiver), messages_(messages), random_(seed) {}

  void add(const Arrived& arrived) { stored_.push_back(arrived); }
  bool empty() const { return stored_.empty(); }

  Arrived take() {
    std::swap(stored_[random_.below(stored_.size())], stored_.back());
    const Arrived arrived = stored_.back();
    stored_.pop_back();
    return arrived;
  }

  void give_back(const Arrived& arrived) {
    messages_.check(arrived, arrived.seqno);  // nobody wrote over it meanwhile
    receiver_.give_back(arrived.seqno);
  }

private:
  T& receiver_;
  const Messages& messages_;
  Random random_;
  std::vector<Arrived> stored_;
};

// Hands messages to a thread that gives them back.
template <typename T>
class Releaser {
public:
  explicit Releaser(Unreleased<T>& stored) : stored_(stored), thread_([this] { run(); }) {}
  ~Releaser() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void add(const Arrived& arrived) {
    {
      const std::lock_guard lock(mutex_);
      stored_.add(arrived);
    }
    changed_.notify_one();
  }

private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return done_ || !stored_.empty(); });
      if (stored_.empty()) return;
      const Arrived arrived = stored_.take();
      lock.unlock();
      stored_.give_back(arrived);  // beside a receive()
    }
  }

  Unreleased<T>& stored_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

// That a message lies within its slot: where the ring is mapped whole, nothing else notices if it does not.
inline void expect_within_slot(const Segment& segment, const Arrived& arrived) {
  const auto* at = reinterpret_cast<const std::byte*>(&segment.slot(arrived.seqno) + 1);
  const auto* end = at + slot_room(segment.geometry().message_bytes);
  expect(end <= static_cast<const std::byte*>(segment.memory()) + segment.bytes(), "a slot outside the ring");
  expect(arrived.count <= kMostParts, "a message of too many parts");
  for (std::uint32_t i = 0; i < arrived.count; ++i) {
    const auto part = arrived.parts[i];
    expect(part.data() >= at && part.data() <= end, "a part that begins outside its slot or in another part");
    expect(part.size() <= static_cast<std::size_t>(end - part.data()), "a part that ends outside its slot");
    at = part.data() + part.size();
  }
}

}  // namespace fhbn_test
