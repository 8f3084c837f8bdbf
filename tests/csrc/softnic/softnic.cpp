#include "softnic/softnic.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

// Looks that found nothing, before others get the processor, and before this one sleeps between two looks.
constexpr std::uint64_t kUntilYield = 200;
constexpr std::uint64_t kUntilSleep = 4000;
constexpr std::chrono::microseconds kSleep{50};

}  // namespace

SoftNic::SoftNic(const SoftHabits& habits) : habits_(habits) {
  // No two NICs have the same keys: a wrong one is found out.
  std::random_device random;
  next_key_ = random();
  next_qpn_ = random() & 0x7fffff;
  thread_ = std::thread([this] { run(); });
}

SoftNic::~SoftNic() {
  if (!owner_.is_here()) {
    // The thread is not in a fork, so that it cannot be waited for: this handle of it must not come to an
    // end.
    new std::thread(std::move(thread_));
    return;
  }
  ends_ = true;
  thread_.join();
}

// In a fork it would never be given back: the thread may have had it at that moment.
std::unique_lock<std::mutex> SoftNic::lock() const {
  if (!owner_.is_here()) throw ChannelError(std::string("this softnic") + kNotOurs);
  ++others_;
  std::unique_lock stored(mutex_);
  --others_;
  return stored;
}

LocalMemory SoftNic::register_memory(std::byte* memory, std::uint64_t bytes, std::shared_ptr<const void> keep,
                                     const void* known_as) {
  const auto stored = lock();
  const LocalMemory known{memory, bytes, next_key_};
  next_key_ += 0x101;
  const auto address = reinterpret_cast<std::uintptr_t>(known_as != nullptr ? known_as : memory);
  regions_.emplace(known.key, Region{known, address, std::move(keep)});
  return known;
}

void SoftNic::deregister(std::uint32_t key) {
  if (!owner_.is_here()) return;
  const auto stored = lock();
  regions_.erase(key);
}

QueuePair SoftNic::connect(std::uint32_t blocks, PeerMemory peer, Failed failed) {
  const auto stored = lock();
  const std::uint32_t qpn = next_qpn_;
  next_qpn_ = (next_qpn_ + 1) & 0xffffff;
  const auto find_here = [this](std::uint32_t key, std::uint64_t address, std::uint64_t bytes) {
    return find(key, address, bytes);
  };
  const auto queue =
      std::make_shared<SoftQueue>(qpn, blocks, std::move(peer), std::move(failed), habits_, find_here);
  ++habits_.seed;
  std::erase_if(queues_, [](const auto& other) { return other.expired(); });
  queues_.push_back(queue);
  return {queue->send(), queue->memory().completions(), queue, true};
}

std::shared_ptr<SoftQueue> SoftNic::queue(std::uint32_t qpn) const {
  const auto stored = lock();
  for (const auto& weak : queues_) {
    if (auto queue = weak.lock(); queue && queue->send().qpn == qpn) return queue;
  }
  throw std::invalid_argument("this softnic has no such queue pair");
}

// Of the NIC's own thread, which holds the lock.
const std::byte* SoftNic::find(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const {
  const auto match = regions_.find(key);
  if (match == regions_.end()) return nullptr;
  const LocalMemory& memory = match->second.memory;
  const std::uint64_t offset = address - match->second.known_as;
  const bool inside = offset <= memory.bytes && bytes <= memory.bytes - offset;
  return inside ? memory.memory + offset : nullptr;
}

bool SoftNic::work_on_all() {
  const std::lock_guard stored(mutex_);
  bool did = false;
  for (const auto& weak : queues_) {
    if (const auto queue = weak.lock()) did |= queue->work();
  }
  return did;
}

void SoftNic::run() {
  std::uint64_t idle = 0;
  while (!ends_) {
    while (others_ > 0) std::this_thread::yield();
    idle = work_on_all() ? 0 : idle + 1;
    if (idle > kUntilSleep) {
      std::this_thread::sleep_for(kSleep);
    } else if (idle > kUntilYield) {
      std::this_thread::yield();
    }
  }
}

}  // namespace lamina::fhbn::rdma
