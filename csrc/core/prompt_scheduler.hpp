#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/block_pool.hpp"
#include "core/lane.hpp"
#include "core/scheduler.hpp"

namespace lamina {

struct PromptLimits {
  std::int64_t budget = 2048;  // most tokens that a batch computes in an iteration
  bool lags = false;           // an iteration is scheduled while the one before it runs: docs/simulator.md
  bool holds = false;          // the KV of those who have ended stays until release()
};

// Continuous batching as vLLM does it where prompts are computed too: in chunks, beside the requests that
// decode. docs/simulator.md ("Prompts beside decoding") defines it. Per iteration it does work for the
// requests that are in their prompt or leave, not for those that decode on.
class PromptScheduler {
public:
  using Index = Scheduler::Index;

  struct Change {
    std::vector<Index> preempted;  // that had made tokens since they were admitted
    std::vector<Index> sent_back;  // that had not
    std::vector<Index> admitted;
    std::vector<Index> joined;  // their prompt ends with this iteration, which makes a token for each
  };

  // Part of a prompt that an iteration computes.
  struct Chunk {
    Index request;
    std::int64_t tokens;
    std::int64_t before;  // tokens whose KV is there
  };

  // What a batch's iteration computes.
  struct Step {
    std::int64_t decoding = 0;  // requests that have one token computed
    std::int64_t rows = 0;      // tokens in all
    std::vector<Chunk> chunks;
  };

  PromptScheduler(RequestTable requests, SchedulerLimits limits, PromptLimits prompts,
                  Scheduler::Priority priority = {});

  // The caller's columns have moved or have more rows.
  void rebind(RequestTable requests);

  RequestState enqueue(Index request);
  // Whether a pool that holds nothing else has room for a request, of a table of the caller's.
  bool fits(const RequestTable& requests, Index request) const;
  const std::vector<Index>& finish(int batch);
  const Change& advance(int batch);
  // As the other scheduler's.
  std::int64_t steady(int batch, std::int64_t most) const;
  void skip(int batch, std::int64_t boundaries);
  // Nobody needs the KV of a request that has ended and was held.
  void release(Index request);

  const Step& step(int batch) const { return lane(batch).step; }
  // Requests for which the iteration makes a token, and all that it computes something for.
  std::int64_t size(int batch) const;
  std::int64_t sequences(int batch) const;
  // KV tokens that decoding requests read, in the pool that holds most of them and in all.
  std::int64_t largest_kv(int batch) const;
  std::int64_t kv(int batch) const;
  Attended attended(int batch, int pool) const;
  std::int64_t iterations(int batch) const { return lane(batch).iteration; }
  int pool(Index request) const { return pool_[request]; }
  int pools_of_kv() const { return limits_.pools; }
  std::size_t waiting() const { return queue_.size(); }
  std::int64_t running() const { return running_; }
  // In tokens.
  std::int64_t used() const;
  std::int64_t fullest_pool() const;
  std::int64_t capacity() const { return pools_.front().capacity() * limits_.block_tokens * limits_.pools; }

  // Recounts everything; throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  static constexpr Index kNone = kNoRequest;

  struct Stay {
    Index request;
    std::int64_t joined;
  };

  // One batch. Decoding requests that leave at the same iteration form a chain that starts in `leaving`.
  struct Lane {
    std::int64_t iteration = 0;
    std::int64_t members = 0;                       // that decode
    std::vector<std::int64_t> members_of;           // per pool
    std::vector<std::int64_t> kv;                   // per pool: tokens that members have computed
    std::vector<Lengths> lengths;                   // per pool, if they are to be known
    std::vector<std::vector<std::int64_t>> phases;  // per pool: members by (own tokens - iteration) mod block
    std::vector<Index> leaving;                     // ring over iterations
    std::vector<Index> joining;                     // their prompt ends with the iteration that runs
    std::vector<Stay> youngest;                     // in order of joining; those who left are skipped
    Index prompt = kNone;                    // admitted, and its prompt is not at its end: the last one
    std::vector<Index> ended, ended_before;  // have all tokens, and hold seat and memory for a while
    std::vector<Index> held;                 // have all tokens, and hold memory until they are released
    Step step;

    std::int64_t requests() const {
      return members + static_cast<std::int64_t>(joining.size() + ended.size() + ended_before.size()) +
             (prompt != kNone ? 1 : 0);
    }
  };

  const Lane& lane(int batch) const { return lanes_[static_cast<std::size_t>(batch)]; }
  BlockPool& pool_of(Index request) { return pools_[pool_[request]]; }
  bool grows() const { return limits_.admission == Admission::kGrow; }
  std::int64_t known(Index request) const { return requests_.prompt[request] + produced_[request]; }
  std::int64_t computed(const Lane& lane, Index request) const;
  std::int64_t shareable(Index request) const { return shareable(requests_, request); }
  static std::int64_t shareable(const RequestTable& requests, Index request);
  std::int64_t blocks_for(Index request, std::int64_t tokens) const {
    return blocks_for(requests_, request, tokens);
  }
  std::int64_t blocks_for(const RequestTable& requests, Index request, std::int64_t tokens) const;
  std::int64_t own_blocks(Index request, std::int64_t computed) const;
  std::int64_t final_tokens(Index request) const {
    return requests_.prompt[request] + requests_.output[request];
  }
  std::int64_t leaves_at(Index request) const {
    return joined_[request] + requests_.output[request] - produced_[request];
  }
  std::size_t phase_of(Index request) const;
  void release(std::vector<Index>& ended);
  void free(Index request);
  void widen_ring(std::int32_t longest);
  void make_room(Lane& lane);
  void preempt(Lane& lane, int pool);
  Index youngest_of(Lane& lane, int pool);
  void queue_again(Index request, std::int64_t computed);
  bool compute(Lane& lane, Index request, std::int64_t& budget);
  void admit(Lane& lane, std::int64_t& budget);
  bool try_admit(Index request);
  void leave(Lane& lane, Index request);
  bool gone(const Lane& lane, const Stay& stay) const;
  void sweep(Lane& lane);

  RequestTable requests_;
  SchedulerLimits limits_;
  PromptLimits prompts_;
  Scheduler::Priority priority_;
  std::vector<BlockPool> pools_;
  std::int64_t prefix_blocks_;   // KV blocks of a prefix block
  std::int64_t request_blocks_;  // that each request has beside its tokens
  RequestQueue queue_;
  std::vector<Lane> lanes_;
  std::int64_t running_ = 0;
  std::size_t ring_mask_ = 0;

  std::vector<RequestState> states_;
  std::vector<std::uint16_t> pool_;
  std::vector<std::uint16_t> batch_;
  std::vector<Index> next_leaving_;
  std::vector<std::int64_t> joined_;    // the batch's iteration that ended its prompt
  std::vector<std::int32_t> produced_;  // tokens made before it was admitted last
  std::vector<std::int32_t> computed_;  // of a prompt that is not at its end
  std::vector<std::int32_t> shared_;    // its first prefix blocks, which it holds
  std::vector<Index> finished_;
  Change change_;
};

}  // namespace lamina
