#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "fhbn/process.hpp"
#include "fhbn/rdma/queue.hpp"

// One queue pair as a softnic sees it: from the other side of the structures of queue.hpp. Part of a test
// bench.
namespace lamina::fhbn::rdma {

// Memory for the queues of a softnic's queue pair, laid out as a driver does it: the queues and their
// doorbell records in pages of their own, which a GPU can be let reach, and the UAR page apart from them.
class QueueMemory {
public:
  // `blocks` of the send queue, and as many completions: a power of two from 8 to 32,768.
  explicit QueueMemory(std::uint32_t blocks);
  ~QueueMemory();
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  SendQueue send(std::uint32_t qpn) const;
  CompletionQueue completions() const;
  std::span<std::byte> queues() const { return {memory_, bytes_ - kPage}; }
  std::span<std::byte> uar_page() const { return {memory_ + bytes_ - kPage, kPage}; }

private:
  static constexpr std::size_t kPage = 4096;

  std::uint32_t blocks_;
  std::size_t bytes_;
  std::byte* memory_;
};

// What a softnic may do to a queue pair's requests, as a NIC may.
struct SoftHabits {
  bool drops_blueflame = false;  // fetches every request from the queue, by its doorbell record
  bool reorders =
      false;  // moves a request's bytes in any order, among other queue pairs', and completes late
  std::uint64_t seed = 1;
};

// What was seen of a queue pair's requests.
struct SoftCounts {
  std::atomic<std::uint64_t> blueflames = 0;  // requests taken from a register
  std::atomic<std::uint64_t> fetched = 0;     // requests taken from the queue
  std::atomic<std::uint64_t> done = 0;        // requests, well or not
  std::atomic<std::uint64_t> completions = 0;
};

// Whether a queue pair has failed, or is gone: 1 if so. Both ends' softnics reach it, as they do the two
// memories, since no wire is between them.
using Failed = std::shared_ptr<std::uint32_t>;

// The memory of the peer that a queue pair may write to, mapped here.
struct PeerMemory {
  std::byte* memory;
  RemoteMemory known_as;
  std::shared_ptr<const void> keep;
  Failed failed = std::make_shared<std::uint32_t>(0);  // the peer's queue pair
};

// Where memory that a key stands for lies; null if it may not be read.
using FindLocal =
    std::function<const std::byte*(std::uint32_t key, std::uint64_t address, std::uint64_t bytes)>;

class SoftQueue {
public:
  SoftQueue(std::uint32_t qpn, std::uint32_t blocks, PeerMemory peer, Failed failed, const SoftHabits& habits,
            FindLocal find);
  ~SoftQueue();
  SoftQueue(const SoftQueue&) = delete;
  SoftQueue& operator=(const SoftQueue&) = delete;

  // Looks at the registers, and does a piece of what there is to do. False if there was nothing.
  bool work();

  // Its link is cut: nothing arrives any more, and no answer comes.
  void unplug() { unplugged_ = true; }
  // As after a failure that concerns it: everything is flushed, and the peer gets no answer.
  void fail();

  const QueueMemory& memory() const { return memory_; }
  const SendQueue& send() const { return send_; }
  const SoftCounts& counts() const { return counts_; }
  // Blocks that its owner has asked for, 16 bits of it, seen or not.
  std::uint16_t posted() const;

private:
  static constexpr std::uint32_t kMostBlocks = 4;  // of a request

  // A request by itself, wherever it came from.
  struct Fetched {
    alignas(kBlockBytes) std::array<std::byte, kMostBlocks * kBlockBytes> bytes;
    std::uint32_t segments = 0;  // as many as it says it has; 0: it makes no sense
    template <typename Segment>
    Segment segment(std::uint32_t index) const;
  };

  struct Piece {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };

  bool look();
  void take_doorbell(std::uint64_t* half);
  void read_register(const std::uint64_t* half, std::uint64_t doorbell);
  void fetch();
  Syndrome begin();
  Syndrome begin_write();
  Syndrome gather(std::vector<Piece>& from, std::uint64_t& bytes) const;
  void cut_up(std::byte* to, const std::vector<Piece>& from);
  void move_a_piece();
  void end_request(Syndrome syndrome);
  void complete();
  bool has_failed() const;

  QueueMemory memory_;
  SendQueue send_;
  CompletionQueue completions_;
  PeerMemory peer_;
  Failed failed_;
  SoftHabits habits_;
  FindLocal find_local_;
  SoftCounts counts_;
  std::minstd_rand random_;

  std::uint32_t head_ = 0;   // the first block not yet done with
  std::uint32_t limit_ = 0;  // the first one not posted
  std::optional<Fetched> current_;
  std::vector<Piece> pieces_;  // of the current request, still to be moved
  std::deque<CompletionEntry> owed_;
  std::uint32_t completed_ = 0;
  std::atomic<bool> unplugged_ = false;
  Owner owner_;
};

}  // namespace lamina::fhbn::rdma
