#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/kv_pools.hpp"
#include "core/lane.hpp"
#include "core/request_queue.hpp"

namespace lamina {

enum class Admission {
  kReserve,  // a request enters when its final length fits
  kGrow,  // it enters when its prompt fits and takes more as it grows; the youngest makes room when none is
          // left
};

enum class RequestState : std::uint8_t { kNew, kWaiting, kAdmitted, kRunning, kDone, kRejected };

// What the scheduler knows of the requests: columns, owned by the caller, one row a request.
struct RequestTable {
  std::span<const std::int32_t> prompt;
  std::span<const std::int32_t> output;
  // Prefix blocks of row i: ids[offsets[i]:offsets[i + 1]]. Empty when prefixes are not shared.
  std::span<const std::int64_t> prefix_offsets;
  std::span<const std::int64_t> prefix_ids;
  int prefix_block_tokens = 512;
  // Sequences of a request that share its prompt and grow side by side, one token each an iteration: parallel
  // samples, beams. Empty when every request has one. More than one needs blocks of one token.
  std::span<const std::int32_t> width;

  std::int64_t width_of(std::size_t row) const { return width.empty() ? 1 : width[row]; }

  std::span<const std::int64_t> prefix(std::size_t row) const {
    if (prefix_offsets.empty()) return {};
    const auto begin = static_cast<std::size_t>(prefix_offsets[row]);
    return prefix_ids.subspan(begin, static_cast<std::size_t>(prefix_offsets[row + 1]) - begin);
  }
};

struct SchedulerLimits {
  int batches = 1;
  int pools = 1;
  std::int64_t tokens_per_pool = 0;
  int block_tokens = 1;
  Admission admission = Admission::kReserve;
  std::int64_t max_requests = 0;  // sequences running at once, all batches together
  bool staged = false;   // who is admitted joins its batch only after ready(): its KV comes meanwhile
  bool lengths = false;  // the least and the most KV of those in a batch are known
  // Charged for each request that is admitted, beside its own and rounded up to blocks; nobody attends to it.
  std::int64_t request_tokens = 0;
  // Sequences that each batch should have: with fewer in all, fewer batches take turns.
  std::int64_t min_batch = 1;
};

// Continuous batching over shared KV memory: who waits, who runs in which batch, who makes room. One
// implementation for the simulator and the engine; it knows no clock. Per iteration it does work for the
// requests that join and leave, not for those that stay.
class Scheduler {
public:
  using Index = RequestQueue::Index;
  // Smaller goes first. Called once each time a request enters the queue.
  using Priority = std::function<std::int64_t(Index)>;

  // Who joined and who had to go when a batch went on.
  struct Change {
    std::vector<Index> preempted;
    std::vector<Index> joined;
    std::vector<Index> admitted;         // staged: those let in now, whichever batch they will join
    std::int64_t recomputed_tokens = 0;  // KV that joining requests had lost when they were preempted
  };

  // `priority` empty means first come, first served by index.
  Scheduler(RequestTable requests, SchedulerLimits limits, Priority priority = {});

  // The caller's columns have moved, have more rows or hold new requests in rows of those that are gone.
  void rebind(RequestTable requests);

  // The request arrives: it waits from now on, or is rejected because it could never fit.
  RequestState enqueue(Index request);
  // Whether a request, of a table of the caller's, could ever be served.
  bool fits(const RequestTable& requests, Index request) const;

  // The batch has run an iteration: each of its requests has one token more, and those that have all leave.
  const std::vector<Index>& finish(int batch);

  // The batch is about to run its next iteration: its requests get room for their next token, waiting ones
  // are admitted to the emptiest batches, and those meant for this one join it.
  const Change& advance(int batch);
  const Change& change() const { return change_; }  // the last one

  // Staged: the request, which was admitted, has its KV, and joins when its batch goes on next.
  void ready(Index request);
  // Staged: the KV of those that got ready since advance() comes with this iteration: they join it too.
  const Change& join(int batch);
  // Staged: the iteration that the request joined came to nothing, or the KV that it was ready with is gone.
  // It is as when it was admitted, and keeps what it was promised.
  void unjoin(Index request);

  // The request goes at once, wherever it is: it was cancelled, or has ended before its last token. What is
  // not here stays so.
  void remove(Index request);

  // For how many boundaries, of no more than so many, the batch goes on as it is: nobody waits, comes or
  // leaves, and all of it is in one pool that has room. And going on for so many at once.
  std::int64_t steady(int batch, std::int64_t most) const;
  void skip(int batch, std::int64_t boundaries);

  std::int64_t size(int batch) const { return lane(batch).size; }
  // All that the next iteration computes something for: here nothing but those that it makes a token for.
  std::int64_t sequences(int batch) const { return size(batch); }
  // KV tokens the batch's next iteration reads, in the pool that holds most of them and in all.
  std::int64_t largest_kv(int batch) const;
  std::int64_t kv(int batch) const;
  Attended attended(int batch, int pool) const;
  // Tokens written in the pool that holds most of them: what is charged but to come is left out.
  std::int64_t fullest_pool() const;
  std::int64_t iterations(int batch) const { return lane(batch).iteration; }

  int batches() const { return limits_.batches; }
  std::size_t waiting() const { return queue_.size(); }
  std::int64_t running() const { return running_; }  // sequences, admitted ones included
  // Whether the request waits or runs.
  bool here(Index request) const {
    const RequestState state = states_[request];
    return state == RequestState::kWaiting || state == RequestState::kAdmitted ||
           state == RequestState::kRunning;
  }
  RequestState state(Index request) const { return states_[request]; }
  std::size_t requests() const { return states_.size(); }
  // Where its KV is, and the batch that it is in or will join, if it was ever admitted.
  int pool(Index request) const { return pool_[request]; }
  int batch(Index request) const { return batch_[request]; }
  std::int32_t produced(Index request) const;
  const KvPools& pools() const { return pools_; }
  int pools_of_kv() const { return limits_.pools; }
  std::int64_t used() const { return pools_.used(); }
  std::int64_t capacity() const { return pools_.capacity() * pools_.pools(); }

  // Recounts everything; throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  static constexpr Index kNone = kNoRequest;

  // A request's time in a batch, told apart from its row's other times by when it began.
  struct Stay {
    Index request;
    std::int64_t joined;
  };

  // One batch. Requests that leave at the same iteration form a chain that starts in `leaving`.
  struct Lane {
    std::int64_t size = 0;      // sequences
    std::int64_t arriving = 0;  // sequences of those admitted, ready or not
    std::int64_t iteration = 0;
    bool midway = false;           // between advance() and finish(): there is room for the tokens being made
    std::vector<std::int64_t> kv;  // per pool: tokens its requests have now
    std::vector<std::int64_t> members;              // per pool
    std::vector<Lengths> lengths;                   // per pool, if they are to be known
    std::vector<std::vector<std::int64_t>> phases;  // per pool: members by (own tokens - iteration) mod block
    std::vector<Index> leaving;                     // ring over iterations
    std::vector<Index> joining;                     // those admitted that join at the next boundary
    std::vector<Stay> youngest;                     // in order of joining; those who left are skipped
  };

  const Lane& lane(int batch) const { return lanes_[static_cast<std::size_t>(batch)]; }
  bool grows() const { return limits_.admission == Admission::kGrow; }
  std::int64_t own_tokens(Index request) const;
  std::int64_t charge(Index request) const;
  void make_room(Lane& lane);
  void preempt(Lane& lane, Index victim);
  void admit();
  bool try_admit(Index request);
  std::size_t batch_for(std::int64_t width) const;
  std::int64_t watermark() const;
  void join(Lane& lane);
  void part(Lane& lane, Index request);
  void leave(Lane& lane, Index request);
  std::int64_t leaves_at(Index request) const;
  void unchain(Lane& lane, Index request);
  void widen_ring(std::int32_t longest);
  void give_back(Index request, std::int64_t tokens);
  bool gone(const Lane& lane, const Stay& stay) const;
  void sweep(Lane& lane);
  Index youngest_of(Lane& lane, int pool);
  std::size_t phase_of(Index request) const;

  RequestTable requests_;
  SchedulerLimits limits_;
  Priority priority_;
  KvPools pools_;
  const std::int64_t request_tokens_;  // whole blocks
  RequestQueue queue_;
  std::vector<Lane> lanes_;
  std::int64_t running_ = 0;
  std::size_t ring_mask_ = 0;

  std::vector<RequestState> states_;
  std::vector<std::uint16_t> pool_;
  std::vector<std::uint16_t> batch_;
  std::vector<Index> next_leaving_;
  std::vector<std::int64_t> joined_;    // the batch's iteration when it joined
  std::vector<std::int32_t> produced_;  // tokens made before it joined last; empty until someone is preempted
  std::vector<Index> finished_;
  Change change_;
};

}  // namespace lamina
